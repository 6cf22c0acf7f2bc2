package drain_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

func (h *harness) priority(pod string, value int32) {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace + "-" + pod}, Value: value}
	h.create(class)
	h.t.Cleanup(func() {
		if err := h.Client.Delete(context.Background(), class); err != nil {
			h.t.Error(err)
		}
	})
}

// stateful creates three Pods with one volume each, and waits until all volumes are attached.
func (h *harness) stateful() {
	h.t.Helper()
	h.attacher()
	for name, value := range map[string]int32{"low": 1, "middle": 5, "high": 9} {
		h.priority(name, value)
		h.volume("of-" + name)
		h.create(h.pod(name, value, "of-"+name))
	}
	h.awaitAttached(3)
}

// since returns what the attacher did after the three volumes were attached.
func (h *harness) since() []string { return h.log()[3:] }

func TestDrainer_VolumePodsMoveOneAtATime(t *testing.T) {
	h := newHarness(t)
	h.stateful()
	h.kubelet(true)
	h.create(h.pod("plain", 0))
	req := h.request()
	report := h.drive(drain.New(h.opts), &req, done)
	if len(report.Failed)+len(report.Left) != 0 {
		t.Errorf("not a clean drain: %+v", report)
	}
	want := []string{"-of-high@a", "of-high@b", "-of-middle@a", "of-middle@b", "-of-low@a", "of-low@b"}
	if diff := cmp.Diff(want, h.since()); diff != "" {
		t.Errorf("volumes moved in another order (-want +got):\n%s", diff)
	}
}

func TestDrainer_ContinuesAfterRestart(t *testing.T) {
	h := newHarness(t)
	h.stateful()
	req := h.request()
	first := drain.New(h.opts)
	// Without a kubelet, the first Pod remains in termination.
	h.drive(first, &req, func(r drain.Report) bool { return waitsFor(drain.ForDetach)(r) && waitsFor(drain.ForPod)(r) })
	h.awaitLeaving("high")
	second := drain.New(h.opts)
	h.drive(second, &req, func(r drain.Report) bool {
		if len(r.Started) != 0 {
			t.Fatalf("the second process does not wait for what the first one began: %+v", r)
		}
		return waitsFor(drain.ForDetach)(r)
	})
	h.kubelet(true)
	h.drive(second, &req, done)
	want := []string{"-of-high@a", "of-high@b", "-of-middle@a", "of-middle@b", "-of-low@a", "of-low@b"}
	if diff := cmp.Diff(want, h.since()); diff != "" {
		t.Errorf("volumes moved in another order (-want +got):\n%s", diff)
	}
}

func (h *harness) awaitLeaving(name string) {
	h.t.Helper()
	h.eventually("pod "+name+" is seen as being deleted", func(ctx context.Context) bool {
		pod := &corev1.Pod{}
		must(h.t, h.opts.Client.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: name}, pod))
		return !pod.DeletionTimestamp.IsZero()
	})
}

func TestDrainer_ForceDuringDrain(t *testing.T) {
	h := newHarness(t)
	h.stateful()
	d, req := drain.New(h.opts), h.request()
	h.drive(d, &req, waitsFor(drain.ForDetach)) // no kubelet terminates the pod
	req.Force = drain.ForceRequested
	began := time.Now()
	report := h.drive(d, &req, done)
	if report.Force != drain.ForceRequested || len(report.Left) != 0 {
		t.Errorf("want a forced drain without remaining pods: %+v", report)
	}
	t.Logf("all were deleted %v after the drain was forced", time.Since(began))
	for _, name := range []string{"low", "middle", "high"} {
		err := h.Client.Get(t.Context(), client.ObjectKey{Namespace: h.Namespace, Name: name}, &corev1.Pod{})
		if client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("pod %s still exists: %v", name, err)
		}
	}
}

func TestDeleteAttachments(t *testing.T) {
	h := newHarness(t)
	h.stateful() // the pods stay, so the attach-detach controller detaches nothing
	d := drain.New(h.opts)
	h.eventually("no attachment remains", func(ctx context.Context) bool {
		finished, err := d.DeleteAttachments(ctx, h.node)
		must(t, err)
		return finished
	})
	// The attacher uses its own watch, which may be behind.
	h.eventually("the attacher has seen three detachments", func(context.Context) bool {
		return len(h.since()) >= 3
	})
	want := []string{"-of-high@a", "-of-low@a", "-of-middle@a"}
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(h.since()))); diff != "" {
		t.Errorf("other attachments were deleted (-want +got):\n%s", diff)
	}
	if finished, err := d.DeleteAttachments(t.Context(), "no-such-node"); !finished || err != nil {
		t.Errorf("a node that is gone has attachments: %v, %v", finished, err)
	}
}

func (h *harness) budgetFor(minAvailable int) *policyv1.PodDisruptionBudget {
	least := intstr.FromInt(minAvailable)
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "keep", Namespace: h.Namespace},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"budget": "yes"}},
		},
	}
	return pdb
}

// guarded creates a Pod on a node that the budget counts.
func (h *harness) guarded(name, node string, ready bool) *corev1.Pod {
	h.t.Helper()
	pod := h.pod(name, 0)
	pod.Labels["budget"], pod.Spec.NodeName = "yes", node
	h.create(pod)
	h.ready(pod, ready)
	return pod
}

func (h *harness) ready(pod *corev1.Pod, ready bool) {
	h.t.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	must(h.t, h.Client.Status().Patch(h.t.Context(), pod, client.MergeFrom(before)))
}

// awaitBudget waits until the real disruption controller has counted the Pods.
func (h *harness) awaitBudget(expected, healthy int32) {
	h.t.Helper()
	h.eventually("the budget has counted its pods", func(ctx context.Context) bool {
		pdb := &policyv1.PodDisruptionBudget{}
		err := h.opts.Client.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: "keep"}, pdb)
		must(h.t, client.IgnoreNotFound(err))
		return pdb.Status.ExpectedPods == expected && pdb.Status.CurrentHealthy == healthy
	})
}

func TestDrainer_BudgetRefusesThenAllows(t *testing.T) {
	h := newHarness(t)
	h.kubelet(false)
	h.guarded("here", h.node, true)
	there := h.guarded("there", h.refuge, false)
	h.create(h.budgetFor(1))
	h.awaitBudget(2, 1)
	held := testingclock.NewFakeClock(time.Now())
	h.opts.Clock = held
	d, req := drain.New(h.opts), h.request()
	report := h.drive(d, &req, func(r drain.Report) bool {
		held.SetTime(time.Now())
		return len(r.Waiting) == 1 && r.Waiting[0].For == drain.ForBudget && r.Waiting[0].Object != ""
	})
	if report.Waiting[0].Object != h.Namespace+"/keep" || report.Problem() != "" {
		t.Errorf("want a wait for the budget and no problem: %+v", report)
	}
	if got := d.Refused(h.Namespace); len(got) != 1 || got[0] != req.Machine {
		t.Errorf("events of budgets map to %v, want the machine", got)
	}
	h.ready(there, true)
	held.Step(2 * time.Second) // the retry interval of 20 s does not elapse, so only the budget event triggers a retry
	h.drive(d, &req, func(r drain.Report) bool { return !waitsFor(drain.ForBudget)(r) })
	h.drive(d, &req, func(r drain.Report) bool {
		held.SetTime(time.Now())
		return r.Done
	})
}

func TestDrainer_MisconfiguredBudgetIsReported(t *testing.T) {
	h := newHarness(t)
	h.kubelet(false)
	h.guarded("here", h.node, true)
	h.create(h.budgetFor(1))
	h.awaitBudget(1, 1)
	d, req := drain.New(h.opts), h.request()
	report := h.drive(d, &req, func(r drain.Report) bool { return r.Problem() != "" })
	want := "pod disruption budget " + h.Namespace + "/keep is misconfigured and requires zero voluntary evictions"
	if !strings.HasSuffix(report.Problem(), want) {
		t.Errorf("problem %q does not end with the expected text", report.Problem())
	}
	req.Force = drain.ForceDeadline
	if report = h.drive(d, &req, done); report.Force != drain.ForceDeadline {
		t.Errorf("forced because %q", report.Force)
	}
}

func TestDrainer_DeletedPods(t *testing.T) {
	h := newHarness(t)
	one := h.guarded("one", h.node, true)
	h.create(h.budgetFor(1))
	h.awaitBudget(1, 1)
	d, req := drain.New(h.opts), h.request()
	h.drive(d, &req, waitsFor(drain.ForBudget))
	h.end(one)
	h.drive(d, &req, done)

	// The deletion of a node completes its drain.
	h.create(h.pod("two", 0))
	h.drive(d, &req, waitsFor(drain.ForPod))
	must(t, h.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.node}}))
	if report := h.drive(d, &req, done); !report.NodeGone {
		t.Errorf("%+v", report)
	}
	d.Forget(req.Machine)
}

func TestDrainer_EvictorIdentifiesPodsByUID(t *testing.T) {
	h := newHarness(t)
	pod := h.pod("one", 0)
	h.create(pod)
	key := client.ObjectKeyFromObject(pod)
	if err := h.opts.Evictor.Evict(t.Context(), key, types.UID("another")); !apierrors.IsConflict(err) {
		t.Errorf("want a conflict for another pod of the same name, got %v", err)
	}
	must(t, h.Client.Get(t.Context(), key, pod))
	if !pod.DeletionTimestamp.IsZero() {
		t.Error("the pod is being deleted")
	}
}

func TestDrainer_IndependentPodsAreEvictedTogether(t *testing.T) {
	h := newHarness(t)
	h.stateful()
	h.opts.Strategy = drain.Independent
	d, req := drain.New(h.opts), h.request()
	h.drive(d, &req, func(r drain.Report) bool { // no pod is terminated, but all are being deleted
		awaited := 0
		for _, waiting := range r.Waiting {
			if waiting.For == drain.ForDetach {
				awaited++
			}
		}
		return awaited == 3
	})
	if got := d.Awaiting(h.Namespace + "-of-low"); len(got) != 1 || got[0] != req.Machine {
		t.Errorf("events of the volume's attachments map to %v, want the machine", got)
	}
	if got := d.Awaiting("another"); len(got) != 0 {
		t.Errorf("events of another volume map to %v", got)
	}
	h.kubelet(true)
	h.drive(d, &req, done)
	if got := d.Awaiting(h.Namespace + "-of-low"); len(got) != 0 {
		t.Errorf("%v still waits for the volume", got)
	}
}
