package takeover

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A difference is a state that our manager never writes, and the equivalent that it writes instead. It converts
// the objects of a recording.
//
// MCM writes the progress of a deletion before each of its steps, and performs each step in a pass of its own,
// five seconds after the last. We perform all possible steps in one pass, and write the status once, at its end.
// Between two steps, the Machine therefore has the status from before the pass. If MCM continues from there, it
// repeats a completed step, which is possible for all of them.
type difference func(recorded []*unstructured.Unstructured)

// going calls the function with each Machine that is being deleted.
func going(change func(machine *unstructured.Unstructured)) difference {
	return func(recorded []*unstructured.Unstructured) {
		for _, object := range recorded {
			if object.GetKind() == "Machine" && object.GetDeletionTimestamp() != nil {
				change(object)
			}
		}
	}
}

// labelledStatusOf sets the status of Machines whose nodes have a label of an in-place update to the status that
// MCM had written at an earlier moment. MCM performs each step of an in-place update in a pass of its own, and
// writes the Machine's status in between. We write the node's condition in the same pass, before. Both continue
// from the labels and the condition of the node, regardless of the Machine's status.
func labelledStatusOf(t *testing.T, earlier, label string) difference {
	statuses := map[string]any{}
	for _, object := range read(t, path(earlier), "", "") {
		if object.GetKind() == "Machine" {
			statuses[object.GetName()] = object.Object["status"]
		}
	}
	return func(recorded []*unstructured.Unstructured) {
		labelled := map[string]bool{}
		for _, object := range recorded {
			if _, is := object.GetLabels()[label]; is && object.GetKind() == "Node" {
				labelled[object.GetName()] = true
			}
		}
		for _, object := range recorded {
			if object.GetKind() == "Machine" && labelled[object.GetName()] {
				object.Object["status"] = statuses[object.GetName()]
			}
		}
	}
}

// statusOf sets the status of Machines that are being deleted to what MCM had written at an earlier moment.
func statusOf(t *testing.T, earlier string) difference {
	statuses := map[string]any{}
	for _, object := range read(t, path(earlier), "", "") {
		if object.GetKind() == "Machine" {
			statuses[object.GetName()] = object.Object["status"]
		}
	}
	return going(func(machine *unstructured.Unstructured) {
		status, ok := statuses[machine.GetName()]
		if !ok {
			t.Fatalf("%s was not there at %s", machine.GetName(), earlier)
		}
		machine.Object["status"] = status
	})
}

// wantText sets the next step in the status of Machines that are being deleted.
func wantText(t *testing.T, marker string) difference {
	return going(func(machine *unstructured.Unstructured) {
		must(t, unstructured.SetNestedField(machine.Object, marker, "status", "lastOperation", "description"))
	})
}

// marked marks the nodes of these Machines. MCM marks a node when it starts to drain, after it has written that
// this is the next step: 07-deleting-vm has a node like that. We mark it immediately, so that nothing is
// scheduled on a node whose Pods are being evicted.
func marked(t *testing.T) difference {
	return func(recorded []*unstructured.Unstructured) {
		leave := map[string]bool{}
		going(func(machine *unstructured.Unstructured) { leave[machine.GetLabels()["node"]] = true })(recorded)
		for _, object := range recorded {
			if object.GetKind() != "Node" || !leave[object.GetName()] {
				continue
			}
			must(t, unstructured.SetNestedField(object.Object, true, "spec", "unschedulable"))
			conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
			must(t, err)
			terminating := map[string]any{
				"type": "Terminating", "status": "True", "reason": "ScaleDown", "message": "Machine Controller is scaling down machine",
			}
			must(t, unstructured.SetNestedSlice(object.Object, append(conditions, terminating), "status", "conditions"))
		}
	}
}
