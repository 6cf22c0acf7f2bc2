package drain_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

func (w *world) priority(pod string, value int32) {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace + "-" + pod}, Value: value}
	w.create(class)
	w.t.Cleanup(func() {
		if err := w.Client.Delete(context.Background(), class); err != nil {
			w.t.Error(err)
		}
	})
}

// stateful makes three pods with a volume each, and waits until all are attached.
func (w *world) stateful() {
	w.t.Helper()
	w.attacher()
	for name, value := range map[string]int32{"low": 1, "middle": 5, "high": 9} {
		w.priority(name, value)
		w.volume("of-" + name)
		w.create(w.pod(name, value, "of-"+name))
	}
	w.awaitAttached(3)
}

// since is what the attacher did after the three volumes were attached.
func (w *world) since() []string { return w.log()[3:] }

func TestVolumePodsMoveOneAtATime(t *testing.T) {
	w := newWorld(t)
	w.stateful()
	w.kubelet(true)
	w.create(w.pod("plain", 0))
	req := w.request()
	report := w.drive(drain.New(w.opts), &req, done)
	if len(report.Failed)+len(report.Unawaited)+len(report.Left) != 0 {
		t.Errorf("not a clean drain: %+v", report)
	}
	want := []string{"-of-high@a", "of-high@b", "-of-middle@a", "of-middle@b", "-of-low@a", "of-low@b"}
	if diff := cmp.Diff(want, w.since()); diff != "" {
		t.Errorf("volumes moved in another order (-want +got):\n%s", diff)
	}
}

func TestRestartContinues(t *testing.T) {
	w := newWorld(t)
	w.stateful()
	req := w.request()
	first := drain.New(w.opts)
	// Without a kubelet, the first pod stays in termination.
	w.drive(first, &req, func(r drain.Report) bool { return waitsFor(drain.ForDetach)(r) && waitsFor(drain.ForPod)(r) })
	w.awaitLeaving("high")
	second := drain.New(w.opts)
	report, err := second.Drain(t.Context(), req)
	must(t, err)
	if len(report.Started) != 0 || !waitsFor(drain.ForDetach)(report) {
		t.Fatalf("the second process does not wait for what the first began: %+v", report)
	}
	w.kubelet(true)
	w.drive(second, &req, done)
	want := []string{"-of-high@a", "of-high@b", "-of-middle@a", "of-middle@b", "-of-low@a", "of-low@b"}
	if diff := cmp.Diff(want, w.since()); diff != "" {
		t.Errorf("volumes moved in another order (-want +got):\n%s", diff)
	}
}

func (w *world) awaitLeaving(name string) {
	w.t.Helper()
	w.eventually("pod "+name+" is seen to leave", func(ctx context.Context) bool {
		pod := &corev1.Pod{}
		must(w.t, w.opts.Client.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: name}, pod))
		return !pod.DeletionTimestamp.IsZero()
	})
}

func TestForceInMidDrain(t *testing.T) {
	w := newWorld(t)
	w.stateful()
	d, req := drain.New(w.opts), w.request()
	w.drive(d, &req, waitsFor(drain.ForDetach)) // a pod that nobody ends
	req.Force = drain.ForceRequested
	began := time.Now()
	report := w.drive(d, &req, done)
	if report.Force != drain.ForceRequested || len(report.Left) != 0 {
		t.Errorf("want a forced drain that left nothing: %+v", report)
	}
	t.Logf("all were deleted %v after the force", time.Since(began))
	for _, name := range []string{"low", "middle", "high"} {
		err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: w.Namespace, Name: name}, &corev1.Pod{})
		if client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("pod %s is still there: %v", name, err)
		}
	}
}

func TestDeleteAttachments(t *testing.T) {
	w := newWorld(t)
	w.stateful() // the pods stay, so the attach-detach controller takes nothing away
	d := drain.New(w.opts)
	w.eventually("no attachment is left", func(ctx context.Context) bool {
		finished, err := d.DeleteAttachments(ctx, w.node)
		must(t, err)
		return finished
	})
	found := &storagev1.VolumeAttachmentList{}
	must(t, w.opts.Client.List(t.Context(), found, client.MatchingFields{drain.AttachmentByNode: w.node}))
	deleted := 0
	for _, entry := range w.since() {
		if strings.HasPrefix(entry, "-") {
			deleted++
		}
	}
	if deleted != 3 {
		t.Errorf("%d attachments were deleted, want 3: %v", deleted, w.since())
	}
	if finished, err := d.DeleteAttachments(t.Context(), "no-such-node"); !finished || err != nil {
		t.Errorf("a node that is gone has attachments: %v, %v", finished, err)
	}
}

func (w *world) budgetFor(minAvailable int) *policyv1.PodDisruptionBudget {
	least := intstr.FromInt(minAvailable)
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "keep", Namespace: w.Namespace},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"budget": "yes"}},
		},
	}
	return pdb
}

// guarded makes a pod that the budget counts, on a node.
func (w *world) guarded(name, node string, ready bool) *corev1.Pod {
	w.t.Helper()
	pod := w.pod(name, 0)
	pod.Labels["budget"], pod.Spec.NodeName = "yes", node
	w.create(pod)
	w.ready(pod, ready)
	return pod
}

func (w *world) ready(pod *corev1.Pod, ready bool) {
	w.t.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	must(w.t, w.Client.Status().Patch(w.t.Context(), pod, client.MergeFrom(before)))
}

// awaitBudget waits until the real disruption controller has counted.
func (w *world) awaitBudget(expected, healthy int32) {
	w.t.Helper()
	w.eventually("the budget is counted", func(ctx context.Context) bool {
		pdb := &policyv1.PodDisruptionBudget{}
		err := w.opts.Client.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: "keep"}, pdb)
		must(w.t, client.IgnoreNotFound(err))
		return pdb.Status.ExpectedPods == expected && pdb.Status.CurrentHealthy == healthy
	})
}

func TestBudgetRefusesThenAllows(t *testing.T) {
	w := newWorld(t)
	w.kubelet(false)
	w.guarded("here", w.node, true)
	there := w.guarded("there", w.refuge, false)
	w.create(w.budgetFor(1))
	w.awaitBudget(2, 1)
	d, req := drain.New(w.opts), w.request()
	report := w.drive(d, &req, func(r drain.Report) bool {
		return len(r.Waiting) == 1 && r.Waiting[0].For == drain.ForBudget && r.Waiting[0].Object != ""
	})
	if report.Waiting[0].Object != w.Namespace+"/keep" || report.Problem() != "" {
		t.Errorf("want to wait for the budget and nothing to be wrong: %+v", report)
	}
	if got := d.Refused(w.Namespace); len(got) != 1 || got[0] != req.Machine {
		t.Errorf("events of budgets concern %v, want the machine", got)
	}
	w.ready(there, true)
	began := time.Now()
	w.drive(d, &req, done)
	if took := time.Since(began); took > 15*time.Second { // the interval of retries is 20 s
		t.Errorf("the drain went on %v after the budget allowed it", took)
	}
}

func TestMisconfiguredBudgetIsNamed(t *testing.T) {
	w := newWorld(t)
	w.kubelet(false)
	w.guarded("here", w.node, true)
	w.create(w.budgetFor(1))
	w.awaitBudget(1, 1)
	d, req := drain.New(w.opts), w.request()
	report := w.drive(d, &req, func(r drain.Report) bool { return r.Problem() != "" })
	want := "pod disruption budget " + w.Namespace + "/keep is misconfigured and requires zero voluntary evictions"
	if !strings.HasSuffix(report.Problem(), want) {
		t.Errorf("problem %q does not end in what is looked for", report.Problem())
	}
	req.Timeout = 0 // its time is over
	if report = w.drive(d, &req, done); report.Force != drain.ForceDeadline {
		t.Errorf("forced because %q", report.Force)
	}
}

func TestVanishedPods(t *testing.T) {
	w := newWorld(t)
	one := w.guarded("one", w.node, true)
	w.create(w.budgetFor(1))
	w.awaitBudget(1, 1)
	d, req := drain.New(w.opts), w.request()
	w.drive(d, &req, waitsFor(drain.ForBudget))
	w.end(one)
	w.drive(d, &req, done)

	// A node that goes away ends its drain.
	w.create(w.pod("two", 0))
	w.drive(d, &req, waitsFor(drain.ForPod))
	must(t, w.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node}}))
	if report := w.drive(d, &req, done); !report.NodeGone {
		t.Errorf("%+v", report)
	}
	d.Forget(req.Machine)
}

func TestEvictorKnowsPodsByTheirUID(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("one", 0)
	w.create(pod)
	key := client.ObjectKeyFromObject(pod)
	if err := w.opts.Evictor.Evict(t.Context(), key, types.UID("another")); !apierrors.IsConflict(err) {
		t.Errorf("want a conflict over a pod that only has the name, got %v", err)
	}
	must(t, w.Client.Get(t.Context(), key, pod))
	if !pod.DeletionTimestamp.IsZero() {
		t.Error("the pod is being deleted")
	}
}

func TestIndependentPodsLeaveTogether(t *testing.T) {
	w := newWorld(t)
	w.stateful()
	w.opts.Strategy = drain.Independent
	d, req := drain.New(w.opts), w.request()
	w.drive(d, &req, func(r drain.Report) bool { // nobody ends a pod, and still all are on their way
		awaited := 0
		for _, waiting := range r.Waiting {
			if waiting.For == drain.ForDetach {
				awaited++
			}
		}
		return awaited == 3
	})
	if got := d.Awaiting(w.Namespace + "-of-low"); len(got) != 1 || got[0] != req.Machine {
		t.Errorf("events of the volume's attachments concern %v, want the machine", got)
	}
	if got := d.Awaiting("another"); len(got) != 0 {
		t.Errorf("events of another volume concern %v", got)
	}
	w.kubelet(true)
	w.drive(d, &req, done)
	if got := d.Awaiting(w.Namespace + "-of-low"); len(got) != 0 {
		t.Errorf("%v still waits for the volume", got)
	}
}
