package noderef_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// recorded is the directory with nodes and machines of a real MCM, which several packages use.
const recorded = "../../../api/machine/v1alpha1/testdata/mcm"

// TestAdopt_KeepsNodesOfMCM checks that a node that MCM has adopted is not written again, and that
// MCM's records on it are understood.
func TestAdopt_KeepsNodesOfMCM(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(recorded, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded fleets in %s: %v", recorded, err)
	}
	adopted := 0
	for _, file := range files {
		machines, nodes := read(t, file)
		for _, machine := range machines {
			n := nodes[machine.Labels[v1alpha1.NodeLabelKey]]
			if n == nil || !strings.Contains(strings.Join(n.Finalizers, " "), v1alpha1.FinalizerNode) {
				continue // not joined, or not yet seen by MCM
			}
			adopted++
			checkTakeover(t, filepath.Base(file), machine, n)
		}
	}
	if adopted < 50 {
		t.Errorf("only %d adopted nodes were found", adopted)
	}
}

func checkTakeover(t *testing.T, file string, machine *v1alpha1.Machine, n *corev1.Node) {
	t.Helper()
	before := n.DeepCopy()
	if err := noderef.Adopt(n, machine); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, n); diff != "" {
		t.Errorf("%s: node %s changes (-MCM +Millwright):\n%s", file, n.Name, diff)
	}

	// Check that the record can be used: what MCM applied is removed when the template no longer contains it.
	emptied := machine.DeepCopy()
	emptied.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{}
	if err := noderef.Adopt(n, emptied); err != nil {
		t.Fatal(err)
	}
	for key := range machine.Spec.NodeTemplateSpec.Labels {
		if _, left := n.Labels[key]; left {
			t.Errorf("%s: node %s keeps the label %s", file, n.Name, key)
		}
	}
	for key := range machine.Spec.NodeTemplateSpec.Annotations {
		if _, left := n.Annotations[key]; left {
			t.Errorf("%s: node %s keeps the annotation %s", file, n.Name, key)
		}
	}
	if got, want := len(n.Spec.Taints), len(before.Spec.Taints)-len(machine.Spec.NodeTemplateSpec.Spec.Taints); got != want {
		t.Errorf("%s: node %s has %d taints left, want %d", file, n.Name, got, want)
	}
}

func read(t *testing.T, file string) ([]*v1alpha1.Machine, map[string]*corev1.Node) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	var machines []*v1alpha1.Machine
	nodes := map[string]*corev1.Node{}
	for _, item := range list.Items {
		var kind struct{ Kind string }
		machine, n := &v1alpha1.Machine{}, &corev1.Node{}
		if err := json.Unmarshal(item, &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "Machine":
			err = json.Unmarshal(item, machine)
			machines = append(machines, machine)
		case "Node":
			err = json.Unmarshal(item, n)
			nodes[n.Name] = n
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return machines, nodes
}
