package machine

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// conflicting declares the elder Machine, with a VM of its own and the node of the Machine that
// the test is about.
func (w *world) conflicting(phase v1alpha1.MachinePhase) {
	w.Helper()
	w.elder(inPhase(phase), func(m *v1alpha1.Machine) {
		m.CreationTimestamp = metav1.NewTime(w.clock.Now().Add(-time.Hour))
		m.Labels[v1alpha1.NodeLabelKey] = w.nodeName()
		m.Spec.ProviderID = "sim:///elder"
	})
	w.driver.vms["elder"] = "sim:///elder"
}

// TestTwoMachinesOneNode: two Machines that name one node do not fight for it. The other
// one of the two says whose it is, once, and leaves it alone.
func TestTwoMachinesOneNode(t *testing.T) {
	const elder = "elder"
	cases := map[string]struct {
		reason     string
		providerID string // that the node reports
		owner      string
	}{
		"no ID":           {"who was there first has it", "", elder},
		"strange ID":      {"some kubelets write it in another form", "else:///x", elder},
		"the elder's ID":  {"the VM tells", "sim:///elder", elder},
		"the younger's":   {"the VM tells, whoever was first", "sim:///m1", machineName},
		"the younger's x": {"IDs are compared exactly", "sim:///m1x", elder},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.conflicting(v1alpha1.MachineRunning)
			w.declare(inPhase(v1alpha1.MachineRunning))
			w.join(ready)
			change(w, w.node(), func(n *corev1.Node) { n.Spec.ProviderID = tc.providerID })
			for range 10 {
				w.passOver(machineName, elder)
				w.clock.Step(time.Minute)
			}
			w.name = machineName
			if got := w.node().Labels[v1alpha1.LabelKeyMachineName]; got != tc.owner {
				t.Errorf("the node is that of %q, want %q: %s", got, tc.owner, tc.reason)
			}
			if got := count(w.wrote(), "patch Node"); got != 1 {
				t.Errorf("%d writes to the node, want 1", got)
			}
			warnings := slices.DeleteFunc(w.told(), func(event string) bool { return !strings.Contains(event, reasonOtherMachine) })
			if len(warnings) != 1 || !strings.Contains(warnings[0], `is that of machine "`+tc.owner+`"`) {
				t.Errorf("events %q, want one that names the owner", warnings)
			}
			for _, w.name = range []string{machineName, elder} {
				if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
					t.Errorf("%s is %q for the sake of a label", w.name, got)
				}
			}
		})
	}
}

// TestNodeOfRivalIsNoJoin: a Machine that waits for its node does not get another's, and
// is replaced when its time is over. Its deletion takes its VM, and not the other's node.
func TestNodeOfRivalIsNoJoin(t *testing.T) {
	w := newWorld(t)
	w.conflicting(v1alpha1.MachineRunning)
	w.driver.vms[machineName] = "sim:///m1"
	w.declare(inPhase(v1alpha1.MachinePending), owned)
	w.join(ready)
	w.passOver("elder", machineName)
	w.settleAfter(creationTimeout - time.Minute)
	if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Fatalf("phase %q", got)
	}
	w.wait(2 * time.Minute)
	wantStatus(t, w.machine(), failedToJoin)

	d := w.draining()
	w.delete()
	w.settle()
	if !w.gone() || w.driver.vms[machineName] != "" {
		t.Errorf("gone: %v, VMs %v", w.gone(), w.driver.vms)
	}
	n := w.node()
	if n == nil || n.Spec.Unschedulable || terminationCondition(n) != nil || len(d.requests) != 0 {
		t.Fatalf("the node of the other Machine is touched: %+v", n)
	}
	if n.Labels[v1alpha1.LabelKeyMachineName] != "elder" || len(n.Finalizers) != 1 {
		t.Errorf("labels %v, finalizers %v", n.Labels, n.Finalizers)
	}
}

// TestConflictEnds: who is the last to name the node has it, and takes it along.
func TestConflictEnds(t *testing.T) {
	w := newWorld(t)
	w.conflicting(v1alpha1.MachineRunning)
	w.driver.vms[machineName] = "sim:///m1"
	w.declare(inPhase(v1alpha1.MachineRunning))
	w.join(ready)
	w.passOver("elder")
	w.name = machineName
	if got := w.pass().RequeueAfter; got != conflictRetry {
		t.Errorf("it looks again after %v, want %v: no event tells that the other one's label was put right", got, conflictRetry)
	}
	w.name = "elder"
	change(w, w.machine(), func(m *v1alpha1.Machine) { m.Labels[v1alpha1.NodeLabelKey] = "node-shoot-elder" })
	w.name = machineName
	w.settle()
	if got := w.node().Labels[v1alpha1.LabelKeyMachineName]; got != machineName {
		t.Errorf("the node is that of %q", got)
	}
	w.delete()
	w.settle()
	if !w.gone() || w.node() != nil {
		t.Error("something is left")
	}
}

// TestDeletedNodeOfAnother: who deletes a node means the Machine that it belongs to.
func TestDeletedNodeOfAnother(t *testing.T) {
	w := newWorld(t)
	w.conflicting(v1alpha1.MachineRunning)
	w.declare(inPhase(v1alpha1.MachineRunning))
	w.join(ready)
	w.passOver("elder", machineName)
	if err := w.target.client.Delete(t.Context(), w.node()); err != nil {
		t.Fatal(err)
	}
	w.passOver("elder", machineName)
	if !w.machine().DeletionTimestamp.IsZero() {
		t.Error("the Machine is deleted for another's node")
	}
	w.name = "elder"
	if w.machine().DeletionTimestamp.IsZero() {
		t.Error("the Machine of the node is not deleted")
	}
}

// TestTwoNodesOneVM: a second node that says that it is the Machine's VM is told once, as
// long as it says so, and changes nothing.
func TestTwoNodesOneVM(t *testing.T) {
	w := newWorld(t)
	w.running()
	change(w, w.node(), func(n *corev1.Node) { n.Spec.ProviderID = "sim:///m1" })
	duplicate := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "renamed"}, Spec: corev1.NodeSpec{ProviderID: "sim:///m1"}}
	if err := w.target.client.Create(t.Context(), duplicate); err != nil {
		t.Fatal(err)
	}
	event := func(n *corev1.Node) {
		t.Helper()
		if got := woken(w.controller.ofNode(t.Context(), n)); !slices.Equal(got, []string{machineName}) {
			t.Fatalf("an event of node %s wakes %v", n.Name, got)
		}
		w.settle()
		w.settleAfter(time.Hour)
	}
	event(duplicate)
	event(w.node())
	event(duplicate)
	told := w.told()
	if len(told) != 1 || !strings.Contains(told[0], "Node renamed, too, says that its VM is sim:///m1; the machine follows node "+w.nodeName()) {
		t.Errorf("events %q, want one that names both nodes", told)
	}
	if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning || len(w.driver.calls) != 0 || w.driver.made(instance.MethodDelete) != 0 {
		t.Errorf("phase %q, calls %v", got, w.driver.calls)
	}
	if err := w.target.client.Get(t.Context(), w.keyOf(duplicate), duplicate); err != nil || len(duplicate.Labels)+len(duplicate.Finalizers)+len(duplicate.Annotations) != 0 {
		t.Errorf("the second node is written to: %v, %v, err %v", duplicate.Labels, duplicate.Finalizers, err)
	}
	if err := w.target.client.Delete(t.Context(), duplicate); err != nil {
		t.Fatal(err)
	}
	event(duplicate) // its deletion
	if len(w.told()) != 0 {
		t.Error("a node that is gone is told")
	}
}
