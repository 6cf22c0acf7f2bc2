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

// conflicting creates an older Machine that has its own VM and names the node of the Machine under test.
func (h *harness) conflicting(phase v1alpha1.MachinePhase) {
	h.Helper()
	h.elder(inPhase(phase), func(m *v1alpha1.Machine) {
		m.CreationTimestamp = metav1.NewTime(h.Clock.Now().Add(-time.Hour))
		m.Labels[v1alpha1.NodeLabelKey] = h.nodeName()
		m.Spec.ProviderID = "sim:///elder"
	})
	h.addVM("elder", "sim:///elder")
}

// TestMachine_SharedNodeHasOneOwner checks that only one of two Machines that name the same node writes to it, and that the
// other one reports the owner once.
func TestMachine_SharedNodeHasOneOwner(t *testing.T) {
	const elder = "elder"
	cases := map[string]struct {
		reason     string
		providerID string // of the node
		owner      string
	}{
		"no ID":           {"the older Machine owns the node", "", elder},
		"unknown ID":      {"some kubelets use another format", "else:///x", elder},
		"the elder's ID":  {"the provider ID decides", "sim:///elder", elder},
		"the younger's":   {"the provider ID decides, not the age", "sim:///m1", machineName},
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
				t.Errorf("the node belongs to %q, want %q: %s", got, tc.owner, tc.reason)
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
					t.Errorf("phase of %s is %q because of a label", h.Key.Name, got)
				}
			}
		})
	}
}

// TestMachine_DoesNotJoinWithForeignNode checks that a Machine does not join with the node of another Machine, and is replaced
// after the creation timeout. Its deletion removes its VM but not the other Machine's node.
func TestMachine_DoesNotJoinWithForeignNode(t *testing.T) {
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
		t.Errorf("deleted: %v, VMs %v", h.gone(), h.Driver.VMs())
	}
	n := h.node()
	if n == nil || n.Spec.Unschedulable || terminationCondition(n) != nil || len(d.requests) != 0 {
		t.Fatalf("the node of the other Machine was changed: %+v", n)
	}
	if n.Labels[v1alpha1.LabelKeyMachineName] != "elder" || len(n.Finalizers) != 1 {
		t.Errorf("labels %v, finalizers %v", n.Labels, n.Finalizers)
	}
}

// TestMachine_LastOwnerGetsSharedNode checks that the last Machine that names the node gets it, and deletes it with itself.
func TestMachine_LastOwnerGetsSharedNode(t *testing.T) {
	h := newHarness(t)
	h.conflicting(v1alpha1.MachineRunning)
	h.addVM(machineName, "sim:///m1")
	h.declare(inPhase(v1alpha1.MachineRunning))
	h.join(ready)
	h.passOver("elder")
	h.Key.Name = machineName
	if got := h.Pass().RequeueAfter; got != foreignNodeRetry {
		t.Errorf("the next pass is due in %v, want %v, since a change of the other Machine's label triggers no pass", got, foreignNodeRetry)
	}
	h.Key.Name = "elder"
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Labels[v1alpha1.NodeLabelKey] = "node-shoot-elder" })
	h.Key.Name = machineName
	h.Settle()
	if got := h.node().Labels[v1alpha1.LabelKeyMachineName]; got != machineName {
		t.Errorf("the node belongs to %q", got)
	}
	h.delete()
	h.Settle()
	if !h.gone() || h.node() != nil {
		t.Error("the deletion is incomplete")
	}
}

// TestMachine_DeletedNodeDeletesOnlyItsOwner checks that the deletion of a node deletes only the Machine that owns it.
func TestMachine_DeletedNodeDeletesOnlyItsOwner(t *testing.T) {
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
		t.Error("the Machine was deleted with another Machine's node")
	}
	h.Key.Name = "elder"
	if h.machine().DeletionTimestamp.IsZero() {
		t.Error("the owner of the node was not deleted")
	}
}

// TestMachine_DuplicateNodeIsReported checks that a second node with the Machine's provider ID causes one event each time that it
// appears, and no other change.
func TestMachine_DuplicateNodeIsReported(t *testing.T) {
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
			t.Fatalf("an event of node %s triggers passes over %v", n.Name, got)
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
		t.Errorf("the second node was changed: %v, %v, err %v", duplicate.Labels, duplicate.Finalizers, err)
	}
	if err := h.target.client.Delete(t.Context(), duplicate); err != nil {
		t.Fatal(err)
	}
	event(duplicate) // its deletion
	if sent := h.takeEvents(); len(sent) != 0 {
		t.Errorf("events about a deleted node: %q", sent)
	}
	duplicate.ResourceVersion = ""
	if err := h.target.client.Create(t.Context(), duplicate); err != nil {
		t.Fatal(err)
	}
	event(duplicate)
	event(duplicate)
	if sent := h.takeEvents(); len(sent) != 1 {
		t.Errorf("events %q, want one after the node reappeared", sent)
	}
}
