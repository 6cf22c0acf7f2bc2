package machine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// fakeDrainer is a Drainer that returns scripted reports. Without a script it is done immediately.
type fakeDrainer struct {
	// reports are returned by the next calls of Drain. The last one is returned repeatedly.
	reports []drain.Report
	// attachments is the number of passes until the attachments are deleted.
	attachments int
	requests    []drain.Request
	deleted     int
	forgotten   []types.NamespacedName
}

func (d *fakeDrainer) Drain(_ context.Context, req drain.Request) (drain.Report, error) {
	d.requests = append(d.requests, req)
	if len(d.reports) == 0 {
		return drain.Report{Done: true, Force: req.Force}, nil
	}
	made := d.reports[0]
	if len(d.reports) > 1 {
		d.reports = d.reports[1:]
	}
	if made.Force == drain.NotForced {
		made.Force = req.Force
	}
	return made, nil
}

func (d *fakeDrainer) IsEmpty(context.Context, string) (bool, error) {
	return len(d.reports) == 0 || d.reports[0].Done, nil
}

func (d *fakeDrainer) DeleteAttachments(context.Context, string) (bool, error) {
	d.deleted++
	return d.deleted > d.attachments, nil
}

func (d *fakeDrainer) Awaiting(string) []types.NamespacedName { return nil }

func (d *fakeDrainer) Refused(string) []types.NamespacedName { return nil }

func (d *fakeDrainer) Forget(machine types.NamespacedName) {
	d.forgotten = append(d.forgotten, machine)
}

// draining gives the controller a drainer.
func (h *harness) draining(reports ...drain.Report) *fakeDrainer {
	d := &fakeDrainer{reports: reports}
	h.controller.Drain.Drainer = d
	return d
}

func forPod(name string) drain.Report {
	return drain.Report{Waiting: []drain.Waiting{{For: drain.ForPod, Pod: types.NamespacedName{Namespace: "shop", Name: name}}}}
}

var emptied = drain.Report{Done: true}

func forcedFor(reason drain.Force) drain.Report { return drain.Report{Done: true, Force: reason} }

// misconfigured returns the report for a disruption budget that never allows an eviction.
func misconfigured() drain.Report {
	made := forPod("db")
	made.Failed = []drain.Failure{{
		Pod:  types.NamespacedName{Namespace: "shop", Name: "db"},
		Text: `error while evicting pod "db": pod disruption budget shop/db is misconfigured and requires zero voluntary evictions`,
	}}
	return made
}

// terminationCondition returns the node's condition Terminating, or nil.
func terminationCondition(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == v1alpha1.NodeTerminationCondition {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// TestMachine_NodeIsDrainedBeforeVMIsDeleted checks that the node is marked, cordoned and drained before its VM is deleted. Without
// Pods, this takes one pass and seven requests.
func TestMachine_NodeIsDrainedBeforeVMIsDeleted(t *testing.T) {
	h := newHarness(t)
	h.running()
	d := h.draining(forPod("web"), emptied)
	h.delete()
	h.Pass()
	n := h.node()
	if got := terminationCondition(n); got == nil || got.Status != corev1.ConditionTrue || got.Reason != v1alpha1.NodeScaleDown || !n.Spec.Unschedulable {
		t.Errorf("condition %+v, cordoned %v", got, n.Spec.Unschedulable)
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, "waiting for pod shop/web to terminate. Initiate node drain"})
	if len(h.Tasks) != 0 || len(h.methods()) != 0 {
		t.Fatal("the VM was deleted before its Pods")
	}
	h.Pass()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, "Drain successful. Initiate VM deletion"})
	drains := len(d.requests)
	h.ignoreDeletes(true)
	h.Settle()
	if len(d.requests) != drains {
		t.Error("the node is drained while its VM is being deleted")
	}
	h.ignoreDeletes(false)
	h.SettleAfter(time.Minute)
	if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
		t.Error("the deletion is incomplete")
	}
	if d.deleted != 0 {
		t.Error("the attachments were deleted although the drain was not forced")
	}
	if len(d.forgotten) == 0 {
		t.Error("the drainer's state was not discarded")
	}
}

// TestMachine_DrainRequestPrecedence checks which setting takes precedence, and that a change takes effect in the next pass.
func TestMachine_DrainRequestPrecedence(t *testing.T) {
	retries := int32(7)
	own := func(timeout time.Duration) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) {
			m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineDrainTimeout: &metav1.Duration{Duration: timeout}, MaxEvictRetries: &retries}
		}
	}
	aged := func(kind, status string, age time.Duration) func(h *harness) {
		return func(h *harness) {
			c := condition(kind, status)
			c.LastTransitionTime = metav1.NewTime(h.Clock.Now().Add(-age))
			h.join(c)
		}
	}
	label := func(value string) func(h *harness) {
		return func(h *harness) {
			change(h, h.machine(), func(m *v1alpha1.Machine) {
				metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelKeyForceDeletion, value)
			})
		}
	}
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		given   func(h *harness)
		timeout time.Duration
		retries int32
		force   drain.Force
	}{
		"flags":                         {timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries},
		"own word":                      {machine: own(3 * time.Minute), timeout: 3 * time.Minute, retries: 7},
		"force":                         {given: label("True"), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries, force: drain.ForceRequested},
		"force, another spelling":       {given: label("1"), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries, force: drain.ForceRequested},
		"force denied":                  {given: label("false"), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries},
		"force, not a bool":             {given: label("please"), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries},
		"not ready for 6 minutes":       {given: aged("Ready", "False", 6*time.Minute), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries, force: drain.ForceNotReady},
		"not ready for 4 minutes":       {given: aged("Ready", "Unknown", 4*time.Minute), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries},
		"read-only for 6 minutes":       {given: aged("ReadonlyFilesystem", "True", 6*time.Minute), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries, force: drain.ForceReadonlyFilesystem},
		"read-only for 4 minutes":       {given: aged("ReadonlyFilesystem", "True", 4*time.Minute), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries},
		"not read-only for a long time": {given: aged("ReadonlyFilesystem", "False", time.Hour), timeout: DefaultDrainTimeout, retries: DefaultMaxEvictRetries},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running(func(m *v1alpha1.Machine) {
				if tc.machine != nil {
					tc.machine(m)
				}
			})
			d := h.draining(forPod("web"))
			h.delete()
			h.Clock.Step(time.Hour) // the manager was running when the conditions began
			h.Pass()
			if d.requests[0].Force != drain.NotForced {
				t.Fatalf("forced at the start: %s", d.requests[0].Force)
			}
			if tc.given != nil {
				tc.given(h)
			}
			h.Pass()
			got := d.requests[len(d.requests)-1]
			want := drain.Request{
				Machine: h.Key, Node: h.nodeName(), Since: h.machine().DeletionTimestamp.Time,
				Timeout: tc.timeout, MaxEvictRetries: tc.retries, Force: tc.force,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMachine_ForcedDrainIsScheduled checks that a pass is scheduled for when a condition forces the drain, since no event
// occurs then.
func TestMachine_ForcedDrainIsScheduled(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.draining(forPod("web"))
	c := notReady
	c.LastTransitionTime = metav1.NewTime(h.Clock.Now())
	h.join(c)
	h.delete()
	if got := h.Pass().RequeueAfter; got <= 0 || got > 6*time.Minute {
		t.Errorf("the next pass is due in %v", got)
	}
}

// TestMachine_ForcedDrainDeletesAttachments checks that a forced drain reports the remaining Pods, and that the volumes are detached before
// the VM is deleted.
func TestMachine_ForcedDrainDeletesAttachments(t *testing.T) {
	left := forcedFor(drain.ForceDeadline)
	left.Left = []types.NamespacedName{{Namespace: "shop", Name: "db"}}
	failed := forcedFor(drain.ForceRequested)
	failed.Failed = misconfigured().Failed
	cases := map[string]struct {
		report   drain.Report
		sentence string
		event    string
	}{
		"no pods":     {forcedFor(drain.ForceNotReady), "Force Drain successful. Delete Volume Attachments", "has not been Ready"},
		"pods remain": {left, "Force Drain successful. Delete Volume Attachments", "Pods remaining on the node: 1, including shop/db"},
		"failures":    {failed, "However, since it's a force deletion shall continue deletion of VM. Delete Volume Attachments", "requests it"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			d := h.draining(tc.report)
			d.attachments = 1
			h.delete()
			h.Pass()
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, tc.sentence})
			if len(h.Tasks) != 0 {
				t.Fatal("the VM was deleted before its attachments")
			}
			h.Settle()
			if !h.gone() || d.deleted < 2 {
				t.Errorf("deleted: %v, %d calls of DeleteAttachments", h.gone(), d.deleted)
			}
			events := h.takeEvents()
			if n := len(slices.DeleteFunc(slices.Clone(events), func(e string) bool { return !strings.Contains(e, tc.event) })); n != 1 {
				t.Errorf("events %q, want one with %q", events, tc.event)
			}
		})
	}
}

// TestMachine_DrainFailureIsReported checks that the status has the sentence that Gardener searches for, that one event is sent,
// and that a failure does not force the drain.
func TestMachine_DrainFailureIsReported(t *testing.T) {
	h := newHarness(t)
	h.running()
	d := h.draining(misconfigured())
	h.delete()
	h.Settle()
	h.SettleAfter(time.Minute)
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "Drain failed due to - "})
	got := h.machine().Status.LastOperation.Description
	for _, part := range []string{"misconfigured and requires zero voluntary evictions", "Will retry in next sync. Initiate node drain"} {
		if !strings.Contains(got, part) {
			t.Errorf("description %q lacks %q", got, part)
		}
	}
	if events := h.takeEvents(); len(events) != 1 {
		t.Errorf("events %q, want one", events)
	}
	if len(h.methods()) != 0 || h.node() == nil {
		t.Error("the VM or the node was deleted")
	}
	d.reports = []drain.Report{emptied}
	h.Settle()
	if !h.gone() {
		t.Error("the Machine was not deleted after the Pod was gone")
	}
}

// TestMachine_ForcedPodsAreReported checks that an event names the Pods that were deleted after too many refused
// evictions, although the drain itself is not forced.
func TestMachine_ForcedPodsAreReported(t *testing.T) {
	h := newHarness(t)
	h.running()
	forced := forPod("db")
	forced.Started = []drain.Action{
		{Pod: types.NamespacedName{Namespace: "shop", Name: "web"}},
		{Pod: types.NamespacedName{Namespace: "shop", Name: "db"}, Forced: true, Reason: "its eviction was refused 361 time(s)"},
	}
	d := h.draining(forced, forPod("db"))
	h.delete()
	h.Settle()
	events := h.takeEvents()
	if len(events) != 1 || !strings.Contains(events[0], "shop/db (its eviction was refused 361 time(s))") || strings.Contains(events[0], "web") || !strings.HasPrefix(events[0], "Warning "+reasonForcedDrain) {
		t.Errorf("events %q, want one that names the pod and the reason", events)
	}
	d.reports = []drain.Report{emptied}
	if h.Settle(); d.deleted != 0 {
		t.Error("the attachments were deleted although the drain was not forced")
	}
}

// TestMachine_DrainProgressIsRateLimited checks that the progress of a drain is not written for each Pod.
func TestMachine_DrainProgressIsRateLimited(t *testing.T) {
	h := newHarness(t)
	h.running()
	d := h.draining(forPod("a"))
	h.delete()
	h.Settle()
	h.Writes = nil
	for _, name := range []string{"b", "c", "d", "e"} {
		d.reports = []drain.Report{forPod(name)}
		if got := h.Pass().RequeueAfter; got <= 0 || got > progressInterval {
			t.Errorf("the progress is not written after %v", got)
		}
	}
	if n := count(h.TakeWrites(), "patch status of Machine"); n != 0 {
		t.Errorf("%d writes at the start", n)
	}
	h.SettleAfter(progressInterval)
	if got := h.machine().Status.LastOperation.Description; !strings.Contains(got, "shop/e") {
		t.Errorf("description %q is not the latest", got)
	}
}

// TestMachine_DrainRequiresCordon checks that a node is drained only after it was cordoned, unless the drain is forced.
func TestMachine_DrainRequiresCordon(t *testing.T) {
	for _, what := range []string{"patch status of Node", "patch Node"} {
		for name, forced := range map[string]bool{"normal": false, "forced": true} {
			t.Run(what+", "+name, func(t *testing.T) {
				h := newHarness(t)
				h.running(func(m *v1alpha1.Machine) {
					if forced {
						m.Labels = map[string]string{v1alpha1.LabelKeyForceDeletion: "True"}
					}
				})
				d := h.draining()
				h.Refuse = func(made lockstep.Write) error {
					if made.What == what {
						return errDown
					}
					return nil
				}
				h.delete()
				_, err := h.controller.Reconcile(t.Context(), h.Request())
				if forced {
					if err != nil || len(d.requests) != 1 {
						t.Errorf("%d drains, err %v, want one drain", len(d.requests), err)
					}
					return
				}
				if !errors.Is(err, errDown) || len(d.requests) != 0 {
					t.Errorf("%d drains, err %v, want none and the error", len(d.requests), err)
				}
				wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "Drain failed due to - "})
				h.Refuse = nil
				h.Settle()
				if !h.gone() {
					t.Error("the Machine was not deleted")
				}
			})
		}
	}
}

// TestMachine_TerminatingConditionHasReason checks that the node's condition shows whether its Machine is deleted because it is
// unhealthy or because of a scale-down.
func TestMachine_TerminatingConditionHasReason(t *testing.T) {
	for name, tc := range map[string]struct {
		conditions []corev1.NodeCondition
		want       string
	}{
		"healthy":   {[]corev1.NodeCondition{ready}, v1alpha1.NodeScaleDown},
		"unhealthy": {[]corev1.NodeCondition{notReady}, v1alpha1.NodeUnhealthy},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			h.join(tc.conditions...)
			h.draining(forPod("web"))
			h.delete()
			h.Pass()
			h.join(append(h.node().Status.Conditions, condition("DiskPressure", "True"))...)
			h.Pass()
			if got := terminationCondition(h.node()); got == nil || got.Reason != tc.want {
				t.Errorf("condition %+v, want the unchanged reason %s", got, tc.want)
			}
		})
	}
}

// TestMachine_DrainWaitsForTargetCluster checks that a node that cannot be read is not considered empty, until the target cluster
// responds again or a user forces the drain.
func TestMachine_DrainWaitsForTargetCluster(t *testing.T) {
	for name, release := range map[string]func(h *harness){
		"return": func(h *harness) { h.target.since = h.Clock.Now() },
		"force": func(h *harness) {
			change(h, h.machine(), func(m *v1alpha1.Machine) {
				metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelKeyForceDeletion, "True")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			h.draining()
			h.target.since = time.Time{}
			h.delete()
			if got := h.Settle().RequeueAfter; got <= 0 || got > targetRetry {
				t.Errorf("the next pass is due in %v, want a time, since no event reports that the target cluster responds again", got)
			}
			if len(h.Driver.VMs()) != 1 {
				t.Fatal("the VM was deleted with its Pods")
			}
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "the target cluster does not respond"})
			release(h)
			h.Settle()
			if want := name == "return"; len(h.Driver.VMs()) != 0 || h.gone() != want {
				t.Errorf("%d VMs; deleted: %v; want the VM deleted, and the Machine only with its node", len(h.Driver.VMs()), h.gone())
			}
		})
	}
}

// TestMachine_DrainContinuesAfterRestart checks that a new process detects what a previous process had done.
func TestMachine_DrainContinuesAfterRestart(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.draining(forPod("web"))
	h.delete()
	h.Settle()
	h.restart()
	d := h.draining(forPod("web"), emptied)
	h.Writes = nil
	h.Pass()
	if n := len(h.Writes); n != 0 {
		t.Errorf("the next process repeats writes:\n%s", h.LastWrites())
	}
	if len(d.requests) != 1 {
		t.Fatalf("%d drains", len(d.requests))
	}
	h.Settle()
	if !h.gone() {
		t.Error("the Machine was not deleted")
	}
}

// TestMachine_NodeIsFoundAfterLostResponse checks a Machine whose VM joined although the response to its creation was lost. The node
// is found by its label or through the driver, and is deleted with the Machine.
func TestMachine_NodeIsFoundAfterLostResponse(t *testing.T) {
	lost := func(h *harness) {
		h.Driver.Fail(fake.CreateMachine, codes.DeadlineExceeded)
		h.declare()
		h.Settle()
		h.addVM(machineName, "sim:///m1")
	}
	cases := map[string]struct {
		given func(h *harness)
		asks  int // calls of GetMachineStatus before the deletion
	}{
		"node with the machine's name": {func(h *harness) {
			h.join(ready)
			change(h, h.node(), func(n *corev1.Node) { n.Labels = map[string]string{v1alpha1.LabelKeyMachineName: machineName} })
		}, 0},
		"unlabeled node": {func(h *harness) { h.join(ready) }, 1},
		"no node yet":    {func(*harness) {}, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			lost(h)
			tc.given(h)
			d := h.draining()
			h.Driver.ForgetCalls()
			h.delete()
			h.Settle()
			if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone: %v, node left: %v, VMs %v", h.gone(), h.node() != nil, h.Driver.VMs())
			}
			if got := len(h.Driver.Calls(fake.GetMachineStatus)); got != tc.asks+1 {
				t.Errorf("%d calls of GetMachineStatus, want %d and one after the deletion", got, tc.asks)
			}
			if drained := len(d.requests) > 0; drained != (name != "no node yet") {
				t.Errorf("drained: %v", drained)
			}
		})
	}
}

// TestMachine_DeletionWaitsForIdentification checks the errors that the driver may return while the VM of a deleted Machine is
// identified.
func TestMachine_DeletionWaitsForIdentification(t *testing.T) {
	for code := codes.Canceled; code <= codes.Uninitialized; code++ {
		t.Run(code.String(), func(t *testing.T) {
			h := newHarness(t)
			h.declare(func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerMCM} })
			h.addVM(machineName, "sim:///m1")
			h.Driver.Fail(fake.GetMachineStatus, code)
			h.delete()
			h.Settle()
			switch code {
			case codes.NotFound, codes.Unimplemented, codes.Uninitialized:
				if !h.gone() || len(h.Driver.VMs()) != 0 {
					t.Error("the deletion is incomplete")
				}
				return
			}
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "Set machine status to termination. Now, getting VM Status"})
			if got := h.machine().Status.LastOperation.Description; !strings.Contains(got, "failed as configured") {
				t.Errorf("description %q lacks the provider's message", got)
			}
			if len(h.Driver.Calls(fake.DeleteMachine)) != 0 {
				t.Error("the VM was deleted without being identified")
			}
			h.SettleAfter(time.Hour)
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Error("the deletion is incomplete after the driver responds again")
			}
		})
	}
}
