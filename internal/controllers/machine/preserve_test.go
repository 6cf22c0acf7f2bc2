package machine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

const preserveTimeout = 72 * time.Hour

// preserve sets the preserve annotation of the Machine. An empty value removes it.
func (h *harness) preserve(value string) { change(h, h.machine(), annotated(value)) }

// preserveNode sets the preserve annotation of the node. An empty value removes it.
func (h *harness) preserveNode(value string) {
	change(h, h.node(), func(n *corev1.Node) { setPreserve(n, value) })
}

func annotated(value string) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) { setPreserve(m, value) }
}

func setPreserve(object metav1.Object, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationKeyPreserve] = value
	if value == "" {
		delete(annotations, v1alpha1.AnnotationKeyPreserve)
	}
	object.SetAnnotations(annotations)
}

// newPreserving returns a harness with a Running Machine.
func newPreserving(t *testing.T) *harness {
	h := newHarness(t)
	h.controller.PreserveTimeout = preserveTimeout
	h.running()
	return h
}

// fail makes the node unhealthy until the Machine is Failed.
func (h *harness) fail() {
	h.Helper()
	h.join(notReady)
	h.Settle()
	h.SettleAfter(healthTimeout)
	if phase := h.machine().Status.CurrentStatus.Phase; phase != v1alpha1.MachineFailed {
		h.Fatalf("phase %q, want Failed", phase)
	}
}

// kept contains the visible effects of a preservation.
type kept struct {
	// Own and Last are annotations of the Machine; Node and Scale are annotations of the node.
	Own, Last, Node, Scale string
	Expiry                 string
	Tainted                bool
	// Condition is the status and reason of the node's condition. Message is its message without the time.
	Condition, Message string
}

func (h *harness) kept() kept {
	h.Helper()
	machine, node := h.machine(), h.node()
	seen := kept{
		Own: machine.Annotations[v1alpha1.AnnotationKeyPreserve], Last: machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve],
	}
	if expiry := machine.Status.CurrentStatus.PreserveExpiryTime; expiry != nil {
		seen.Expiry = expiry.Sub(h.Clock.Now().Truncate(time.Second)).String()
	}
	if node == nil {
		return seen
	}
	seen.Node, seen.Scale = node.Annotations[v1alpha1.AnnotationKeyPreserve], node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM]
	seen.Tainted = slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == v1alpha1.TaintKeyPreserved })
	if condition := noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved); condition != nil {
		seen.Condition = string(condition.Status) + ", " + condition.Reason
		seen.Message, _, _ = strings.Cut(condition.Message, "Machine preserved")
		seen.Message = strings.TrimSpace(seen.Message)
		if copied := noderef.Condition(machine.Status.Conditions, v1alpha1.NodePreserved); copied == nil || copied.Message != condition.Message || copied.Status != condition.Status {
			h.Errorf("condition of the Machine %+v, of the node %+v", copied, condition)
		}
	}
	return seen
}

func (h *harness) wantKept(want kept) {
	h.Helper()
	if diff := cmp.Diff(want, h.kept()); diff != "" {
		h.Errorf("preservation (-want +got):\n%s", diff)
	}
}

const (
	byUser   = "True, Preserved by user."
	bySet    = "True, Preserved by MCM."
	stopped  = "False, Preservation stopped."
	drained  = "Preserved node drained successfully."
	notEmpty = "Preserved node could not be drained."
)

// TestPreservation_AnnotationValues checks each value of the annotation on the Machine and the node, through failure, recovery and
// expiry.
func TestPreservation_AnnotationValues(t *testing.T) {
	const full = "72h0m0s"
	cases := map[string]struct {
		do   func(h *harness)
		want kept
	}{
		"now": {func(h *harness) { h.preserve("now") }, kept{Own: "now", Expiry: full, Scale: "true", Condition: byUser}},
		"now, failed": {func(h *harness) { h.fail(); h.preserve("now") }, kept{
			Own: "now", Expiry: full, Scale: "true", Tainted: true, Condition: byUser, Message: drained,
		}},
		"now, failed later": {func(h *harness) { h.preserve("now"); h.Settle(); h.fail() }, kept{
			Own: "now", Expiry: "71h50m0s", Scale: "true", Tainted: true, Condition: byUser, Message: drained,
		}},
		"now, recovered": {func(h *harness) { h.preserve("now"); h.Settle(); h.fail(); h.join(preservedAnd(h, ready)...) }, kept{
			Own: "now", Expiry: "71h50m0s", Scale: "true", Condition: byUser,
		}},
		"now, on the node":              {func(h *harness) { h.preserveNode("now") }, kept{Node: "now", Last: "now", Expiry: full, Scale: "true", Condition: byUser}},
		"now, removed":                  {func(h *harness) { h.preserve("now"); h.Settle(); h.preserve("") }, kept{Condition: stopped}},
		"now, then false":               {func(h *harness) { h.preserve("now"); h.Settle(); h.preserve("false") }, kept{Own: "false", Condition: stopped}},
		"now, expired":                  {func(h *harness) { h.preserve("now"); h.Settle(); h.SettleAfter(preserveTimeout) }, kept{Condition: stopped}},
		"on the node, removed":          {func(h *harness) { h.preserveNode("now"); h.Settle(); h.preserveNode("") }, kept{Condition: stopped}},
		"on the node, false":            {func(h *harness) { h.preserveNode("now"); h.Settle(); h.preserveNode("false") }, kept{Node: "false", Last: "false", Condition: stopped}},
		"on the node, expired":          {func(h *harness) { h.preserveNode("now"); h.Settle(); h.SettleAfter(preserveTimeout) }, kept{Condition: stopped}},
		"on both":                       {func(h *harness) { h.preserve("when-failed"); h.preserveNode("now") }, kept{Node: "now", Last: "now", Expiry: full, Scale: "true", Condition: byUser}},
		"removed while manager is down": {func(h *harness) { h.preserveNode("now"); h.Settle(); h.preserveNode(""); h.restart() }, kept{Condition: stopped}},
		"when failed":                   {func(h *harness) { h.preserve("when-failed") }, kept{Own: "when-failed"}},
		"when failed, failed": {func(h *harness) { h.preserve("when-failed"); h.fail() }, kept{
			Own: "when-failed", Expiry: full, Scale: "true", Tainted: true, Condition: byUser, Message: drained,
		}},
		"when failed, on the node": {func(h *harness) { h.preserveNode("when-failed"); h.fail() }, kept{
			Node: "when-failed", Last: "when-failed", Expiry: full, Scale: "true", Tainted: true, Condition: byUser, Message: drained,
		}},
		"when failed, recovered": {func(h *harness) { h.preserve("when-failed"); h.fail(); h.join(preservedAnd(h, ready)...) }, kept{Own: "when-failed", Condition: stopped}},
		"when failed, expired":   {func(h *harness) { h.preserve("when-failed"); h.fail(); h.SettleAfter(preserveTimeout) }, kept{Condition: stopped}},
		"auto": {func(h *harness) { h.fail(); h.preserve("auto-preserved") }, kept{
			Own: "auto-preserved", Expiry: full, Scale: "true", Tainted: true, Condition: bySet, Message: drained,
		}},
		"auto, recovered": {func(h *harness) {
			h.fail()
			h.preserve("auto-preserved")
			h.Settle()
			h.join(preservedAnd(h, ready)...)
		}, kept{Condition: stopped}},
		"auto, running":          {func(h *harness) { h.preserve("auto-preserved") }, kept{}},
		"false":                  {func(h *harness) { h.preserve("false"); h.fail() }, kept{Own: "false"}},
		"nonsense":               {func(h *harness) { h.preserve("please"); h.fail() }, kept{Own: "please"}},
		"invalid on the node":    {func(h *harness) { h.preserveNode("True"); h.fail() }, kept{Node: "True"}},
		"node gone":              {func(h *harness) { h.preserve("now"); h.Settle(); h.dropNode() }, kept{Own: "now", Expiry: full}},
		"annotated node deleted": {func(h *harness) { h.preserveNode("now"); h.Settle(); h.dropNode() }, kept{}},
		"own timeout": {func(h *harness) {
			change(h, h.machine(), func(m *v1alpha1.Machine) {
				m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachinePreserveTimeout: &metav1.Duration{Duration: time.Hour}}
				setPreserve(m, "now")
			})
		}, kept{Own: "now", Expiry: "1h0m0s", Scale: "true", Condition: byUser}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newPreserving(t)
			tc.do(h)
			h.Settle()
			h.wantKept(tc.want)
			h.Writes = nil
			h.takeEvents()
			h.Clock.Step(2 * time.Second)
			h.Settle()
			if len(h.Writes) != 0 || len(h.takeEvents()) != 0 {
				t.Errorf("the passes do not settle:\n%s", h.LastWrites())
			}
		})
	}
}

// preservedAnd returns conditions like a kubelet, which keeps the conditions that others set.
func preservedAnd(h *harness, conditions ...corev1.NodeCondition) []corev1.NodeCondition {
	return append(conditions, *noderef.Condition(h.node().Status.Conditions, v1alpha1.NodePreserved))
}

// TestPreservation_Writes checks that a preservation needs no more writes than with MCM, and that other Machines
// cause none.
func TestPreservation_Writes(t *testing.T) {
	cases := map[string]struct {
		before, do func(h *harness)
		want       []string
	}{
		"now (MCM: 4)": {nil, func(h *harness) { h.preserve("now") },
			[]string{"patch Node", "patch status of Node", "patch status of Machine"}},
		"failed (MCM: 6)": {func(h *harness) { h.preserve("when-failed"); h.join(notReady) }, func(h *harness) { h.SettleAfter(healthTimeout) },
			[]string{"patch Node", "patch status of Node", "patch status of Machine"}},
		"removed (MCM: 4)": {func(h *harness) { h.preserve("now") }, func(h *harness) { h.preserve("") },
			[]string{"patch Node", "patch status of Node", "patch status of Machine"}},
		"expired": {func(h *harness) { h.preserve("now") }, func(h *harness) { h.SettleAfter(preserveTimeout) },
			[]string{"patch Node", "patch status of Node", "patch Machine", "patch status of Machine"}},
		"not preserved": {func(h *harness) { h.join(notReady) }, func(h *harness) { h.SettleAfter(healthTimeout) },
			[]string{"patch status of Machine"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newPreserving(t)
			if tc.before != nil {
				tc.before(h)
			}
			h.Settle()
			h.Writes = nil
			tc.do(h)
			h.Settle()
			var got []string
			for _, made := range h.Writes {
				got = append(got, made.What)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPreservation_DrainsFailedNode checks that the node of a preserved Machine is drained without a cordon once for each failure
// of the Machine.
func TestPreservation_DrainsFailedNode(t *testing.T) {
	h := newPreserving(t)
	d := h.draining(forPod("web"))
	h.preserve("when-failed")
	h.fail()
	h.wantKept(kept{Own: "when-failed", Expiry: "72h0m0s", Scale: "true", Tainted: true})
	d.reports = []drain.Report{misconfigured()}
	h.Settle()
	h.wantKept(kept{Own: "when-failed", Expiry: "72h0m0s", Scale: "true", Tainted: true, Condition: "False, Preserved by user.", Message: notEmpty})
	if events := h.takeEvents(); !slices.ContainsFunc(events, func(e string) bool { return strings.Contains(e, "cannot be drained yet") }) {
		t.Errorf("events %q, want one about the failed drain", events)
	}
	d.reports = []drain.Report{emptied}
	h.Settle()
	h.wantKept(kept{Own: "when-failed", Expiry: "72h0m0s", Scale: "true", Tainted: true, Condition: byUser, Message: drained})
	if h.node().Spec.Unschedulable {
		t.Error("the node was cordoned")
	}
	if len(d.forgotten) == 0 {
		t.Error("the state of the drain was not discarded")
	}
	before := len(d.requests)
	h.Clock.Step(time.Minute)
	h.Settle()
	if len(d.requests) != before {
		t.Error("a drained node is drained again")
	}
	h.join(preservedAnd(h, ready)...)
	h.Settle()
	h.Clock.Step(time.Minute)
	h.fail()
	if len(d.requests) == before {
		t.Error("the node was not drained after the second failure")
	}
}

// TestPreservation_DrainIsForced checks that a drain is forced by MCM's label or by the drain timeout, which begins
// with the preservation.
func TestPreservation_DrainIsForced(t *testing.T) {
	lost := notReady
	cases := map[string]struct {
		given func(h *harness)
		after time.Duration
		want  drain.Force
	}{
		"in time": {func(*harness) {}, time.Minute, drain.NotForced},
		"timeout": {func(*harness) {}, time.Hour, drain.ForceDeadline},
		"by a label": {func(h *harness) {
			change(h, h.machine(), func(m *v1alpha1.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelKeyForceDrain, "True") })
		}, 0, drain.ForceRequested},
		"by a label that means something else": {func(h *harness) {
			change(h, h.machine(), func(m *v1alpha1.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelKeyForceDrain, "true") })
		}, 0, drain.NotForced},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newPreserving(t)
			d := h.draining(forPod("web"))
			h.controller.Drain.Timeout = time.Hour
			lost.LastTransitionTime = metav1.NewTime(h.Clock.Now().Add(1000 * time.Hour)) // so that its age does not force the drain
			h.join(lost)
			h.preserve("when-failed")
			h.Settle()
			h.SettleAfter(healthTimeout)
			tc.given(h)
			h.Settle()
			h.SettleAfter(tc.after)
			if got := d.requests[len(d.requests)-1].Force; got != tc.want {
				t.Errorf("force %q, want %q", got, tc.want)
			}
		})
	}
}

// TestPreservation_SurvivesRefusedNodeWrites checks that a Machine is preserved even if the API server refuses writes to its
// node, and that a preservation stops only after its marks were removed.
func TestPreservation_SurvivesRefusedNodeWrites(t *testing.T) {
	h := newPreserving(t)
	refused := func(made lockstep.Write) error {
		if strings.Contains(made.What, "Node") {
			return errDown
		}
		return nil
	}
	h.Refuse = refused
	h.preserve("now")
	_, _ = h.Reconciler.Reconcile(t.Context(), h.Request()) // the pass fails
	if h.machine().Status.CurrentStatus.PreserveExpiryTime == nil {
		t.Error("the Machine is not preserved")
	}
	h.Refuse = nil
	h.Settle()
	h.wantKept(kept{Own: "now", Expiry: "72h0m0s", Scale: "true", Condition: byUser})
	h.Refuse = refused
	h.preserve("")
	_, _ = h.Reconciler.Reconcile(t.Context(), h.Request()) // the pass fails
	if h.machine().Status.CurrentStatus.PreserveExpiryTime == nil {
		t.Error("the preservation stopped before its marks were removed")
	}
	h.Refuse = nil
	h.Settle()
	h.wantKept(kept{Condition: stopped})
}

// TestPreservation_InvalidValueIsReportedOnce checks that an invalid value of the annotation causes one event and no other passes.
func TestPreservation_InvalidValueIsReportedOnce(t *testing.T) {
	h := newPreserving(t)
	for _, value := range []string{"true", "NOW", " now", strings.Repeat("x", 10_000)} {
		h.preserve(value)
		h.Settle()
		h.Clock.Step(time.Minute)
		h.Settle()
		events := h.takeEvents()
		if len(events) != 1 || !strings.Contains(events[0], "InvalidPreserveValue") || len(events[0]) > maxEventMessage {
			t.Errorf("events for %.20q: %q, want one", value, events)
		}
	}
	if len(h.Writes) != 0 {
		t.Errorf("writes:\n%s", h.LastWrites())
	}
}

// TestPreservation_ContinuesWithoutTarget checks that a preservation continues while the target cluster is unavailable,
// since the node's annotation cannot be read.
func TestPreservation_ContinuesWithoutTarget(t *testing.T) {
	h := newPreserving(t)
	h.preserveNode("now")
	h.Settle()
	h.target.since = time.Time{}
	h.restart()
	h.controller.PreserveTimeout = preserveTimeout
	h.Clock.Step(time.Hour)
	h.Pass()
	if got := h.kept(); got.Expiry != "71h0m0s" || got.Last != "now" {
		t.Errorf("%+v", got)
	}
}

// TestPreservation_StopsAtDeletion checks that the deletion of a Machine stops its preservation.
func TestPreservation_StopsAtDeletion(t *testing.T) {
	h := newPreserving(t)
	h.preserve("now")
	h.Settle()
	h.ignoreDeletes(true)
	h.delete()
	h.Settle()
	if got := h.machine().Status.CurrentStatus; got.Phase != v1alpha1.MachineTerminating || got.PreserveExpiryTime != nil {
		t.Errorf("%+v", got)
	}
}
