package hostrunner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages/recorder"
)

const (
	component = "millwright-hostrunner"

	logLimit    = 10 << 20         // bytes
	logInterval = 15 * time.Second // between checks of the size of a log

	// requestTime limits the requests of one pass: the grace period of a process must not be extended because
	// the API server does not respond.
	requestTime = 10 * time.Second

	// finalTries limits how often a stopped host tries to report the exit of a process. The next host runner
	// finds the termination message.
	finalTries = 4

	// finalTime limits the final reports to the API server.
	finalTime = 5 * time.Second
)

// host is the state that all workers share.
type host struct {
	Config
	client kubernetes.Interface
	// vms reads the metadata of VirtualMachines.
	vms    metadata.Getter
	events record.EventRecorder
	// stopping is done when the host is being stopped.
	stopping context.Context
}

// runner assigns a worker to each Pod.
type runner struct {
	*host
	broadcaster record.EventBroadcaster

	mu      sync.Mutex
	workers map[types.UID]*worker
	active  sync.WaitGroup
}

func newRunner(config Config) (*runner, error) {
	access := rest.CopyConfig(config.REST)
	if access.QPS == 0 {
		access.QPS, access.Burst = 50, 100 // like the kubelet; client-go's default is 5
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	objects, err := metadata.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &runner{
		host: &host{
			Config: config,
			client: client,
			vms:    objects.Resource(vmv1alpha1.SchemeGroupVersion.WithResource("virtualmachines")),
			events: recorder.New(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: config.Name})),
		},
		broadcaster: broadcaster,
		workers:     map[types.UID]*worker{},
	}, nil
}

// run works until the context is done, and then terminates all processes.
func (r *runner) run(ctx context.Context) error {
	defer r.broadcaster.Shutdown()
	r.stopping = ctx
	// Workers still write after the context is done.
	working, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	if err := r.resume(working); err != nil {
		return err
	}
	var background sync.WaitGroup
	background.Go(func() { r.runNode(ctx) })
	background.Go(func() { r.watch(ctx, working) })
	<-ctx.Done()
	background.Wait()

	limit := time.AfterFunc(StopGrace+finalTime, done)
	defer limit.Stop()
	r.active.Wait()
	return nil
}

// resume starts workers for the Pods that an earlier host runner left in the directory, without waiting for the
// API server.
func (r *runner) resume(ctx context.Context) error {
	entries, err := os.ReadDir(layout(r.Dir).pods())
	if err != nil {
		return fmt.Errorf("reading the directory of Pods: %w", err)
	}
	for _, entry := range entries {
		uid := types.UID(entry.Name())
		r.worker(ctx, uid, readManifest(layout(r.Dir).pod(string(uid))))
	}
	return nil
}

// watch passes Pods to their workers.
func (r *runner) watch(ctx, working context.Context) {
	selector := fields.OneTermEqualSelector("spec.nodeName", r.Name)
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(r.client.CoreV1().RESTClient(), "pods", "", selector),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { r.learn(working, object.(*corev1.Pod)) },
			UpdateFunc: func(old, object any) {
				if before := old.(*corev1.Pod); before.UID != object.(*corev1.Pod).UID {
					r.forget(before.UID)
				}
				r.learn(working, object.(*corev1.Pod))
			},
			DeleteFunc: func(object any) {
				if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = tombstone.Obj
				}
				r.forget(object.(*corev1.Pod).UID)
			},
		},
	})
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		r.forgetOthers(store)
	}
	running.Wait()
}

// forgetOthers notifies the workers whose Pods were deleted while no host runner was running.
func (r *runner) forgetOthers(store cache.Store) {
	exists := map[types.UID]bool{}
	for _, object := range store.List() {
		exists[object.(*corev1.Pod).UID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, w := range r.workers {
		if !exists[uid] {
			w.forgetUnlessSeen()
		}
	}
}

func (r *runner) learn(working context.Context, pod *corev1.Pod) {
	if r.stopping.Err() == nil {
		r.worker(working, pod.UID, nil).learn(pod)
	}
}

func (r *runner) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.workers[uid]; ok {
		w.forget()
	}
}

// worker returns the worker of a Pod, and starts it if necessary, with the saved Pod.
func (r *runner) worker(working context.Context, uid types.UID, saved *corev1.Pod) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.workers[uid]
	if !ok {
		w = &worker{host: r.host, dir: layout(r.Dir).pod(string(uid)), wake: make(chan struct{}, 1), latest: saved, retry: retryDelays}
		r.workers[uid] = w
		r.active.Go(func() {
			w.run(working)
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.workers, uid)
		})
	}
	return w
}

func (w *worker) log() logr.Logger {
	log := w.Log.WithValues("uid", filepath.Base(string(w.dir)))
	if w.pod != nil {
		log = log.WithValues("pod", w.pod.Namespace+"/"+w.pod.Name)
	}
	return log
}
