// Package provisioner provisions PersistentVolumes that are directories on this machine, or files that back
// block devices.
//
// For each claim of one StorageClass it creates a directory, and a PersistentVolume with its hostPath; for
// volumeMode Block, the path of a file in that directory. In local mode all hosts are this machine, so the
// volumes have no node affinity.
package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/messages/recorder"
)

const (
	// DefaultClass is the name of the default StorageClass.
	DefaultClass = "millwright-local"
	// Name is the provisioner's name in StorageClasses and PersistentVolumes.
	Name = "millwright.dev/local"

	annotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
	annotationDefaultClass  = "storageclass.kubernetes.io/is-default-class"
)

// Provisioner creates and removes volumes. Only one may use a directory.
type Provisioner struct {
	// Client may read claims and write volumes and events. It is required.
	Client kubernetes.Interface
	// Dir is the directory of all volumes. Each is a subdirectory named by the UID of its claim. It is created
	// if it does not exist. It is required.
	// Class is the StorageClass of the claims. If empty, DefaultClass is used.
	Dir   string
	Class string
	// Log gets a line for each volume that is created or removed. The zero value discards them.
	Log logr.Logger
}

// EnsureClass creates the StorageClass if it does not exist. It is the default class; its volumes are bound
// immediately, can be enlarged, and are deleted with their claims. The volumes of an existing class can be
// enlarged, too, from then on.
func EnsureClass(ctx context.Context, client kubernetes.Interface, name string) error {
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotationDefaultClass: "true"}},
		Provisioner:       Name,
		ReclaimPolicy:     ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),

		AllowVolumeExpansion: ptr.To(true),
	}
	_, err := client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	if apierror.Taken(err) {
		// A StorageClass of an earlier version does not allow it.
		_, err = client.StorageV1().StorageClasses().Patch(ctx, name, types.MergePatchType, []byte(`{"allowVolumeExpansion":true}`), metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("creating StorageClass %s: %w", name, err)
	}
	return nil
}

// Run provisions volumes until the context is done, then returns nil. It returns an error if it cannot use the
// directory.
func (p Provisioner) Run(ctx context.Context) error {
	p.Class = cmp.Or(p.Class, DefaultClass)
	if p.Log.GetSink() == nil {
		p.Log = logr.Discard()
	}
	dir, err := filepath.Abs(p.Dir)
	if err != nil || p.Dir == "" || p.Client == nil {
		return errors.Join(errors.New("a provisioner needs a directory and a client"), err)
	}
	p.Dir = dir
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return fmt.Errorf("the directory of volumes is not writable: %w", err)
	}
	files, err := os.OpenRoot(p.Dir)
	if err != nil {
		return fmt.Errorf("opening the directory of volumes: %w", err)
	}
	defer files.Close()
	events := record.NewBroadcaster()
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: p.Client.CoreV1().Events("")})
	factory := informers.NewSharedInformerFactory(p.Client, 0)
	core := factory.Core().V1()
	w := &worker{
		Provisioner: p,
		files:       files,
		events:      recorder.New(events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: Name})),
		claims:      core.PersistentVolumeClaims().Lister(),
		volumes:     core.PersistentVolumes().Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[item](100*time.Millisecond, time.Minute)),
	}
	for _, informer := range []cache.SharedIndexInformer{
		core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(),
	} {
		if _, err := informer.AddEventHandler(w.handler(ctx)); err != nil {
			return err
		}
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	factory.WaitForCacheSync(ctx.Done())
	if ctx.Err() != nil {
		return nil
	}
	return w.run(ctx)
}

// item is a claim, or a volume if it has no namespace.
type item = cache.ObjectName

// worker handles one claim or volume at a time.
type worker struct {
	Provisioner
	files   *os.Root // Dir
	events  record.EventRecorder
	claims  listers.PersistentVolumeClaimLister
	volumes listers.PersistentVolumeLister
	queue   workqueue.TypedRateLimitingInterface[item]
}

// run needs synced caches.
func (w *worker) run(ctx context.Context) error {
	if err := w.sweep(); err != nil {
		return err
	}

	var worker sync.WaitGroup
	worker.Go(func() {
		for w.next(ctx) {
		}
	})
	<-ctx.Done()
	w.queue.ShutDown()
	worker.Wait()
	return nil
}

func (w *worker) handler(ctx context.Context) cache.ResourceEventHandler {
	add := func(object any) {
		if name, err := cache.ObjectToName(object); err == nil {
			w.queue.Add(name)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, object any) { add(object) },
		DeleteFunc: func(object any) { w.forget(ctx, object) },
	}
}

// next handles one item, and reports whether there may be others.
func (w *worker) next(ctx context.Context) bool {
	name, shutdown := w.queue.Get()
	if shutdown {
		return false
	}
	defer w.queue.Done(name)
	handle := w.provision
	if name.Namespace == "" {
		handle = w.reclaim
	}
	if err := handle(ctx, name); err != nil && ctx.Err() == nil {
		w.Log.Error(err, "handling an object failed; retrying", "object", name.String())
		w.queue.AddRateLimited(name)
		return true
	}
	w.queue.Forget(name)
	return true
}
