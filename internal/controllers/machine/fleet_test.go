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

// TestFleetOfMCM: a manager that takes over the objects of MCM's creates no second VM,
// writes nothing where there is nothing to do, and ends what MCM had begun to delete.
func TestFleetOfMCM(t *testing.T) {
	files, err := filepath.Glob("../../../api/machine/v1alpha1/testdata/mcm/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("recorded objects: %v, %d files", err, len(files))
	}
	rested := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			h := newHarness(t)
			machines := h.load(file)
			if len(machines) == 0 {
				t.Fatal("no Machines are recorded")
			}
			for _, before := range machines {
				if h.takeOver(before) {
					rested++
				}
			}
		})
	}
	if rested < len(files) {
		t.Errorf("only %d Machines of %d fleets are in a state that asks for nothing; are they compared rightly?", rested, len(files))
	}
}

// takeOver checks what becomes of a Machine, and reports whether nothing had to.
func (h *harness) takeOver(before v1alpha1.Machine) bool {
	h.Helper()
	h.Key.Name, h.Writes = before.Name, nil
	h.Driver.ForgetCalls()
	h.Settle()
	if before.DeletionTimestamp != nil {
		if !h.gone() || h.hasVM(before.Name) || h.recordedNode() != nil {
			h.Errorf("%s is not deleted", before.Name)
		}
		return false
	}
	if before.Spec.ProviderID != "" && len(h.Driver.Calls(fake.CreateMachine)) != 0 {
		h.Errorf("%s has a second VM", before.Name)
	}
	return h.restsAsMCMLeftIt(before)
}

// restsAsMCMLeftIt checks that a Machine is left alone if it is in a state that asks for
// nothing, and reports whether it is.
func (h *harness) restsAsMCMLeftIt(before v1alpha1.Machine) bool {
	h.Helper()
	node := h.recordedNode()
	if before.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || node == nil || !cmp.Equal(before.Status.Conditions, node.Status.Conditions) {
		return false
	}
	if len(h.Writes) != 0 {
		h.Errorf("%s is Running, and written to:\n%s", before.Name, h.LastWrites())
	}
	if len(h.methods()) != 0 {
		h.Errorf("%s is Running, and the driver was called: %v", before.Name, h.methods())
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

// load puts recorded objects into the clusters, with the VMs that the Machines name, and
// returns the Machines.
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
