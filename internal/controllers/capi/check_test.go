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

// Within these times the driver is called.
const (
	byThen = checkEvery + checkEvery/5
	soon   = checkSoon + checkSoon/5
)

// joined returns a harness whose VM has become a node that is well.
func joined(t *testing.T, changes ...func(*given)) *harness {
	t.Helper()
	h := newHarness(t, changes...)
	h.Settle()
	h.nodeIs(metav1.ConditionTrue)
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.takeEvents()
	h.Driver.ForgetCalls()
	h.Writes = nil
	return h
}

// nodeIs sets the condition NodeHealthy of the Machine.
func (h *harness) nodeIs(status metav1.ConditionStatus) {
	h.Helper()
	h.changeMachine(func(m *core.Machine) {
		m.Status.NodeRef = &core.Reference{Name: "node"}
		m.Status.Conditions = []core.Condition{{Type: "NodeHealthy", Status: status}}
	})
}

// burn removes the VM as its provider might, heal brings it back.
func (h *harness) burn() { h.removeVMs() }
func (h *harness) heal() { h.addVM(machineName, h.infra().Spec.ProviderID) }

// wantLost checks that the status reports the loss of the VM, and nothing else changes.
func (h *harness) wantLost() {
	h.Helper()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonInstanceLost, h.infra().Spec.ProviderID)
	if got := h.infra().Status; !got.Ready || !*got.Initialization.Provisioned || got.FailureReason != nil || got.FailureMessage != nil {
		h.Errorf("status %+v", got)
	}
	if made := len(h.Driver.Calls(fake.CreateMachine)); made != 0 {
		h.Errorf("%d creations", made)
	}
}

// TestLostAfterReady (M9, S32, S33): a VM that vanishes is missed in time, also without any
// event. That it was there is not taken back, and it is not made again. When it is found, it
// is ready again.
func TestLostAfterReady(t *testing.T) {
	h := joined(t)
	h.burn()
	if result := h.SettleAfter(checkEvery / 2); result.RequeueAfter <= 0 || result.RequeueAfter > byThen {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	if len(h.calls()) != 0 {
		t.Errorf("the driver is asked too often: %v", h.calls())
	}
	h.SettleAfter(byThen - checkEvery/2)
	h.wantLost()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], corev1.EventTypeWarning) {
		t.Errorf("events %q, want one warning", events)
	}
	if result := h.SettleAfter(soon); result.RequeueAfter > soon {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	h.wantLost()
	if events := h.takeEvents(); len(events) != 0 || len(h.Writes) != 1 {
		t.Errorf("events %q, writes %v: sent again", events, h.Writes)
	}
	h.heal()
	h.SettleAfter(soon)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionTrue, infrav1.ReasonJoined)
}

// TestAllIsWell: a VM that is there is asked about now and then, and nothing is written.
func TestAllIsWell(t *testing.T) {
	h := joined(t)
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

// TestAddressesFollow: an address that the VM gets later is reported soon, and one that changes with the
// next check. A driver that says none takes none back.
func TestAddressesFollow(t *testing.T) {
	h := newHarness(t)
	says := func(addresses ...corev1.NodeAddress) {
		h.Driver.Configure(func(c *fake.Config) { c.Addresses = addresses })
	}
	wants := func(addresses ...infrav1.MachineAddress) {
		t.Helper()
		if diff := cmp.Diff(addresses, h.infra().Status.Addresses); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
	}
	ip := func(address string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address}
	}
	says()
	h.Settle()
	wants()
	says(ip("10.0.0.1"))
	h.SettleAfter(soon)
	wants(infrav1.MachineAddress(ip("10.0.0.1")))
	says(ip("10.0.0.2"))
	h.SettleAfter(byThen)
	wants(infrav1.MachineAddress(ip("10.0.0.2")))
	says()
	h.SettleAfter(byThen)
	wants(infrav1.MachineAddress(ip("10.0.0.2")))
}

// TestTheDriverChoosesAFailureDomain: where the driver has put a VM is reported, and followed.
func TestTheDriverChoosesAFailureDomain(t *testing.T) {
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
	wants := func(domain string) {
		t.Helper()
		if got := h.infra(); got.Status.FailureDomain != domain || got.Spec.FailureDomain != "" {
			t.Errorf("failure domain %q, spec %q; want %q in the status only", got.Status.FailureDomain, got.Spec.FailureDomain, domain)
		}
	}
	h.Settle()
	wants("zone-a")
	for _, next := range []struct{ says, want string }{
		{"zone-b", "zone-b"}, {"", "zone-b"}, {strings.Repeat("x", 257), "zone-b"},
	} {
		chosen = next.says
		h.SettleAfter(byThen)
		wants(next.want)
	}
}

// TestADriverWithoutAddresses is not asked more often for ever.
func TestADriverWithoutAddresses(t *testing.T) {
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

// TestLostWithItsNode: a node that is not well any more has the driver asked at once, but
// however it flaps not more than once a minute.
func TestLostWithItsNode(t *testing.T) {
	for _, status := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		t.Run(string(status), func(t *testing.T) {
			h := joined(t)
			h.nodeIs(status)
			h.Settle()
			if got := len(h.calls()); got != 1 {
				t.Fatalf("%d calls when the node is not well", got)
			}
			for range 12 { // and it is never asked twice for the same
				h.SettleAfter(5 * time.Second)
			}
			if got := len(h.calls()); got != 1 {
				t.Errorf("%d calls for one reason", got)
			}
			for range 12 {
				h.nodeIs(metav1.ConditionTrue)
				h.Settle()
				h.nodeIs(status)
				h.SettleAfter(5 * time.Second)
			}
			if got := len(h.calls()); got < 2 || got > 3 {
				t.Errorf("%d calls in two minutes of flapping", got)
			}
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if len(h.Writes) != 0 {
				t.Errorf("writes %v", h.Writes)
			}
			h.nodeIs(metav1.ConditionTrue)
			h.SettleAfter(soon)
			h.burn()
			h.nodeIs(status)
			h.Settle()
			h.wantLost()
		})
	}
}

// TestLostWhileTheDriverAnswers: what it answered is about the time before.
func TestLostWhileTheDriverAnswers(t *testing.T) {
	h := joined(t)
	h.Clock.Step(byThen)
	if h.Pass(); !h.Call() {
		t.Fatal("the driver was not asked")
	}
	h.burn()
	h.nodeIs(metav1.ConditionUnknown)
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.SettleAfter(soon)
	h.wantLost()
}

// TestDriverCannotTell: only a driver that finds no VM says that there is none. While it says
// nothing, what was known of the VM stands.
func TestDriverCannotTell(t *testing.T) {
	for code := codes.Canceled; code <= codes.Uninitialized; code++ {
		if code == codes.NotFound {
			continue
		}
		t.Run(code.String(), func(t *testing.T) {
			h := joined(t)
			h.Driver.Fail(fake.GetMachineStatus, code)
			h.SettleAfter(byThen)
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			calls := slices.DeleteFunc(h.calls(), func(m fake.Method) bool { return m == fake.InitializeMachine }) // after Uninitialized
			if len(calls) != 1 || len(h.Writes) != 0 || len(h.takeEvents()) != 0 {
				t.Errorf("calls %v, writes %v", calls, h.Writes)
			}
			h.burn()
			h.SettleAfter(byThen)
			h.wantLost()
			h.Driver.Fail(fake.GetMachineStatus, code)
			h.SettleAfter(soon)
			if code == codes.Unimplemented || code == codes.Uninitialized {
				return // the one cannot look and is trusted; the other is there
			}
			h.wantLost()
		})
	}
}

// TestDriverAwayWhenTheNodeGoes: then it is asked again soon, not only at the next turn.
func TestDriverAwayWhenTheNodeGoes(t *testing.T) {
	h := joined(t)
	h.Driver.Fail(fake.GetMachineStatus, codes.Unavailable, codes.Unavailable)
	h.burn()
	h.nodeIs(metav1.ConditionUnknown)
	h.Settle()
	h.SettleAfter(soon)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := len(h.calls()); got != 2 {
		t.Errorf("%d calls", got)
	}
	h.SettleAfter(soon)
	h.wantLost()
}

// TestNotAskedAbout: whose VM cannot, or shall not, be asked about.
func TestNotAskedAbout(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"paused":             func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Spec.Paused = true }) },
		"of another driver":  func(h *harness) { h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "other" }) },
		"without its Secret": func(h *harness) { h.lose() },
	} {
		t.Run(name, func(t *testing.T) {
			h := joined(t, func(g *given) {
				g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
				g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
			})
			change(h)
			h.burn()
			h.nodeIs(metav1.ConditionUnknown)
			h.Settle()
			h.SettleAfter(byThen)
			h.SettleAfter(byThen)
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if len(h.calls()) != 0 {
				t.Errorf("calls %v", h.calls())
			}
		})
	}
}

// TestLookedForElsewhere: with a class that was changed since, a driver that finds none has said
// nothing about the VM; one that finds it has, and is believed from then on.
func TestLookedForElsewhere(t *testing.T) {
	h := joined(t, func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		g.more = append(g.more, newClass(g.infra.Namespace))
	})
	alter := func(spec string) {
		change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.ProviderSpec = *raw(spec) })
	}
	h.matchSpec(true)
	alter(`{"size":"big"}`)
	h.SettleAfter(byThen)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if len(h.calls()) == 0 || len(h.Writes) != 0 {
		t.Errorf("calls %v, writes %v", h.calls(), h.Writes)
	}
	h.matchSpec(false)
	h.SettleAfter(byThen)
	h.burn()
	h.SettleAfter(byThen)
	h.wantLost()
	if len(h.Writes) != 2 {
		t.Errorf("writes %v", h.Writes)
	}
}

// TestAfterARestart: a new process does not know when the driver was called. About what was lost it is
// asked soon, about others at some time.
func TestAfterARestart(t *testing.T) {
	h := joined(t)
	h.burn()
	h.restart()
	h.Settle()
	h.SettleAfter(checkEvery)
	h.wantLost()
	h.heal()
	h.restart()
	h.Settle()
	h.SettleAfter(checkSoon)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}

// TestLostIsDeleted: what is not there holds nothing.
func TestLostIsDeleted(t *testing.T) {
	h := joined(t)
	h.burn()
	h.SettleAfter(byThen)
	h.wantLost()
	h.delete()
	h.Settle()
	if !h.gone() {
		t.Error("it stays")
	}
	if h.controller.memory.Find(h.Key) != nil {
		h.Pass()
		if h.controller.memory.Find(h.Key) != nil {
			t.Error("it is remembered")
		}
	}
}

// TestFoundAgain: one that was declared with the ID of a VM waits for that VM, however long.
func TestFoundAgain(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.ProviderID = "test:///late" })
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonInstanceLost)
	h.addVM(machineName, "test:///late")
	h.SettleAfter(soon)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if h.made != 0 {
		t.Errorf("%d VMs made", h.made)
	}
}

// TestControlPlane: without a provider of control planes, it is the Machine that says what it
// is for.
func TestControlPlane(t *testing.T) {
	h := newHarness(t, func(g *given) { g.machine.Labels[core.LabelControlPlane] = "" })
	h.Settle()
	if _, marked := h.infra().Labels[core.LabelControlPlane]; !marked || len(h.Writes) != 5 {
		t.Errorf("labels %v; writes %v, of which none is for the label alone", h.infra().Labels, h.Writes)
	}
	h = newHarness(t)
	h.Settle()
	if _, marked := h.infra().Labels[core.LabelControlPlane]; marked {
		t.Error("a worker is of the control plane")
	}
	h.changeMachine(func(m *core.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, core.LabelControlPlane, "") })
	h.Settle()
	if _, marked := h.infra().Labels[core.LabelControlPlane]; !marked {
		t.Error("it is marked too late")
	}
}

// TestMachineChanges: which changes of a Machine bring a pass.
func TestMachineChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*core.Machine)
		want   bool
	}{
		"nothing":        {func(*core.Machine) {}, false},
		"label":          {func(m *core.Machine) { m.Labels = map[string]string{"a": "b"} }, false},
		"bootstrap data": {func(m *core.Machine) { m.Spec.Bootstrap.DataSecretName = new("data") }, true},
		"failure domain": {func(m *core.Machine) { m.Spec.FailureDomain = "a" }, true},
		"deletion":       {func(m *core.Machine) { m.DeletionTimestamp = new(metav1.Now()) }, true},
		"node":           {func(m *core.Machine) { m.Status.NodeRef = &core.Reference{Name: "n"} }, true},
		"control plane":  {func(m *core.Machine) { m.Labels = map[string]string{core.LabelControlPlane: ""} }, true},
		"healthy":        {func(m *core.Machine) { m.Status.Conditions = []core.Condition{{Type: "NodeHealthy", Status: "True"}} }, true},
		"not yet":        {func(m *core.Machine) { m.Status.Conditions = []core.Condition{{Type: "NodeHealthy", Status: "False"}} }, false},
		"other":          {func(m *core.Machine) { m.Status.Conditions = []core.Condition{{Type: "Ready", Status: "True"}} }, false},
	} {
		was := &core.Machine{}
		is := was.DeepCopyObject().(*core.Machine)
		tc.change(is)
		for _, e := range []event.UpdateEvent{{ObjectOld: was, ObjectNew: is}, {ObjectOld: is.DeepCopyObject().(*core.Machine), ObjectNew: was}} {
			if got := machineChanges().Update(e); got != tc.want {
				t.Errorf("%s: %t, want %t", name, got, tc.want)
			}
		}
	}
}

// TestARestartSpreadsWhatFailed: of many whose calls failed for the process before, a few are
// tried at once; all of those are that are waited for or are well.
func TestARestartSpreadsWhatFailed(t *testing.T) {
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
				t.Errorf("%d calls at once, want %d", len(h.Tasks), tc.want)
			}
		})
	}
}
