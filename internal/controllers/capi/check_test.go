package capi

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// Within these times the driver is asked for certain.
const (
	byThen = checkEvery + checkEvery/5
	soon   = checkSoon + checkSoon/5
)

// joined makes a world whose VM has become a node that is well.
func joined(t *testing.T, changes ...func(*given)) *world {
	t.Helper()
	w := newWorld(t, changes...)
	w.settle()
	w.nodeIs(metav1.ConditionTrue)
	w.settle()
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	w.told()
	w.driver.calls, w.writes = nil, nil
	return w
}

// nodeIs has Cluster API say how the node is.
func (w *world) nodeIs(status metav1.ConditionStatus) {
	w.Helper()
	w.changeMachine(func(m *core.Machine) {
		m.Status.NodeRef = &core.Reference{Name: "node"}
		m.Status.Conditions = []core.Condition{{Type: "NodeHealthy", Status: status}}
	})
}

// burn removes the VM behind everybody's back, heal brings it back.
func (w *world) burn() { delete(w.driver.vms, machineName) }
func (w *world) heal() { w.driver.vms[machineName] = w.infra().Spec.ProviderID }

// wantLost checks that the VM's loss is said, and that nothing else comes of it.
func (w *world) wantLost() {
	w.Helper()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonInstanceLost, w.infra().Spec.ProviderID)
	if got := w.infra().Status; !got.Ready || !*got.Initialization.Provisioned || got.FailureReason != nil || got.FailureMessage != nil {
		w.Errorf("status %+v", got)
	}
	if made := w.driver.made(instance.MethodCreate); made != 0 {
		w.Errorf("%d creations", made)
	}
}

// TestLostAfterReady (M9, S32, S33): a VM that vanishes is missed in time, also without any
// event. That it was there is not taken back, and it is not made again. When it is found, it
// is ready again.
func TestLostAfterReady(t *testing.T) {
	w := joined(t)
	w.burn()
	if result := w.settleAfter(checkEvery / 2); result.RequeueAfter <= 0 || result.RequeueAfter > byThen {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	if len(w.driver.calls) != 0 {
		t.Errorf("the driver is asked too often: %v", w.driver.calls)
	}
	w.settleAfter(byThen - checkEvery/2)
	w.wantLost()
	if told := w.told(); len(told) != 1 || !strings.Contains(told[0], corev1.EventTypeWarning) {
		t.Errorf("events %q, want one warning", told)
	}
	if result := w.settleAfter(soon); result.RequeueAfter > soon {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	w.wantLost()
	if told := w.told(); len(told) != 0 || len(w.writes) != 1 {
		t.Errorf("events %q, writes %v: it is said again", told, w.writes)
	}
	w.heal()
	w.settleAfter(soon)
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	w.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionTrue, infrav1.ReasonJoined)
}

// TestAllIsWell: a VM that is there is asked about now and then, and nothing is written.
func TestAllIsWell(t *testing.T) {
	w := joined(t)
	for range 24 * 60 {
		w.settleAfter(time.Minute)
	}
	if calls := len(w.driver.calls); calls < 24*5-5 || calls > 24*6 || calls != w.driver.made(instance.MethodStatus) {
		t.Errorf("%d calls a day", calls)
	}
	if len(w.writes) != 0 || len(w.told()) != 0 {
		t.Errorf("writes %v", w.writes)
	}
}

// TestLostWithItsNode: a node that is not well any more has the driver asked at once, but
// however it flaps not more than once a minute.
func TestLostWithItsNode(t *testing.T) {
	for _, status := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		t.Run(string(status), func(t *testing.T) {
			w := joined(t)
			w.nodeIs(status)
			w.settle()
			if got := len(w.driver.calls); got != 1 {
				t.Fatalf("%d calls when the node is not well", got)
			}
			for range 12 { // and it is never asked twice for the same
				w.settleAfter(5 * time.Second)
			}
			if got := len(w.driver.calls); got != 1 {
				t.Errorf("%d calls for one reason", got)
			}
			for range 12 {
				w.nodeIs(metav1.ConditionTrue)
				w.settle()
				w.nodeIs(status)
				w.settleAfter(5 * time.Second)
			}
			if got := len(w.driver.calls); got < 2 || got > 3 {
				t.Errorf("%d calls in two minutes of flapping", got)
			}
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if len(w.writes) != 0 {
				t.Errorf("writes %v", w.writes)
			}
			w.nodeIs(metav1.ConditionTrue)
			w.settleAfter(soon)
			w.burn()
			w.nodeIs(status)
			w.settle()
			w.wantLost()
		})
	}
}

// TestLostWhileTheDriverAnswers: what it answered is about the time before.
func TestLostWhileTheDriverAnswers(t *testing.T) {
	w := joined(t)
	w.clock.Step(byThen)
	if w.pass(); !w.call() {
		t.Fatal("the driver was not asked")
	}
	w.burn()
	w.nodeIs(metav1.ConditionUnknown)
	w.settle()
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	w.settleAfter(soon)
	w.wantLost()
}

// TestDriverCannotTell: only a driver that finds no VM says that there is none. While it says
// nothing, what was known of the VM stands.
func TestDriverCannotTell(t *testing.T) {
	for code := codes.Canceled; code <= codes.Uninitialized; code++ {
		if code == codes.NotFound {
			continue
		}
		t.Run(code.String(), func(t *testing.T) {
			w := joined(t)
			w.driver.fails(instance.MethodStatus, code)
			w.settleAfter(byThen)
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if len(w.driver.calls) != 1 || len(w.writes) != 0 || len(w.told()) != 0 {
				t.Errorf("calls %v, writes %v", w.driver.calls, w.writes)
			}
			w.burn()
			w.settleAfter(byThen)
			w.wantLost()
			w.driver.fails(instance.MethodStatus, code)
			w.settleAfter(soon)
			if code == codes.Unimplemented || code == codes.Uninitialized {
				return // the one cannot look and is trusted; the other is there
			}
			w.wantLost()
		})
	}
}

// TestDriverAwayWhenTheNodeGoes: then it is asked again soon, not only at the next turn.
func TestDriverAwayWhenTheNodeGoes(t *testing.T) {
	w := joined(t)
	w.driver.fails(instance.MethodStatus, codes.Unavailable, codes.Unavailable)
	w.burn()
	w.nodeIs(metav1.ConditionUnknown)
	w.settle()
	w.settleAfter(soon)
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := len(w.driver.calls); got != 2 {
		t.Errorf("%d calls", got)
	}
	w.settleAfter(soon)
	w.wantLost()
}

// TestNotAskedAbout: whose VM cannot, or shall not, be asked about.
func TestNotAskedAbout(t *testing.T) {
	for name, change := range map[string]func(*world){
		"paused":             func(w *world) { w.changeCluster(func(c *core.Cluster) { c.Spec.Paused = true }) },
		"of another driver":  func(w *world) { w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "other" }) },
		"without its Secret": func(w *world) { w.lose() },
	} {
		t.Run(name, func(t *testing.T) {
			w := joined(t, func(g *given) {
				g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
				g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
			})
			change(w)
			w.burn()
			w.nodeIs(metav1.ConditionUnknown)
			w.settle()
			w.settleAfter(byThen)
			w.settleAfter(byThen)
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if len(w.driver.calls) != 0 {
				t.Errorf("calls %v", w.driver.calls)
			}
		})
	}
}

// TestLookedForElsewhere: with a class that was changed since, a driver that finds none has said
// nothing about the VM; one that finds it has, and is believed from then on.
func TestLookedForElsewhere(t *testing.T) {
	w := joined(t, func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		g.more = append(g.more, newClass(g.infra.Namespace))
	})
	alter := func(spec string) {
		change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.ProviderSpec = *raw(spec) })
	}
	w.driver.local = true
	alter(`{"size":"big"}`)
	w.settleAfter(byThen)
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if len(w.driver.calls) == 0 || len(w.writes) != 0 {
		t.Errorf("calls %v, writes %v", w.driver.calls, w.writes)
	}
	w.driver.local = false
	w.settleAfter(byThen)
	w.burn()
	w.settleAfter(byThen)
	w.wantLost()
	if len(w.writes) != 2 {
		t.Errorf("writes %v", w.writes)
	}
}

// TestAfterARestart: nobody remembers when the driver was asked. About what was lost it is
// asked soon, about others at some time.
func TestAfterARestart(t *testing.T) {
	w := joined(t)
	w.burn()
	w.restart()
	w.settle()
	w.settleAfter(checkEvery)
	w.wantLost()
	w.heal()
	w.restart()
	w.settle()
	w.settleAfter(checkSoon)
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}

// TestLostIsDeleted: what is not there holds nothing.
func TestLostIsDeleted(t *testing.T) {
	w := joined(t)
	w.burn()
	w.settleAfter(byThen)
	w.wantLost()
	w.delete()
	w.settle()
	if !w.gone() {
		t.Error("it stays")
	}
	if w.controller.memory.Find(w.key()) != nil {
		w.pass()
		if w.controller.memory.Find(w.key()) != nil {
			t.Error("it is remembered")
		}
	}
}

// TestFoundAgain: one that was declared with the ID of a VM waits for that VM, however long.
func TestFoundAgain(t *testing.T) {
	w := newWorld(t, func(g *given) { g.infra.Spec.ProviderID = "test:///late" })
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonInstanceLost)
	w.driver.vms[machineName] = "test:///late"
	w.settleAfter(soon)
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if w.driver.count != 0 {
		t.Errorf("%d VMs made", w.driver.count)
	}
}

// TestControlPlane: without a provider of control planes, it is the Machine that says what it
// is for.
func TestControlPlane(t *testing.T) {
	w := newWorld(t, func(g *given) { g.machine.Labels[core.LabelControlPlane] = "" })
	w.settle()
	if _, marked := w.infra().Labels[core.LabelControlPlane]; !marked || len(w.writes) != 5 {
		t.Errorf("labels %v; writes %v, of which none is for the label alone", w.infra().Labels, w.writes)
	}
	w = newWorld(t)
	w.settle()
	if _, marked := w.infra().Labels[core.LabelControlPlane]; marked {
		t.Error("a worker is of the control plane")
	}
	w.changeMachine(func(m *core.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, core.LabelControlPlane, "") })
	w.settle()
	if _, marked := w.infra().Labels[core.LabelControlPlane]; !marked {
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
