package machine

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
)

// conflicting declares the elder Machine, with a VM of its own and the node of the Machine that
// the test is about.
func (h *harness) conflicting(phase v1alpha1.MachinePhase) {
	h.Helper()
	h.elder(inPhase(phase), func(m *v1alpha1.Machine) {
		m.CreationTimestamp = metav1.NewTime(h.Clock.Now().Add(-time.Hour))
		m.Labels[v1alpha1.NodeLabelKey] = h.nodeName()
		m.Spec.ProviderID = "sim:///elder"
	})
	h.addVM("elder", "sim:///elder")
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
			h := newHarness(t)
			h.conflicting(v1alpha1.MachineRunning)
			h.declare(inPhase(v1alpha1.MachineRunning))
			h.join(ready)
			change(h, h.node(), func(n *corev1.Node) { n.Spec.ProviderID = tc.providerID })
			for range 10 {
				h.passOver(machineName, elder)
				h.Clock.Step(time.Minute)
			}
			h.Key.Name = machineName
			if got := h.node().Labels[v1alpha1.LabelKeyMachineName]; got != tc.owner {
				t.Errorf("the node is that of %q, want %q: %s", got, tc.owner, tc.reason)
			}
			if got := count(h.TakeWrites(), "patch Node"); got != 1 {
				t.Errorf("%d writes to the node, want 1", got)
			}
			warnings := slices.DeleteFunc(h.takeEvents(), func(event string) bool { return !strings.Contains(event, reasonOtherMachine) })
			if len(warnings) != 1 || !strings.Contains(warnings[0], `belongs to machine "`+tc.owner+`"`) {
				t.Errorf("events %q, want one that names the owner", warnings)
			}
			for _, h.Key.Name = range []string{machineName, elder} {
				if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
					t.Errorf("%s is %q for the sake of a label", h.Key.Name, got)
				}
			}
		})
	}
}

// TestNodeOfRivalIsNoJoin: a Machine that waits for its node does not get another's, and
// is replaced when its time is over. Its deletion takes its VM, and not the other's node.
func TestNodeOfRivalIsNoJoin(t *testing.T) {
	h := newHarness(t)
	h.conflicting(v1alpha1.MachineRunning)
	h.addVM(machineName, "sim:///m1")
	h.declare(inPhase(v1alpha1.MachinePending), owned)
	h.join(ready)
	h.passOver("elder", machineName)
	h.SettleAfter(creationTimeout - time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Fatalf("phase %q", got)
	}
	h.wait(2 * time.Minute)
	wantStatus(t, h.machine(), failedToJoin)

	d := h.draining()
	h.delete()
	h.Settle()
	if !h.gone() || h.hasVM(machineName) {
		t.Errorf("gone: %v, VMs %v", h.gone(), h.Driver.VMs())
	}
	n := h.node()
	if n == nil || n.Spec.Unschedulable || terminationCondition(n) != nil || len(d.requests) != 0 {
		t.Fatalf("the node of the other Machine is touched: %+v", n)
	}
	if n.Labels[v1alpha1.LabelKeyMachineName] != "elder" || len(n.Finalizers) != 1 {
		t.Errorf("labels %v, finalizers %v", n.Labels, n.Finalizers)
	}
}

// TestConflictEnds: who is the last to name the node has it, and takes it along.
func TestConflictEnds(t *testing.T) {
	h := newHarness(t)
	h.conflicting(v1alpha1.MachineRunning)
	h.addVM(machineName, "sim:///m1")
	h.declare(inPhase(v1alpha1.MachineRunning))
	h.join(ready)
	h.passOver("elder")
	h.Key.Name = machineName
	if got := h.Pass().RequeueAfter; got != foreignNodeRetry {
		t.Errorf("it looks again after %v, want %v: no event tells that the other one's label was put right", got, foreignNodeRetry)
	}
	h.Key.Name = "elder"
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Labels[v1alpha1.NodeLabelKey] = "node-shoot-elder" })
	h.Key.Name = machineName
	h.Settle()
	if got := h.node().Labels[v1alpha1.LabelKeyMachineName]; got != machineName {
		t.Errorf("the node is that of %q", got)
	}
	h.delete()
	h.Settle()
	if !h.gone() || h.node() != nil {
		t.Error("something is left")
	}
}

// TestDeletedNodeOfAnother: who deletes a node means the Machine that it belongs to.
func TestDeletedNodeOfAnother(t *testing.T) {
	h := newHarness(t)
	h.conflicting(v1alpha1.MachineRunning)
	h.declare(inPhase(v1alpha1.MachineRunning))
	h.join(ready)
	h.passOver("elder", machineName)
	if err := h.target.client.Delete(t.Context(), h.node()); err != nil {
		t.Fatal(err)
	}
	h.passOver("elder", machineName)
	if !h.machine().DeletionTimestamp.IsZero() {
		t.Error("the Machine is deleted for another's node")
	}
	h.Key.Name = "elder"
	if h.machine().DeletionTimestamp.IsZero() {
		t.Error("the Machine of the node is not deleted")
	}
}

// TestTwoNodesOneVM: a second node that says that it is the Machine's VM makes one event each
// time that it appears, and changes nothing.
func TestTwoNodesOneVM(t *testing.T) {
	h := newHarness(t)
	h.running()
	change(h, h.node(), func(n *corev1.Node) { n.Spec.ProviderID = "sim:///m1" })
	duplicate := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "renamed"}, Spec: corev1.NodeSpec{ProviderID: "sim:///m1"}}
	if err := h.target.client.Create(t.Context(), duplicate); err != nil {
		t.Fatal(err)
	}
	event := func(n *corev1.Node) {
		t.Helper()
		if got := woken(h.controller.mapper().ofNode(t.Context(), n)); !slices.Equal(got, []string{machineName}) {
			t.Fatalf("an event of node %s wakes %v", n.Name, got)
		}
		h.Settle()
		h.SettleAfter(time.Hour)
	}
	event(duplicate)
	event(h.node())
	event(duplicate)
	sent := h.takeEvents()
	if len(sent) != 1 || !strings.Contains(sent[0], "Node renamed also has provider ID sim:///m1; the machine uses node "+h.nodeName()) {
		t.Errorf("events %q, want one that names both nodes", sent)
	}
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning || len(h.methods()) != 0 || len(h.Driver.Calls(fake.DeleteMachine)) != 0 {
		t.Errorf("phase %q, calls %v", got, h.methods())
	}
	if err := h.target.client.Get(t.Context(), client.ObjectKeyFromObject(duplicate), duplicate); err != nil || len(duplicate.Labels)+len(duplicate.Finalizers)+len(duplicate.Annotations) != 0 {
		t.Errorf("the second node is written to: %v, %v, err %v", duplicate.Labels, duplicate.Finalizers, err)
	}
	if err := h.target.client.Delete(t.Context(), duplicate); err != nil {
		t.Fatal(err)
	}
	event(duplicate) // its deletion
	if sent := h.takeEvents(); len(sent) != 0 {
		t.Errorf("events of a node that is gone: %q", sent)
	}
	duplicate.ResourceVersion = ""
	if err := h.target.client.Create(t.Context(), duplicate); err != nil {
		t.Fatal(err)
	}
	event(duplicate)
	event(duplicate)
	if sent := h.takeEvents(); len(sent) != 1 {
		t.Errorf("events %q, want one since the node is back", sent)
	}
}
