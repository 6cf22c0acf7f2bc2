package machine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// Labels of a node that is updated in place.
var (
	asCandidate  = map[string]string{v1alpha1.LabelKeyNodeCandidateForUpdate: "true"}
	asSelected   = map[string]string{v1alpha1.LabelKeyNodeCandidateForUpdate: "true", v1alpha1.LabelKeyNodeSelectedForUpdate: "true"}
	asSuccessful = map[string]string{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateSuccessful}
	asFailed     = map[string]string{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateFailed}
)

// label adds labels to the node, like the MachineDeployment controller, a user or the agent.
func (h *harness) label(labels map[string]string) {
	h.Helper()
	change(h, h.node(), func(n *corev1.Node) {
		for key, value := range labels {
			metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
		}
	})
}

// unlabel removes labels from the node.
func (h *harness) unlabel(keys ...string) {
	h.Helper()
	change(h, h.node(), func(n *corev1.Node) {
		for _, key := range keys {
			delete(n.Labels, key)
		}
	})
}

// updateReason returns the reason of the node's condition InPlaceUpdate. It is empty if the node does not have the
// condition.
func updateReason(conditions []corev1.NodeCondition) string {
	for _, condition := range conditions {
		if condition.Type == v1alpha1.NodeInPlaceUpdate {
			return condition.Reason
		}
	}
	return ""
}

// wantUpdate checks the condition of the node, its copy on the Machine, and the Machine's phase.
func (h *harness) wantUpdate(reason string, phase v1alpha1.MachinePhase) {
	h.Helper()
	status := h.machine().Status
	if got := updateReason(h.node().Status.Conditions); got != reason || updateReason(status.Conditions) != reason || status.CurrentStatus.Phase != phase {
		h.Fatalf("condition %q, in the Machine %q, phase %s; want %q and %s. Writes:\n%s",
			got, updateReason(status.Conditions), status.CurrentStatus.Phase, reason, phase, h.LastWrites())
	}
}

// updating advances the Machine until its node is ready for the update.
func (h *harness) updating() {
	h.Helper()
	h.running()
	h.label(asSelected)
	h.Settle()
	h.wantUpdate(v1alpha1.ReadyForUpdate, v1alpha1.MachineInPlaceUpdating)
}

// recordedWrite is a recorded write of MCM, its machine controller, or the agent.
type recordedWrite struct {
	By, Verb, Resource, Subresource string
	Body                            struct {
		Metadata metav1.ObjectMeta
		Spec     corev1.NodeSpec
		Status   json.RawMessage
	}
}

func recordedWrites(t *testing.T) []recordedWrite {
	t.Helper()
	content, err := os.ReadFile("testdata/inplace-writes.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var writes []recordedWrite
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		var write recordedWrite
		if err := json.Unmarshal(lines.Bytes(), &write); err != nil {
			t.Fatal(err)
		}
		writes = append(writes, write)
	}
	return writes
}

// trace contains the states that the writes of an update contained, without repetitions and times.
type trace struct {
	conditions []corev1.NodeCondition
	status     []v1alpha1.MachineStatus
	// nodes and machines count the writes.
	nodes, machines int
}

func (tr *trace) node(conditions []corev1.NodeCondition) {
	tr.nodes++
	for _, condition := range conditions {
		condition.LastTransitionTime = metav1.Time{}
		if condition.Type == v1alpha1.NodeInPlaceUpdate && !slices.Contains(tr.conditions, condition) {
			tr.conditions = append(tr.conditions, condition)
		}
	}
}

func (tr *trace) machine(status v1alpha1.MachineStatus, name string) {
	tr.machines++
	state := v1alpha1.MachineStatus{LastOperation: status.LastOperation, CurrentStatus: status.CurrentStatus}
	state.LastOperation.LastUpdateTime, state.CurrentStatus.LastUpdateTime = metav1.Time{}, metav1.Time{}
	state.LastOperation.Description = strings.ReplaceAll(state.LastOperation.Description, name, machineName)
	if state.LastOperation.Type == v1alpha1.MachineOperationCreate { // it contains the join duration
		state.LastOperation.Description = "joined"
	}
	if n := len(tr.status); n == 0 || !cmp.Equal(tr.status[n-1], state) {
		tr.status = append(tr.status, state)
	}
}

// TestInPlaceUpdate_MatchesRecordingsOfMCM repeats the recorded writes of MCM's deployment controller and of an agent. It checks that
// the node and the Machine go through the same states as with MCM's machine controller, without more writes.
func TestInPlaceUpdate_MatchesRecordingsOfMCM(t *testing.T) {
	h := newHarness(t)
	h.running()
	var want, got trace
	got.machine(h.machine().Status, machineName)
	for _, write := range recordedWrites(t) {
		switch {
		case write.By == "mc" && write.Resource == "machines":
			var status v1alpha1.MachineStatus
			if err := json.Unmarshal(write.Body.Status, &status); err != nil {
				t.Fatal(err)
			}
			want.machine(status, "inplace-75dd5-lg22d")
		case write.By == "mc":
			var status corev1.NodeStatus
			if err := json.Unmarshal(write.Body.Status, &status); err != nil {
				t.Fatal(err)
			}
			want.node(status.Conditions)
		case write.Resource == "nodes":
			h.playBack(write, &got)
		}
	}
	if diff := cmp.Diff(want.conditions, got.conditions); diff != "" {
		t.Errorf("conditions of the node (-MCM +ours):\n%s", diff)
	}
	if diff := cmp.Diff(want.status, got.status); diff != "" {
		t.Errorf("status of the Machine (-MCM +ours):\n%s", diff)
	}
	t.Logf("writes of MCM: %d of the node, %d of the Machine; ours: %d, %d", want.nodes, want.machines, got.nodes, got.machines)
	if got.nodes > want.nodes || got.machines > want.machines {
		t.Errorf("%d writes of the node and %d of the Machine, want at most %d and %d as in MCM", got.nodes, got.machines, want.nodes, want.machines)
	}
	h.wantUpdate(v1alpha1.UpdateSuccessful, v1alpha1.MachineRunning)
}

// apply applies the write to a node. A patch adds labels; an update replaces everything that belongs to updates.
func (w recordedWrite) apply(n *corev1.Node) {
	if w.Verb != "patch" {
		for _, key := range []string{v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult} {
			delete(n.Labels, key)
		}
		n.Spec.Unschedulable, n.Spec.Taints = w.Body.Spec.Unschedulable, w.Body.Spec.Taints
	}
	for key, value := range w.Body.Metadata.Labels {
		if strings.Contains(key, "update") {
			metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
		}
	}
}

// playBack applies a recorded write of another program, settles, and traces the writes that follow.
func (h *harness) playBack(write recordedWrite, got *trace) {
	h.Helper()
	change(h, h.node(), write.apply)
	for range 20 {
		h.Writes = nil
		h.Clock.Step(time.Second)
		h.Pass()
		if len(h.Writes) == 0 {
			return
		}
		for _, made := range h.Writes {
			switch {
			case made.What == "patch status of Machine":
				got.machine(h.machine().Status, machineName)
			case strings.HasSuffix(made.What, "Node"):
				var body corev1.Node
				if err := json.Unmarshal([]byte(made.Body), &body); err != nil {
					h.Fatal(err)
				}
				for i := range body.Status.Conditions { // a patch has only the changes
					body.Status.Conditions[i].Status = updateCondition(h.node()).Status
				}
				got.node(body.Status.Conditions)
			}
		}
	}
	h.Fatalf("the update does not settle:\n%s", h.LastWrites())
}

// TestInPlaceUpdate_LifecycleOnServer runs an update with a real API server, since a fake client lacks resource versions and
// patches of lists. The manager restarts after each pass.
func TestInPlaceUpdate_LifecycleOnServer(t *testing.T) {
	h := newServerHarness(t)
	h.running()
	h.draining(emptied)
	settle := func() {
		for range 8 {
			h.Pass()
			h.restart()
			h.draining(emptied)
		}
	}
	h.label(asCandidate)
	settle()
	h.wantUpdate(v1alpha1.CandidateForUpdate, v1alpha1.MachineRunning)
	if h.node().Spec.Unschedulable {
		t.Error("a candidate is cordoned")
	}
	h.label(asSelected)
	settle()
	h.wantUpdate(v1alpha1.ReadyForUpdate, v1alpha1.MachineInPlaceUpdating)
	if n := h.node(); !n.Spec.Unschedulable || len(n.Status.Conditions) != 2 {
		t.Errorf("cordoned %v, conditions %v", n.Spec.Unschedulable, n.Status.Conditions)
	}
	h.join(append(h.node().Status.Conditions[:0:0], *updateCondition(h.node()), notReady)...) // the node restarts
	settle()
	h.wantUpdate(v1alpha1.ReadyForUpdate, v1alpha1.MachineInPlaceUpdating)
	h.join(*updateCondition(h.node()), ready)
	h.label(asSuccessful)
	settle()
	h.wantUpdate(v1alpha1.UpdateSuccessful, v1alpha1.MachineRunning)
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateSuccessful, "successfully re-joined the cluster"})

	// The next update of the same node.
	h.unlabel(v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult)
	h.Writes = nil
	h.Settle()
	if len(h.Writes) != 0 {
		t.Errorf("writes after the update:\n%s", h.LastWrites())
	}
	h.label(asCandidate)
	settle()
	h.wantUpdate(v1alpha1.CandidateForUpdate, v1alpha1.MachineRunning)
}

func updateCondition(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == v1alpha1.NodeInPlaceUpdate {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// TestInPlaceUpdate_PhasePrecedesReadyForUpdate checks that the Machine is InPlaceUpdating before its node becomes ready for the update,
// even if a write fails.
func TestInPlaceUpdate_PhasePrecedesReadyForUpdate(t *testing.T) {
	for failing := range 7 {
		h := newHarness(t)
		h.running()
		h.label(asSelected)
		written := 0
		h.Refuse = func(made lockstep.Write) error {
			written++
			if strings.Contains(made.Body, v1alpha1.ReadyForUpdate) && strings.HasSuffix(made.What, "Node") && h.machine().Status.CurrentStatus.Phase != v1alpha1.MachineInPlaceUpdating {
				t.Errorf("failure of write %d: the node is ready in phase %s", failing, h.machine().Status.CurrentStatus.Phase)
			}
			if written == failing+1 {
				return errDown
			}
			return nil
		}
		for range 12 {
			if _, err := h.controller.Reconcile(t.Context(), h.Request()); err != nil && !errors.Is(err, errDown) {
				t.Fatal(err)
			}
		}
		h.wantUpdate(v1alpha1.ReadyForUpdate, v1alpha1.MachineInPlaceUpdating)
	}
}

// TestInPlaceUpdate_FailureIsReported checks that the condition and the last operation contain the agent's message, that a corrected
// label takes effect, and that the Machine is replaced if the failure persists.
func TestInPlaceUpdate_FailureIsReported(t *testing.T) {
	h := newHarness(t)
	h.updating()
	change(h, h.node(), func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.AnnotationKeyMachineUpdateFailedReason, "no space left")
	})
	h.label(asFailed)
	h.Settle()
	h.wantUpdate(v1alpha1.UpdateFailed, v1alpha1.MachineInPlaceUpdateFailed)
	if got := updateCondition(h.node()).Message; got != "Node in-place update failed: no space left" {
		t.Errorf("message %q", got)
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.MachineOperationInPlaceUpdate, v1alpha1.MachineStateFailed, "failed to update dependencies: no space left"})
	if !h.node().Spec.Unschedulable {
		t.Error("the node whose update failed was uncordoned")
	}
	h.label(asSuccessful)
	h.Settle()
	h.wantUpdate(v1alpha1.UpdateSuccessful, v1alpha1.MachineRunning)

	h = newHarness(t)
	h.updating()
	h.label(asFailed)
	h.Settle()
	h.SettleAfter(healthTimeout + time.Second)
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineFailed, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateFailed, "health checks failing"})
	h.restart()
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
		t.Errorf("phase %s, want no recovery because of a healthy node", got)
	}
	h.label(asSuccessful)
	h.Settle()
	h.wantUpdate(v1alpha1.UpdateSuccessful, v1alpha1.MachineRunning)
}

// TestInPlaceUpdate_TimesOut checks that an update fails after its own timeout if the agent never reports or the node
// is missing, and that a late success is accepted.
func TestInPlaceUpdate_TimesOut(t *testing.T) {
	own := 7 * time.Minute
	cases := map[string]struct {
		timeout time.Duration
		machine func(*v1alpha1.Machine)
		given   func(h *harness)
	}{
		"flag": {timeout: timeouts.DefaultInPlaceUpdate},
		"own word": {timeout: own, machine: func(m *v1alpha1.Machine) {
			m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineInPlaceUpdateTimeout: &metav1.Duration{Duration: own}}
		}},
		"not ready":   {timeout: timeouts.DefaultInPlaceUpdate, given: func(h *harness) { h.join(*updateCondition(h.node()), notReady) }},
		"node absent": {timeout: timeouts.DefaultInPlaceUpdate, given: func(h *harness) { h.dropNode() }},
		"restarted":   {timeout: timeouts.DefaultInPlaceUpdate, given: func(h *harness) { h.restart() }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running(func(m *v1alpha1.Machine) {
				if tc.machine != nil {
					tc.machine(m)
				}
			})
			h.label(asSelected)
			h.Settle()
			if tc.given != nil {
				tc.given(h)
			}
			h.wait(tc.timeout - time.Minute)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineInPlaceUpdating {
				t.Fatalf("phase %s a minute before the timeout", got)
			}
			h.wait(time.Minute + time.Second)
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.MachineOperationInPlaceUpdate, v1alpha1.MachineStateFailed, "has not been updated in place within"})
			if h.node() == nil {
				h.wait(healthTimeout + time.Second)
				if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
					t.Errorf("phase %s, want Failed", got)
				}
				return
			}
			h.join(*updateCondition(h.node()), ready)
			h.label(asSuccessful)
			h.Settle()
			h.wantUpdate(v1alpha1.UpdateSuccessful, v1alpha1.MachineRunning)
		})
	}
}

// TestInPlaceUpdate_TimeoutRestartsAfterOutage checks that the timeout of an update restarts after an outage, since
// the result of the agent cannot be read during it.
func TestInPlaceUpdate_TimeoutRestartsAfterOutage(t *testing.T) {
	t.Attr("fault", "The target API server is unavailable for an hour during an in-place update")
	t.Attr("outcome", "The update timeout restarts after the outage")
	h := newHarness(t)
	h.controller.Health.OutagePeriod = time.Minute
	down := false
	h.controller.Target = targetView{h.target, awayClient{h.controller.Target.Client(), &down}}
	h.updating()
	h.wait(time.Minute)
	down = true
	h.wait(3 * timeouts.DefaultInPlaceUpdate)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineInPlaceUpdating {
		t.Fatalf("phase %s while the target cluster is unavailable", got)
	}
	down = false
	h.wait(timeouts.DefaultInPlaceUpdate - 2*time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineInPlaceUpdating {
		t.Fatalf("phase %s soon after the outage", got)
	}
	h.wait(4 * time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineInPlaceUpdateFailed {
		t.Fatalf("phase %s, want InPlaceUpdateFailed", got)
	}
}

// TestInPlaceUpdate_UnhealthyNodeIsNotReplaced checks that the health of a node does not matter while the node is updated; only
// the update timeout applies.
func TestInPlaceUpdate_UnhealthyNodeIsNotReplaced(t *testing.T) {
	h := newHarness(t)
	h.updating()
	for _, status := range []string{"False", "Unknown"} {
		h.join(*updateCondition(h.node()), condition("Ready", status), condition("KernelDeadlock", "True"))
		h.wait(healthTimeout - time.Minute)
		if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineInPlaceUpdating {
			t.Fatalf("phase %s", got)
		}
	}
	h.label(asSuccessful) // before the node is ready
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineUnknown {
		t.Errorf("phase %s, want the health timeout to apply after a success", got)
	}
	h.join(*updateCondition(h.node()), ready)
	h.Settle()
	h.wantUpdate(v1alpha1.UpdateSuccessful, v1alpha1.MachineRunning)
}

// TestInPlaceUpdate_DrainsNode checks that the drain has its own start and its own label that forces it, that the status
// reports what delays it, and that the health of the node still matters.
func TestInPlaceUpdate_DrainsNode(t *testing.T) {
	h := newHarness(t)
	h.running()
	d := h.draining(forPod("web"))
	h.Clock.Step(time.Hour)
	h.label(asSelected)
	h.Settle()
	begun := h.Clock.Now()
	h.wantUpdate(v1alpha1.SelectedForUpdate, v1alpha1.MachineRunning)
	if !h.node().Spec.Unschedulable {
		t.Error("the node was not cordoned")
	}
	got := d.requests[len(d.requests)-1]
	want := drain.Request{Machine: h.Key, Node: h.nodeName(), Since: got.Since, Timeout: DefaultDrainTimeout, MaxEvictRetries: DefaultMaxEvictRetries}
	if diff := cmp.Diff(want, got); diff != "" || begun.Sub(got.Since) > time.Minute {
		t.Errorf("condition since %v, drain since %v; request (-want +got):\n%s", begun, got.Since, diff)
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, "joined the cluster"})

	d.reports = []drain.Report{misconfigured()}
	h.Settle()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationDrainNode, v1alpha1.MachineStateProcessing, "misconfigured and requires zero voluntary evictions"})
	d.reports = []drain.Report{forPod("web")}
	h.Settle()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationDrainNode, v1alpha1.MachineStateProcessing, "Draining the node"})

	h.join(*updateCondition(h.node()), notReady)
	h.Settle()
	h.wantUpdate(v1alpha1.SelectedForUpdate, v1alpha1.MachineUnknown)
	h.join(*updateCondition(h.node()), ready)
	h.Settle()
	h.wantForcedAfter(d, DefaultDrainTimeout-h.Clock.Since(got.Since))

	d.reports = []drain.Report{forcedFor(drain.ForceDeadline)}
	h.Settle()
	h.wantUpdate(v1alpha1.ReadyForUpdate, v1alpha1.MachineInPlaceUpdating)
	if d.deleted != 0 {
		t.Error("the volume attachments were deleted")
	}
	if len(d.forgotten) == 0 {
		t.Error("the drainer's state was not discarded")
	}
}

func TestInPlaceUpdate_DrainIsForced(t *testing.T) {
	cases := map[string]struct {
		key, value string
		want       drain.Force
	}{
		"the label":        {v1alpha1.LabelKeyForceDrain, "True", drain.ForceRequested},
		"another spelling": {v1alpha1.LabelKeyForceDrain, "true", drain.NotForced},
		"of deletions":     {v1alpha1.LabelKeyForceDeletion, "True", drain.NotForced},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			d := h.draining(forPod("web"))
			h.label(asSelected)
			h.Settle()
			change(h, h.machine(), func(m *v1alpha1.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, tc.key, tc.value) })
			h.Settle()
			if got := d.lastForce(t); got != tc.want {
				t.Errorf("forced: %q, want %q", got, tc.want)
			}
		})
	}
}

// TestInPlaceUpdate_FailedForcedDrainIsRetried checks that a failed forced drain restarts, and that the node is not considered empty.
func TestInPlaceUpdate_FailedForcedDrainIsRetried(t *testing.T) {
	h := newHarness(t)
	h.running()
	failing := forcedFor(drain.ForceRequested)
	failing.Failed = misconfigured().Failed
	d := h.draining(failing)
	h.label(asSelected)
	result := h.Settle()
	h.wantUpdate(v1alpha1.SelectedForUpdate, v1alpha1.MachineRunning)
	if result.RequeueAfter <= 0 || result.RequeueAfter > 5*time.Second || len(d.forgotten) == 0 {
		t.Errorf("next pass in %v, state discarded %d times", result.RequeueAfter, len(d.forgotten))
	}
}

// TestInPlaceUpdate_StopsAtDeletion checks that the drain of a deletion has its own start, and that the deletion stops the
// update.
func TestInPlaceUpdate_StopsAtDeletion(t *testing.T) {
	cases := map[string]func(h *harness, d *fakeDrainer){
		"candidate": func(h *harness, _ *fakeDrainer) { h.label(asCandidate); h.Settle() },
		"draining": func(h *harness, d *fakeDrainer) {
			d.reports = []drain.Report{forPod("web")}
			h.label(asSelected)
			h.Settle()
			d.reports = nil
		},
		"updating": func(h *harness, _ *fakeDrainer) { h.label(asSelected); h.Settle() },
		"failed":   func(h *harness, _ *fakeDrainer) { h.label(asSelected); h.Settle(); h.label(asFailed); h.Settle() },
	}
	for name, given := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			d := h.draining()
			given(h, d)
			h.deleteNow()
			h.Settle()
			if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
				t.Error("the deletion is incomplete")
			}
			if last := d.requests[len(d.requests)-1]; !last.Since.Equal(h.Clock.Now()) && h.Clock.Since(last.Since) > time.Minute {
				t.Errorf("the drain of the deletion began at %v", last.Since)
			}
		})
	}
}

// TestInPlaceUpdate_DeletedNodeDeletesMachine checks that the deletion of a node deletes its Machine also during an update.
func TestInPlaceUpdate_DeletedNodeDeletesMachine(t *testing.T) {
	h := newHarness(t)
	h.updating()
	if err := h.target.client.Delete(t.Context(), h.node()); err != nil {
		t.Fatal(err)
	}
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Error("the deletion is incomplete")
	}
}

// TestInPlaceUpdate_AcceptsLabelsInAnyOrder checks that the Machine settles in whatever order users and agents set and remove the
// labels, and that the update completes when all labels are set.
func TestInPlaceUpdate_AcceptsLabelsInAnyOrder(t *testing.T) {
	keys := []string{v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult}
	all := map[string]string{}
	for _, labels := range []map[string]string{asSelected, asSuccessful} {
		for key, value := range labels {
			all[key] = value
		}
	}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for removed := range 4 {
			t.Run(fmt.Sprint(order, removed), func(t *testing.T) {
				h := newHarness(t)
				h.running()
				for step, i := range order {
					h.label(map[string]string{keys[i]: all[keys[i]]})
					h.Settle()
					if step < removed { // set again below
						h.unlabel(keys[i])
						h.Settle()
					}
				}
				for _, i := range order {
					h.label(map[string]string{keys[i]: all[keys[i]]})
					h.Settle()
				}
				h.wantUpdate(v1alpha1.UpdateSuccessful, v1alpha1.MachineRunning)
				h.Writes = nil
				h.restart()
				h.Settle()
				if len(h.Writes) != 0 {
					t.Errorf("unexpected writes:\n%s", h.LastWrites())
				}
			})
		}
	}
}

// TestInPlaceUpdate_MisplacedLabelsAreReported checks that misplaced labels cause one event on the Machine.
func TestInPlaceUpdate_MisplacedLabelsAreReported(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.label(map[string]string{v1alpha1.LabelKeyNodeSelectedForUpdate: "true"})
	h.Settle()
	h.Pass()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "UpdateLabels") || !strings.Contains(events[0], v1alpha1.LabelKeyNodeCandidateForUpdate) {
		t.Errorf("events %q", events)
	}
	if len(h.Writes) != 0 {
		t.Errorf("writes:\n%s", h.LastWrites())
	}
}

// TestInPlaceUpdate_Events checks that each transition of an update causes one event.
func TestInPlaceUpdate_Events(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.label(asCandidate)
	h.Settle()
	h.label(asSelected)
	h.Settle()
	h.label(asSuccessful)
	h.Settle()
	var reasons []string
	for _, e := range h.takeEvents() {
		reasons = append(reasons, strings.Fields(e)[1])
	}
	if diff := cmp.Diff([]string{"UpdateSelected", "UpdateReady", "UpdateSuccessful", "Joined"}, reasons); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestInPlaceUpdate_NoRequestsWithoutLabels checks that there are no requests for updates without labels for them.
func TestInPlaceUpdate_NoRequestsWithoutLabels(t *testing.T) {
	h := newHarness(t)
	d := h.draining()
	h.running()
	reads := 0
	h.controller.Target = targetView{h.target, countReads{h.controller.Target.Client(), &reads}}
	h.Pass()
	if len(h.Writes) != 0 || len(d.requests) != 0 || reads != 1 {
		t.Errorf("%d writes, %d drains, %d reads; want one read, of the node", len(h.Writes), len(d.requests), reads)
	}
}

// TestInPlaceUpdate_WaitsForRunningMachine checks that the update waits until the Machine is Running.
func TestInPlaceUpdate_WaitsForRunningMachine(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Settle()
	h.join(notReady)
	h.Settle()
	h.label(asSelected)
	h.Settle()
	h.wantUpdate(v1alpha1.SelectedForUpdate, v1alpha1.MachinePending)
	if h.node().Spec.Unschedulable {
		t.Error("the node was cordoned before it joined")
	}
	h.join(*updateCondition(h.node()), ready)
	h.Settle()
	h.wantUpdate(v1alpha1.ReadyForUpdate, v1alpha1.MachineInPlaceUpdating)
}

// TestInPlaceUpdate_ContinuesAfterRestore checks that the update of a node continues if the status of its Machine is lost, as in a
// migration of the control plane.
func TestInPlaceUpdate_ContinuesAfterRestore(t *testing.T) {
	h := newHarness(t)
	h.updating()
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Annotations = nil })
	stored := h.machine()
	stored.Status = v1alpha1.MachineStatus{}
	if err := h.control.Status().Update(t.Context(), stored, &client.SubResourceUpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.restart()
	h.Settle()
	h.label(asSuccessful)
	h.Settle()
	h.wantUpdate(v1alpha1.UpdateSuccessful, v1alpha1.MachineRunning)
	if len(h.Driver.VMs()) != 1 {
		t.Errorf("%d VMs", len(h.Driver.VMs()))
	}
}
