package machine

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// named gives the Machine of the test another name.
func (h *harness) named(name string) func(*v1alpha1.Machine) {
	h.Key.Name = name
	return func(machine *v1alpha1.Machine) { machine.Name = name }
}

// longName is a name that is valid for Machines and Nodes, but too long for a label.
var longName = strings.Repeat("m", 64)

// TestMachine_NodeNameTooLongForLabel checks the life of a Machine whose driver returns such a name.
func TestMachine_NodeNameTooLongForLabel(t *testing.T) {
	h := newHarness(t)
	h.running(h.named(longName))
	machine, node := h.machine(), h.node()
	if label, found := machine.Labels[v1alpha1.NodeLabelKey]; found || machine.NodeName() != node.Name {
		t.Errorf("the label is %q and the node is %q, want no label and %q", label, machine.NodeName(), node.Name)
	}
	if !controllerutil.ContainsFinalizer(node, v1alpha1.FinalizerNode) {
		t.Error("the node does not have the finalizer")
	}
	list := &v1alpha1.MachineList{}
	err := h.controller.Client.List(h.Context(), list, client.MatchingFields{fieldindex.MachineByNode: node.Name})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d Machines in the index, want 1 (%v)", len(list.Items), err)
	}

	h.join(condition("Ready", "False"))
	h.Settle()
	if phase := h.machine().Status.CurrentStatus.Phase; phase != v1alpha1.MachineUnknown {
		t.Errorf("phase %q of a Machine with an unhealthy node, want Unknown", phase)
	}
	h.delete()
	h.Settle()
	if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
		t.Errorf("deleted: %v, the node exists: %v, VMs %v", h.gone(), h.node() != nil, h.Driver.VMs())
	}
}

// TestMachine_DeletedDespiteInvalidNodeName checks that a name that cannot be stored does not prevent a deletion.
func TestMachine_DeletedDespiteInvalidNodeName(t *testing.T) {
	for name, node := range map[string]string{
		"too long for a label": longName,
		"too long for a Node":  strings.Repeat("m", 254),
		"invalid":              "a node/\x00",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.addVM(machineName, "sim:///m1")
			h.Driver.Configure(func(config *fake.Config) {
				config.NodeName = func(*v1alpha1.Machine) string { return node }
			})
			h.declare(func(machine *v1alpha1.Machine) { machine.Finalizers = []string{v1alpha1.FinalizerMCM} })
			h.delete()
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("deleted: %v, VMs %v, last operation %q", h.gone(), h.Driver.VMs(), h.machine().Status.LastOperation.Description)
			}
		})
	}
}

// TestMachine_WatchesNodeWithLongName checks that a change of the node triggers a pass over its Machine.
func TestMachine_WatchesNodeWithLongName(t *testing.T) {
	h := newHarness(t)
	h.running(h.named(longName))
	requests := mapper{h.controller.Client}.ofNode(h.Context(), &corev1.Node{ObjectMeta: h.node().ObjectMeta})
	if len(requests) != 1 || requests[0].Name != longName {
		t.Errorf("requests %v, want one", requests)
	}
}
