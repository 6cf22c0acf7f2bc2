package machine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
)

// TestMachine_TakesOverMachinesOfMCM checks that a manager that takes over objects from MCM creates no second VM, writes nothing to
// Machines that need no change, and completes deletions that MCM began.
func TestMachine_TakesOverMachinesOfMCM(t *testing.T) {
	files, err := filepath.Glob("../../../api/machine/v1alpha1/testdata/mcm/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("reading recorded objects: %v, %d files", err, len(files))
	}
	rested := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			h := newHarness(t)
			machines := h.load(file)
			if len(machines) == 0 {
				t.Fatal("the file contains no Machines")
			}
			for _, before := range machines {
				if h.takeOver(before) {
					rested++
				}
			}
		})
	}
	if rested < len(files) {
		t.Errorf("only %d Machines of %d fleets need no change; check the comparison", rested, len(files))
	}
}

// takeOver checks the passes over a Machine, and reports whether it needed no change.
func (h *harness) takeOver(before v1alpha1.Machine) bool {
	h.Helper()
	h.Key.Name, h.Writes = before.Name, nil
	h.Driver.ForgetCalls()
	h.Settle()
	if before.DeletionTimestamp != nil {
		if !h.gone() || h.hasVM(before.Name) || h.recordedNode() != nil {
			h.Errorf("%s was not deleted", before.Name)
		}
		return false
	}
	if before.Spec.ProviderID != "" && len(h.Driver.Calls(fake.CreateMachine)) != 0 {
		h.Errorf("%s has a second VM", before.Name)
	}
	return h.restsAsMCMLeftIt(before)
}

// restsAsMCMLeftIt checks that a Machine that needs no change is not changed, and reports whether it is such a
// Machine.
func (h *harness) restsAsMCMLeftIt(before v1alpha1.Machine) bool {
	h.Helper()
	node := h.recordedNode()
	if before.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || node == nil || !cmp.Equal(before.Status.Conditions, node.Status.Conditions) {
		return false
	}
	if len(h.Writes) != 0 {
		h.Errorf("%s is Running, but there are writes:\n%s", before.Name, h.LastWrites())
	}
	if len(h.methods()) != 0 {
		h.Errorf("%s is Running, but the driver was called: %v", before.Name, h.methods())
	}
	return true
}

func (h *harness) recordedNode() *corev1.Node {
	h.Helper()
	node := &corev1.Node{}
	if err := h.target.client.Get(h.Context(), client.ObjectKey{Name: h.Key.Name}, node); err != nil {
		return nil
	}
	return node
}

// load creates the recorded objects in the clusters, and the VMs that the Machines name. It returns the Machines.
func (h *harness) load(file string) []v1alpha1.Machine {
	h.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		h.Fatal(err)
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		h.Fatal(err)
	}
	decoder := codecs.UniversalDeserializer()
	var control, target []client.Object
	var machines []v1alpha1.Machine
	for _, item := range list.Items {
		decoded, _, err := decoder.Decode(item, nil, nil)
		if err != nil {
			h.Fatal(err)
		}
		object := decoded.(client.Object)
		switch object := object.(type) {
		case *v1alpha1.Machine:
			machines = append(machines, *object.DeepCopy())
			h.Key.Namespace = object.Namespace
			if object.Spec.ProviderID != "" {
				vm := vmOf(object.Namespace, object.Name, object.Spec.ProviderID)
				vm.Class = object.Namespace + "/" + object.Spec.Class.Name
				h.Driver.Add(vm)
			}
		case *corev1.Node:
			target = append(target, object)
			continue
		}
		control = append(control, object)
	}
	h.control, h.target.client = newFake(control...), newFake(target...)
	h.restart()
	return machines
}
