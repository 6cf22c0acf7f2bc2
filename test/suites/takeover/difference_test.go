package takeover

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A difference is what our manager never writes of a moment, and what there is instead. It
// changes the objects of a recording to that.
//
// MCM writes where a deletion stands before each of its steps, and takes each in a pass of its
// own, five seconds after the last. We take all steps that can be taken in one pass, and write
// the status once, at its end. So while we are between two steps, the Machine has the
// status from before the pass. MCM goes on from there by doing a step again that is done: what
// the words of the status lead it to was begun at that time, and can be repeated.
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

// labelledStatusOf has the Machines whose nodes have a label of an update in place say what MCM had written at
// an earlier moment. MCM takes each step of an update in a pass of its own, and writes the Machine's status in
// between. We write the node's condition in the same pass, before. Both go on by the labels and the condition
// of the node, whatever the Machine's status repeats of them.
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

// statusOf has the Machines that are being deleted say what MCM had written at an earlier
// moment.
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

// says has the Machines that are being deleted say that this is the next step.
func says(t *testing.T, marker string) difference {
	return going(func(machine *unstructured.Unstructured) {
		must(t, unstructured.SetNestedField(machine.Object, marker, "status", "lastOperation", "description"))
	})
}

// marked has their nodes marked, which MCM does when it begins to drain, after it has written
// that this is next: 07-deleting-vm has a node like that. We do it at once, so that nothing is
// placed on a node whose pods are told to leave.
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
