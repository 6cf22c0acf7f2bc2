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
	"github.com/millwright-dev/millwright/test/support/env"
)

// waitTimeout is the maximum time that a test waits for anything.
const waitTimeout = env.WaitTimeout

// harness is a node with Pods, in a cluster with the real attach-detach and disruption controllers. The tests
// simulate the scheduler, the kubelets and the CSI attacher.
type harness struct {
	*env.Env
	t      *testing.T
	node   string
	refuge string // the node for replacement pods
	opts   drain.Options
	pokes  chan struct{}
	gate   *gate // for the watches of the cache

	mu       sync.Mutex
	attached []string // "volume@node" for attachments and "-volume@node" for detachments, in order
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{Env: env.New(t, env.WithControllerManager()), t: t, pokes: make(chan struct{}, 1), gate: newGate()}
	h.node, h.refuge = h.Namespace+"-a", h.Namespace+"-b"
	for _, name := range []string{h.node, h.refuge} {
		h.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		}})
		h.create(&storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "csi.example.org", NodeID: name}}},
		})
		t.Cleanup(func() {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := h.Client.Delete(context.Background(), node); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		})
	}
	h.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: h.Namespace}})
	h.setUp()
	return h
}

// setUp creates the environment of a Drainer: a cache with the permissions, indexes, transform and events that
// the package requires.
func (h *harness) setUp() {
	h.t.Helper()
	access := h.UserWith(h.t, "config/rbac/target-role.yaml")
	access.Wrap(h.gate.wrap)
	target, err := cluster.New(access, func(o *cluster.Options) {
		o.Scheme = env.NewScheme()
		o.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: drain.StripPod}}
	})
	must(h.t, err)
	must(h.t, drain.AddIndexes(h.t.Context(), target.GetFieldIndexer()))
	clients, err := kubernetes.NewForConfig(access)
	must(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	h.opts = drain.Options{
		Client: target.GetClient(), Evictor: drain.NewEvictor(clients.CoreV1().RESTClient()),
		Run:  func(task func(context.Context)) bool { running.Go(func() { task(ctx) }); return true },
		Wake: func(types.NamespacedName) { h.poke() }, Clock: clock.RealClock{}, Identify: drain.CSIHandle,
	}
	running.Go(func() {
		if err := target.Start(ctx); err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(func() { cancel(); running.Wait() })
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
		must(h.t, err)
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { h.poke() },
			DeleteFunc: func(any) { h.poke() },
			UpdateFunc: func(was, is any) {
				if passes(was.(client.Object), is.(client.Object)) {
					h.poke()
				}
			},
		})
		must(h.t, err)
	}
	if !target.GetCache().WaitForCacheSync(ctx) {
		h.t.Fatal("the cache of the target cluster did not sync")
	}
}

func (h *harness) poke() {
	select {
	case h.pokes <- struct{}{}:
	default:
	}
}

func (h *harness) create(objects ...client.Object) {
	h.t.Helper()
	for _, object := range objects {
		must(h.t, h.Client.Create(h.t.Context(), object))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pod creates a Pod on the node with the claims of the given volumes.
func (h *harness) pod(name string, priority int32, volumes ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: h.Namespace, Labels: map[string]string{"app": name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: h.owner(), Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName: h.node, TerminationGracePeriodSeconds: ptr.To[int64](5),
			Containers: []corev1.Container{{Name: "c", Image: "image"}},
		},
	}
	for _, volume := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume},
		}})
	}
	if priority != 0 {
		// The priority is set through a class, which is cluster-scoped.
		class := strings.ReplaceAll(h.Namespace+"-"+name, "/", "-")
		pod.Spec.PriorityClassName = class
	}
	return pod
}

func (h *harness) owner() types.UID {
	owner := &corev1.ConfigMap{}
	must(h.t, h.Client.Get(h.t.Context(), client.ObjectKey{Namespace: h.Namespace, Name: "owner"}, owner))
	return owner.UID
}

// volume creates a volume that is bound to a claim of the same name.
func (h *harness) volume(name string) {
	storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	full := h.Namespace + "-" + name
	h.create(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: full},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: storage, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{Namespace: h.Namespace, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.org", VolumeHandle: "[store] " + full + ".vmdk"},
			},
		},
	}, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: h.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: full, StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{Requests: storage},
		},
	})
}

// play reacts to all events of a kind until the test completes.
func (h *harness) play(list client.ObjectList, react func(watch.EventType, client.Object)) {
	h.t.Helper()
	watcher, err := client.NewWithWatch(h.Admin, client.Options{Scheme: env.NewScheme()})
	must(h.t, err)
	events, err := watcher.Watch(context.Background(), list)
	must(h.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.ResultChan() {
			if object, ok := e.Object.(client.Object); ok {
				react(e.Type, object)
			}
		}
	}()
	h.t.Cleanup(func() { events.Stop(); <-done })
}

// kubelet terminates Pods that are being deleted. If comesBack is true, it creates replacements on the other
// node.
func (h *harness) kubelet(comesBack bool) {
	h.play(&corev1.PodList{}, func(kind watch.EventType, object client.Object) {
		pod := object.(*corev1.Pod)
		if pod.Namespace != h.Namespace || pod.Spec.NodeName != h.node {
			return
		}
		ctx := context.Background()
		switch {
		case kind == watch.Deleted && comesBack:
			again := h.fresh(pod)
			if err := h.Client.Create(ctx, again); err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
				h.t.Error(err)
			}
		case kind != watch.Deleted && !pod.DeletionTimestamp.IsZero():
			h.end(pod)
		}
	})
}

func (h *harness) fresh(pod *corev1.Pod) *corev1.Pod {
	again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences,
	}, Spec: *pod.Spec.DeepCopy()}
	again.Spec.NodeName = h.refuge
	return again
}

func (h *harness) end(pod *corev1.Pod) {
	err := h.Client.Delete(context.Background(), pod.DeepCopy(), client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		h.t.Error(err)
	}
}

// attacher simulates the CSI attacher. It logs attachments and detachments in order.
func (h *harness) attacher() {
	h.play(&storagev1.VolumeAttachmentList{}, func(kind watch.EventType, object client.Object) {
		attachment := object.(*storagev1.VolumeAttachment)
		volume, ours := strings.CutPrefix(ptr.Deref(attachment.Spec.Source.PersistentVolumeName, ""), h.Namespace+"-")
		if !ours {
			return
		}
		entry := volume + "@" + strings.TrimPrefix(attachment.Spec.NodeName, h.Namespace+"-")
		switch {
		case kind == watch.Deleted:
			h.noted("-" + entry)
		case kind == watch.Added && !attachment.Status.Attached:
			h.noted(entry) // before others can react to it
			before := attachment.DeepCopy()
			attachment.Status.Attached = true
			if err := h.Client.Status().Patch(context.Background(), attachment, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
				h.t.Error(err)
			}
		}
	})
}

func (h *harness) noted(entry string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attached = append(h.attached, entry)
}

func (h *harness) log() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.attached)
}

// awaitAttached waits until the node's status, which the real controller writes, has the given number of
// volumes.
func (h *harness) awaitAttached(count int) {
	h.t.Helper()
	h.eventually("the node has its volumes", func(ctx context.Context) bool {
		node := &corev1.Node{}
		must(h.t, h.opts.Client.Get(ctx, client.ObjectKey{Name: h.node}, node))
		return len(node.Status.VolumesAttached) == count
	})
}

func (h *harness) eventually(what string, holds func(context.Context) bool) {
	h.t.Helper()
	err := wait.PollUntilContextTimeout(h.t.Context(), 20*time.Millisecond, waitTimeout, true, func(ctx context.Context) (bool, error) {
		return holds(ctx), nil
	})
	if err != nil {
		h.t.Fatalf("waiting until %s: %v", what, err)
	}
}

func (h *harness) request() drain.Request {
	return drain.Request{
		Machine: types.NamespacedName{Namespace: h.Namespace, Name: "machine"}, Node: h.node,
		Since: time.Now(), Timeout: time.Hour, MaxEvictRetries: 100,
	}
}

// drive runs a pass whenever one is due, until a report meets the condition.
func (h *harness) drive(d *drain.Drainer, req *drain.Request, done func(drain.Report) bool) drain.Report {
	h.t.Helper()
	limit := time.NewTimer(waitTimeout)
	defer limit.Stop()
	logged := ""
	for {
		report, err := d.Drain(h.t.Context(), *req)
		must(h.t, err)
		if summary := report.Summary(); summary != logged {
			logged = summary
			h.t.Log("waiting for", summary)
		}
		if done(report) {
			return report
		}
		var due <-chan time.Time
		if report.Wait > 0 {
			due = time.After(report.Wait)
		}
		select {
		case <-h.pokes:
		case <-due:
		case <-limit.C:
			h.t.Fatalf("the drain hangs: %+v", report)
		}
	}
}

func done(r drain.Report) bool { return r.Done }

func waitsFor(cause drain.Cause) func(drain.Report) bool {
	return func(r drain.Report) bool {
		return slices.ContainsFunc(r.Waiting, func(w drain.Waiting) bool { return w.For == cause })
	}
}
