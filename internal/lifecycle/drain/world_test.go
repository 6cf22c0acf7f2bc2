package drain_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/test/env"
)

// patience is the longest that a test waits for anything.
const patience = 2 * time.Minute

// world is a node with pods, in a cluster whose attach-detach and disruption controllers
// are the real ones. The tests play the scheduler, the kubelets and the CSI attacher.
type world struct {
	*env.Env
	t      *testing.T
	node   string
	refuge string // where pods come back
	opts   drain.Options
	pokes  chan struct{}

	mu       sync.Mutex
	attached []string // "volume@node", and "-volume@node" for a detachment, in their order
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Env: env.New(t, env.WithControllerManager()), t: t, pokes: make(chan struct{}, 1)}
	w.node, w.refuge = w.Namespace+"-a", w.Namespace+"-b"
	for _, name := range []string{w.node, w.refuge} {
		w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		}})
		w.create(&storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "csi.example.org", NodeID: name}}},
		})
		t.Cleanup(func() {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := w.Client.Delete(context.Background(), node); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		})
	}
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: w.Namespace}})
	w.setUp()
	return w
}

// setUp makes what a Drainer works with: a cache with the rights, indexes, transform and
// events that the package asks for.
func (w *world) setUp() {
	w.t.Helper()
	access := w.UserWith(w.t, "config/rbac/target-role.yaml")
	target, err := cluster.New(access, func(o *cluster.Options) {
		o.Scheme = env.NewScheme()
		o.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: drain.StripPod}}
	})
	must(w.t, err)
	must(w.t, drain.AddIndexes(w.t.Context(), target.GetFieldIndexer()))
	clients, err := kubernetes.NewForConfig(access)
	must(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	w.opts = drain.Options{
		Client: target.GetClient(), Evictor: drain.NewEvictor(clients.CoreV1().RESTClient()),
		Run:  func(task func(context.Context)) bool { running.Go(func() { task(ctx) }); return true },
		Wake: func(types.NamespacedName) { w.poke() }, Clock: clock.RealClock{},
	}
	running.Go(func() {
		if err := target.Start(ctx); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() { cancel(); running.Wait() })
	pods, every := drain.PodChanges(), func(client.Object, client.Object) bool { return true }
	for object, passes := range map[client.Object]func(was, is client.Object) bool{
		&corev1.Pod{}: func(was, is client.Object) bool {
			return pods.Update(event.UpdateEvent{ObjectOld: was, ObjectNew: is})
		},
		&corev1.Node{}:                  func(was, is client.Object) bool { return drain.VolumesDiffer(was.(*corev1.Node), is.(*corev1.Node)) },
		&storagev1.VolumeAttachment{}:   every,
		&policyv1.PodDisruptionBudget{}: every,
	} {
		informer, err := target.GetCache().GetInformer(ctx, object)
		must(w.t, err)
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.poke() },
			DeleteFunc: func(any) { w.poke() },
			UpdateFunc: func(was, is any) {
				if passes(was.(client.Object), is.(client.Object)) {
					w.poke()
				}
			},
		})
		must(w.t, err)
	}
}

func (w *world) poke() {
	select {
	case w.pokes <- struct{}{}:
	default:
	}
}

func (w *world) create(objects ...client.Object) {
	w.t.Helper()
	for _, object := range objects {
		must(w.t, w.Client.Create(w.t.Context(), object))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pod makes a pod on the node, with the claims of these volumes.
func (w *world) pod(name string, priority int32, volumes ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: w.Namespace, Labels: map[string]string{"app": name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: w.owner(), Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName: w.node, TerminationGracePeriodSeconds: ptr.To[int64](5),
			Containers: []corev1.Container{{Name: "c", Image: "image"}},
		},
	}
	for _, volume := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume},
		}})
	}
	if priority != 0 {
		// Priorities come from classes, whose names are the cluster's.
		class := strings.ReplaceAll(w.Namespace+"-"+name, "/", "-")
		pod.Spec.PriorityClassName = class
	}
	return pod
}

func (w *world) owner() types.UID {
	owner := &corev1.ConfigMap{}
	must(w.t, w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.Namespace, Name: "owner"}, owner))
	return owner.UID
}

// volume makes a volume that is bound to a claim of the same name.
func (w *world) volume(name string) {
	storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	full := w.Namespace + "-" + name
	w.create(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: full},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: storage, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{Namespace: w.Namespace, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.org", VolumeHandle: "[store] " + full + ".vmdk"},
			},
		},
	}, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: full, StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{Requests: storage},
		},
	})
}

// play has somebody react to all events of a kind until the test ends.
func (w *world) play(list client.ObjectList, react func(watch.EventType, client.Object)) {
	w.t.Helper()
	watcher, err := client.NewWithWatch(w.Admin, client.Options{Scheme: env.NewScheme()})
	must(w.t, err)
	events, err := watcher.Watch(context.Background(), list)
	must(w.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.ResultChan() {
			if object, ok := e.Object.(client.Object); ok {
				react(e.Type, object)
			}
		}
	}()
	w.t.Cleanup(func() { events.Stop(); <-done })
}

// kubelet ends pods that were asked to end, and if comesBack makes others on the refuge.
func (w *world) kubelet(comesBack bool) {
	w.play(&corev1.PodList{}, func(kind watch.EventType, object client.Object) {
		pod := object.(*corev1.Pod)
		if pod.Namespace != w.Namespace || pod.Spec.NodeName != w.node {
			return
		}
		ctx := context.Background()
		switch {
		case kind == watch.Deleted && comesBack:
			again := w.fresh(pod)
			if err := w.Client.Create(ctx, again); err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
				w.t.Error(err)
			}
		case kind != watch.Deleted && !pod.DeletionTimestamp.IsZero():
			w.end(pod)
		}
	})
}

func (w *world) fresh(pod *corev1.Pod) *corev1.Pod {
	again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences,
	}, Spec: *pod.Spec.DeepCopy()}
	again.Spec.NodeName = w.refuge
	return again
}

func (w *world) end(pod *corev1.Pod) {
	err := w.Client.Delete(context.Background(), pod.DeepCopy(), client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		w.t.Error(err)
	}
}

// attacher is the CSI attacher. It notes what happens in its order.
func (w *world) attacher() {
	w.play(&storagev1.VolumeAttachmentList{}, func(kind watch.EventType, object client.Object) {
		attachment := object.(*storagev1.VolumeAttachment)
		volume, ours := strings.CutPrefix(ptr.Deref(attachment.Spec.Source.PersistentVolumeName, ""), w.Namespace+"-")
		if !ours {
			return
		}
		entry := volume + "@" + strings.TrimPrefix(attachment.Spec.NodeName, w.Namespace+"-")
		switch {
		case kind == watch.Deleted:
			w.noted("-" + entry)
		case kind == watch.Added && !attachment.Status.Attached:
			w.noted(entry) // before anybody can act on it
			before := attachment.DeepCopy()
			attachment.Status.Attached = true
			if err := w.Client.Status().Patch(context.Background(), attachment, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
				w.t.Error(err)
			}
		}
	})
}

func (w *world) noted(entry string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attached = append(w.attached, entry)
}

func (w *world) log() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.attached)
}

// awaitAttached waits until the real controller says in the node's status that it has so
// many volumes.
func (w *world) awaitAttached(count int) {
	w.t.Helper()
	w.eventually("the node has its volumes", func(ctx context.Context) bool {
		node := &corev1.Node{}
		must(w.t, w.opts.Client.Get(ctx, client.ObjectKey{Name: w.node}, node))
		return len(node.Status.VolumesAttached) == count
	})
}

func (w *world) eventually(what string, holds func(context.Context) bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return holds(ctx), nil
	})
	if err != nil {
		w.t.Fatalf("waiting until %s: %v", what, err)
	}
}

func (w *world) request() drain.Request {
	return drain.Request{
		Machine: types.NamespacedName{Namespace: w.Namespace, Name: "machine"}, Node: w.node,
		Since: time.Now(), Timeout: time.Hour, MaxEvictRetries: 100,
	}
}

// drive makes a pass whenever there is reason for one, until the reports are as wanted.
func (w *world) drive(d *drain.Drainer, req *drain.Request, wanted func(drain.Report) bool) drain.Report {
	w.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	said := ""
	for {
		report, err := d.Drain(w.t.Context(), *req)
		must(w.t, err)
		if summary := report.Summary(); summary != said {
			said = summary
			w.t.Log("waiting for", summary)
		}
		if wanted(report) {
			return report
		}
		var due <-chan time.Time
		if report.Wait > 0 {
			due = time.After(report.Wait)
		}
		select {
		case <-w.pokes:
		case <-due:
		case <-limit.C:
			w.t.Fatalf("the drain hangs: %+v", report)
		}
	}
}

func done(r drain.Report) bool { return r.Done }

func waitsFor(cause drain.Cause) func(drain.Report) bool {
	return func(r drain.Report) bool {
		return slices.ContainsFunc(r.Waiting, func(w drain.Waiting) bool { return w.For == cause })
	}
}
