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
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
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
			w := newWorld(t)
			machines := w.load(file)
			if len(machines) == 0 {
				t.Fatal("no Machines are recorded")
			}
			for _, before := range machines {
				if w.takeOver(before) {
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
func (w *world) takeOver(before v1alpha1.Machine) bool {
	w.Helper()
	w.name, w.writes, w.driver.calls = before.Name, nil, nil
	w.settle()
	if before.DeletionTimestamp != nil {
		if !w.gone() || w.driver.vms[before.Name] != "" || w.recordedNode() != nil {
			w.Errorf("%s is not deleted", before.Name)
		}
		return false
	}
	if before.Spec.ProviderID != "" && w.driver.made(instance.MethodCreate) != 0 {
		w.Errorf("%s has a second VM", before.Name)
	}
	return w.restsAsMCMLeftIt(before)
}

// restsAsMCMLeftIt checks that a Machine is left alone if it is in a state that asks for
// nothing, and reports whether it is.
func (w *world) restsAsMCMLeftIt(before v1alpha1.Machine) bool {
	w.Helper()
	node := w.recordedNode()
	if before.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || node == nil || !cmp.Equal(before.Status.Conditions, node.Status.Conditions) {
		return false
	}
	if len(w.writes) != 0 {
		w.Errorf("%s is Running, and written to:\n%s", before.Name, w.said())
	}
	if len(w.driver.calls) != 0 {
		w.Errorf("%s is Running, and the driver was called: %v", before.Name, w.driver.calls)
	}
	return true
}

func (w *world) recordedNode() *corev1.Node {
	w.Helper()
	node := &corev1.Node{}
	if err := w.target.client.Get(w.Context(), client.ObjectKey{Name: w.name}, node); err != nil {
		return nil
	}
	return node
}

// load puts recorded objects into the world, with the VMs that the Machines tell of, and
// returns the Machines.
func (w *world) load(file string) []v1alpha1.Machine {
	w.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		w.Fatal(err)
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		w.Fatal(err)
	}
	decoder := codecs.UniversalDeserializer()
	var control, target []client.Object
	var machines []v1alpha1.Machine
	for _, item := range list.Items {
		decoded, _, err := decoder.Decode(item, nil, nil)
		if err != nil {
			w.Fatal(err)
		}
		object := decoded.(client.Object)
		switch object := object.(type) {
		case *v1alpha1.Machine:
			machines = append(machines, *object.DeepCopy())
			w.namespace = object.Namespace
			if object.Spec.ProviderID != "" {
				w.driver.vms[object.Name] = object.Spec.ProviderID
			}
		case *corev1.Node:
			target = append(target, object)
			continue
		}
		control = append(control, object)
	}
	w.control, w.target.client = newFake(control...), newFake(target...)
	w.restart(w.driver)
	return machines
}
