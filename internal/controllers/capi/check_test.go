package capi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// checkDelay and retryDelay are the longest times until the next regular check, and until the next check of a VM
// whose state is unclear.
const (
	checkDelay = checkInterval + checkInterval/5
	retryDelay = checkRetryInterval + checkRetryInterval/5
)

// newJoinedHarness returns a harness whose VM has become a healthy node.
func newJoinedHarness(t *testing.T, changes ...func(*given)) *harness {
	t.Helper()
	h := newHarness(t, changes...)
	h.Settle()
	h.setNodeHealthy(metav1.ConditionTrue)
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.takeEvents()
	h.Driver.ForgetCalls()
	h.Writes = nil
	return h
}

// setNodeHealthy sets the condition NodeHealthy of the Machine.
func (h *harness) setNodeHealthy(status metav1.ConditionStatus) {
	h.Helper()
	h.changeMachine(func(m *core.Machine) {
		m.Status.NodeRef = &core.Reference{Name: "node"}
		m.Status.Conditions = []core.Condition{{Type: "NodeHealthy", Status: status}}
	})
}

// restoreVM adds the VM again that removeVMs has removed.
func (h *harness) restoreVM() { h.addVM(machineName, h.infra().Spec.ProviderID) }

// wantLost checks that the status reports the loss of the VM and is otherwise unchanged, and that no VM is created.
func (h *harness) wantLost() {
	h.Helper()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonInstanceLost, h.infra().Spec.ProviderID)
	if got := h.infra().Status; !got.Ready || !*got.Initialization.Provisioned || got.FailureReason != nil || got.FailureMessage != nil {
		h.Errorf("status %+v", got)
	}
	if n := len(h.Driver.Calls(fake.CreateMachine)); n != 0 {
		h.Errorf("%d creations", n)
	}
}

// TestCheck_LostVMIsReported checks that the controller notices the loss of a VM without any event (M9, S32, S33). The object
// stays provisioned, and no second VM is created. It becomes ready again when the VM is found.
func TestCheck_LostVMIsReported(t *testing.T) {
	h := newJoinedHarness(t)
	h.removeVMs()
	if result := h.SettleAfter(checkInterval / 2); result.RequeueAfter <= 0 || result.RequeueAfter > checkDelay {
		t.Errorf("requeued after %v", result.RequeueAfter)
	}
	if len(h.calls()) != 0 {
		t.Errorf("too many calls of the driver: %v", h.calls())
	}
	h.SettleAfter(checkDelay - checkInterval/2)
	h.wantLost()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], corev1.EventTypeWarning) {
		t.Errorf("events %q, want one warning", events)
	}
	if result := h.SettleAfter(retryDelay); result.RequeueAfter > retryDelay {
		t.Errorf("requeued after %v", result.RequeueAfter)
	}
	h.wantLost()
	if events := h.takeEvents(); len(events) != 0 || len(h.Writes) != 1 {
		t.Errorf("events %q, writes %v: the loss was reported again", events, h.Writes)
	}
	h.restoreVM()
	h.SettleAfter(retryDelay)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionTrue, infrav1.ReasonJoined)
}

// TestCheck_HealthyVMCausesNoWrites checks that the driver is called regularly for an existing VM, and that nothing is written.
func TestCheck_HealthyVMCausesNoWrites(t *testing.T) {
	h := newJoinedHarness(t)
	for range 24 * 60 {
		h.SettleAfter(time.Minute)
	}
	if calls := len(h.calls()); calls < 24*5-5 || calls > 24*6 || calls != len(h.Driver.Calls(fake.GetMachineStatus)) {
		t.Errorf("%d calls a day", calls)
	}
	if len(h.Writes) != 0 || len(h.takeEvents()) != 0 {
		t.Errorf("writes %v", h.Writes)
	}
}

// TestCheck_AddressesAreUpdated checks that a first address is reported soon, and a changed address with the next check. A
// response without addresses does not remove the reported ones.
func TestCheck_AddressesAreUpdated(t *testing.T) {
	h := newHarness(t)
	setAddresses := func(addresses ...corev1.NodeAddress) {
		h.Driver.Configure(func(c *fake.Config) { c.Addresses = addresses })
	}
	wantStatus := func(addresses ...infrav1.MachineAddress) {
		t.Helper()
		if diff := cmp.Diff(addresses, h.infra().Status.Addresses); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
	}
	ip := func(address string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address}
	}
	setAddresses()
	h.Settle()
	wantStatus()
	setAddresses(ip("10.0.0.1"))
	h.SettleAfter(retryDelay)
	wantStatus(infrav1.MachineAddress(ip("10.0.0.1")))
	setAddresses(ip("10.0.0.2"))
	h.SettleAfter(checkDelay)
	wantStatus(infrav1.MachineAddress(ip("10.0.0.2")))
	setAddresses()
	h.SettleAfter(checkDelay)
	wantStatus(infrav1.MachineAddress(ip("10.0.0.2")))
}

// TestFailureDomain_OfDriverIsReported checks that the status reports the failure domain that the driver returns, and
// follows its changes.
func TestFailureDomain_OfDriverIsReported(t *testing.T) {
	h := newHarness(t)
	chosen := "zone-a"
	h.Driver.OnCreate(func(_ context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
		resp, err := do()
		if resp != nil {
			resp.FailureDomain = chosen
		}
		return resp, err
	})
	h.Driver.OnStatus(func(_ context.Context, _ *driver.GetMachineStatusRequest, do func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
		resp, err := do()
		if resp != nil {
			resp.FailureDomain = chosen
		}
		return resp, err
	})
	wantStatus := func(domain string) {
		t.Helper()
		if got := h.infra(); got.Status.FailureDomain != domain || got.Spec.FailureDomain != "" {
			t.Errorf("failure domain %q, spec %q; want %q in the status only", got.Status.FailureDomain, got.Spec.FailureDomain, domain)
		}
	}
	h.Settle()
	wantStatus("zone-a")
	for _, next := range []struct{ returned, want string }{
		{"zone-b", "zone-b"}, {"", "zone-b"}, {strings.Repeat("x", 257), "zone-b"},
	} {
		chosen = next.returned
		h.SettleAfter(checkDelay)
		wantStatus(next.want)
	}
}

// TestCheck_DriverWithoutAddresses checks that the controller stops calling a driver frequently if it never returns an
// address.
func TestCheck_DriverWithoutAddresses(t *testing.T) {
	h := newHarness(t)
	h.Driver.Configure(func(c *fake.Config) { c.Addresses = nil })
	h.Settle()
	h.Driver.ForgetCalls()
	for range 60 {
		h.SettleAfter(time.Minute)
	}
	if calls := len(h.calls()); calls < 8 || calls > 20 {
		t.Errorf("%d calls in the first hour", calls)
	}
}

// TestCheck_UnhealthyNodeTriggersCall checks that the driver is called immediately when the node becomes unhealthy, but at most once a
// minute when the node's state flaps.
func TestCheck_UnhealthyNodeTriggersCall(t *testing.T) {
	for _, status := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		t.Run(string(status), func(t *testing.T) {
			h := newJoinedHarness(t)
			h.setNodeHealthy(status)
			h.Settle()
			if got := len(h.calls()); got != 1 {
				t.Fatalf("%d calls for an unhealthy node, want 1", got)
			}
			for range 12 { // no second call for the same change
				h.SettleAfter(5 * time.Second)
			}
			if got := len(h.calls()); got != 1 {
				t.Errorf("%d calls for one change, want 1", got)
			}
			for range 12 {
				h.setNodeHealthy(metav1.ConditionTrue)
				h.Settle()
				h.setNodeHealthy(status)
				h.SettleAfter(5 * time.Second)
			}
			if got := len(h.calls()); got < 2 || got > 3 {
				t.Errorf("%d calls in two minutes of flapping", got)
			}
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if len(h.Writes) != 0 {
				t.Errorf("writes %v", h.Writes)
			}
			h.setNodeHealthy(metav1.ConditionTrue)
			h.SettleAfter(retryDelay)
			h.removeVMs()
			h.setNodeHealthy(status)
			h.Settle()
			h.wantLost()
		})
	}
}

// TestCheck_LostDuringCall checks that a response of the driver is not used for changes that came after its
// call.
func TestCheck_LostDuringCall(t *testing.T) {
	h := newJoinedHarness(t)
	h.Clock.Step(checkDelay)
	if h.Pass(); !h.Call() {
		t.Fatal("the driver was not called")
	}
	h.removeVMs()
	h.setNodeHealthy(metav1.ConditionUnknown)
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.SettleAfter(retryDelay)
	h.wantLost()
}

// TestCheck_OnlyNotFoundMeansLost checks that only NotFound means that there is no VM. After other errors, the last known state
// is kept.
func TestCheck_OnlyNotFoundMeansLost(t *testing.T) {
	for code := codes.Canceled; code <= codes.Uninitialized; code++ {
		if code == codes.NotFound {
			continue
		}
		t.Run(code.String(), func(t *testing.T) {
			h := newJoinedHarness(t)
			h.Driver.Fail(fake.GetMachineStatus, code)
			h.SettleAfter(checkDelay)
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			calls := slices.DeleteFunc(h.calls(), func(m fake.Method) bool { return m == fake.InitializeMachine }) // after Uninitialized
			if len(calls) != 1 || len(h.Writes) != 0 || len(h.takeEvents()) != 0 {
				t.Errorf("calls %v, writes %v", calls, h.Writes)
			}
			h.removeVMs()
			h.SettleAfter(checkDelay)
			h.wantLost()
			h.Driver.Fail(fake.GetMachineStatus, code)
			h.SettleAfter(retryDelay)
			if code == codes.Unimplemented || code == codes.Uninitialized {
				return // after Unimplemented the VM is assumed to exist, and Uninitialized means that it exists
			}
			h.wantLost()
		})
	}
}

// TestCheck_UnavailableDriverIsRetriedSoon checks that a driver that was unavailable when the node became unhealthy is soon
// called again, before the next regular check.
func TestCheck_UnavailableDriverIsRetriedSoon(t *testing.T) {
	h := newJoinedHarness(t)
	h.Driver.Fail(fake.GetMachineStatus, codes.Unavailable, codes.Unavailable)
	h.removeVMs()
	h.setNodeHealthy(metav1.ConditionUnknown)
	h.Settle()
	h.SettleAfter(retryDelay)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := len(h.calls()); got != 2 {
		t.Errorf("%d calls", got)
	}
	h.SettleAfter(retryDelay)
	h.wantLost()
}

// TestCheck_SkippedObjects lists the objects for whose VMs the driver is not called.
func TestCheck_SkippedObjects(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"paused":         func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Spec.Paused = true }) },
		"another driver": func(h *harness) { h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "other" }) },
		"missing Secret": func(h *harness) { h.loseSecret() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newJoinedHarness(t, func(g *given) {
				g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
				g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
			})
			change(h)
			h.removeVMs()
			h.setNodeHealthy(metav1.ConditionUnknown)
			h.Settle()
			h.SettleAfter(checkDelay)
			h.SettleAfter(checkDelay)
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if len(h.calls()) != 0 {
				t.Errorf("calls %v", h.calls())
			}
		})
	}
}

// TestCheck_ChangedClassDoesNotMeanLost checks that a NotFound is ignored if the driver was called with a class that has changed
// since the creation. After the driver has found the VM with the changed class, its NotFound counts again.
func TestCheck_ChangedClassDoesNotMeanLost(t *testing.T) {
	h := newJoinedHarness(t, func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		g.more = append(g.more, newClass(g.infra.Namespace))
	})
	setClassSpec := func(spec string) {
		change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.ProviderSpec = *raw(spec) })
	}
	h.matchSpec(true)
	setClassSpec(`{"size":"big"}`)
	h.SettleAfter(checkDelay)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if len(h.calls()) == 0 || len(h.Writes) != 0 {
		t.Errorf("calls %v, writes %v", h.calls(), h.Writes)
	}
	h.matchSpec(false)
	h.SettleAfter(checkDelay)
	h.removeVMs()
	h.SettleAfter(checkDelay)
	h.wantLost()
	if len(h.Writes) != 2 {
		t.Errorf("writes %v", h.Writes)
	}
}

// TestCheck_AfterRestart checks that a new process, which does not know the times of earlier calls, soon calls the driver
// for lost VMs, and for other VMs within the check interval.
func TestCheck_AfterRestart(t *testing.T) {
	h := newJoinedHarness(t)
	h.removeVMs()
	h.restart()
	h.Settle()
	h.SettleAfter(checkInterval)
	h.wantLost()
	h.restoreVM()
	h.restart()
	h.Settle()
	h.SettleAfter(checkRetryInterval)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}

// TestDeletion_OfLostVM checks that a lost VM does not block the deletion of its object.
func TestDeletion_OfLostVM(t *testing.T) {
	h := newJoinedHarness(t)
	h.removeVMs()
	h.SettleAfter(checkDelay)
	h.wantLost()
	h.delete()
	h.Settle()
	if !h.gone() {
		t.Error("the object still exists")
	}
	if h.controller.memory.Find(h.Key) != nil {
		h.Pass()
		if h.controller.memory.Find(h.Key) != nil {
			t.Error("the controller still has state of the deleted object")
		}
	}
}

// TestCheck_WaitsForVMOfProviderID checks that an object that was created with the provider ID of a VM waits for that VM for any length
// of time.
func TestCheck_WaitsForVMOfProviderID(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.ProviderID = "test:///late" })
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonInstanceLost)
	h.addVM(machineName, "test:///late")
	h.SettleAfter(retryDelay)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if h.made != 0 {
		t.Errorf("%d VMs were created", h.made)
	}
}

// TestMachine_GetsControlPlaneLabel checks that the object gets the control plane label of its Machine.
func TestMachine_GetsControlPlaneLabel(t *testing.T) {
	h := newHarness(t, func(g *given) { g.machine.Labels[core.LabelControlPlane] = "" })
	h.Settle()
	if _, marked := h.infra().Labels[core.LabelControlPlane]; !marked || len(h.Writes) != 5 {
		t.Errorf("labels %v, writes %v; want the label without a write of its own", h.infra().Labels, h.Writes)
	}
	h = newHarness(t)
	h.Settle()
	if _, marked := h.infra().Labels[core.LabelControlPlane]; marked {
		t.Error("a worker has the control plane label")
	}
	h.changeMachine(func(m *core.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, core.LabelControlPlane, "") })
	h.Settle()
	if _, marked := h.infra().Labels[core.LabelControlPlane]; !marked {
		t.Error("the label is missing after the Machine got it")
	}
}

// TestMachineChanges lists the changes of a Machine that trigger a reconcile.
func TestMachineChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*core.Machine)
		want   bool
	}{
		"nothing":         {func(*core.Machine) {}, false},
		"label":           {func(m *core.Machine) { m.Labels = map[string]string{"a": "b"} }, false},
		"bootstrap data":  {func(m *core.Machine) { m.Spec.Bootstrap.DataSecretName = new("data") }, true},
		"failure domain":  {func(m *core.Machine) { m.Spec.FailureDomain = "a" }, true},
		"deletion":        {func(m *core.Machine) { m.DeletionTimestamp = new(metav1.Now()) }, true},
		"node":            {func(m *core.Machine) { m.Status.NodeRef = &core.Reference{Name: "n"} }, true},
		"control plane":   {func(m *core.Machine) { m.Labels = map[string]string{core.LabelControlPlane: ""} }, true},
		"healthy":         {func(m *core.Machine) { m.Status.Conditions = []core.Condition{{Type: "NodeHealthy", Status: "True"}} }, true},
		"not healthy":     {func(m *core.Machine) { m.Status.Conditions = []core.Condition{{Type: "NodeHealthy", Status: "False"}} }, false},
		"other condition": {func(m *core.Machine) { m.Status.Conditions = []core.Condition{{Type: "Ready", Status: "True"}} }, false},
	} {
		before := &core.Machine{}
		after := before.DeepCopyObject().(*core.Machine)
		tc.change(after)
		for _, e := range []event.UpdateEvent{{ObjectOld: before, ObjectNew: after}, {ObjectOld: after.DeepCopyObject().(*core.Machine), ObjectNew: before}} {
			if got := machineChanges().Update(e); got != tc.want {
				t.Errorf("%s: %t, want %t", name, got, tc.want)
			}
		}
	}
}

// TestRestart_SpreadsRetriesOfFailedCalls checks that after a restart only a few of the objects whose last call failed are
// retried immediately, but all of those whose call had not failed.
func TestRestart_SpreadsRetriesOfFailedCalls(t *testing.T) {
	const many, atOnce = 50, 10
	for reason, tc := range map[string]struct {
		deleting bool
		want     int
	}{
		infrav1.ReasonCreationFailed:       {want: atOnce},
		infrav1.ReasonInsufficientCapacity: {want: atOnce},
		infrav1.ReasonInvalidSpec:          {want: atOnce},
		infrav1.ReasonDeletionFailed:       {deleting: true, want: atOnce},
		infrav1.ReasonCreating:             {want: many},
		infrav1.ReasonDeleting:             {deleting: true, want: many},
	} {
		t.Run(reason, func(t *testing.T) {
			h := newHarness(t)
			for i := range many {
				m := newGiven("ns", h.Clock.Now()).infra
				m.Name = fmt.Sprint("m", i)
				m.Status.Conditions = []metav1.Condition{{Type: infrav1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason}}
				if tc.deleting {
					m.DeletionTimestamp = new(metav1.NewTime(h.Clock.Now()))
				}
				objects, err := inputs.Reader{}.Read(t.Context(), m)
				if err != nil {
					t.Fatal(err)
				}
				request := instance.Request{Machine: objects.Machine, Class: objects.Class, Secret: objects.Secret}
				if tc.deleting {
					h.engine.Delete(request)
				} else {
					h.engine.Ensure(request)
				}
			}
			if len(h.Tasks) != tc.want {
				t.Errorf("%d calls immediately, want %d", len(h.Tasks), tc.want)
			}
		})
	}
}
