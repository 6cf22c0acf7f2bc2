package noderef_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

const capacityRecord = v1alpha1.AnnotationKeyLastAppliedVirtualCapacity

func resources(pairs ...string) corev1.ResourceList {
	if len(pairs) == 0 {
		return nil
	}
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// TestCapacity_OverridesNodeResources tests the merge of current, last applied and desired capacity.
func TestCapacity_OverridesNodeResources(t *testing.T) {
	const device = "example.com/device"
	cases := map[string]struct {
		current corev1.ResourceList
		record  string
		want    corev1.ResourceList

		merged corev1.ResourceList
		after  string
	}{
		"nothing anywhere":           {resources("cpu", "4"), "", nil, resources("cpu", "4"), ""},
		"no capacity yet":            {nil, "", resources(device, "2"), resources(device, "2"), `{"example.com/device":"2"}`},
		"added":                      {resources("cpu", "4"), "", resources(device, "2"), resources("cpu", "4", device, "2"), `{"example.com/device":"2"}`},
		"in force":                   {resources("cpu", "4", device, "2"), `{"example.com/device":"2"}`, resources(device, "2"), resources("cpu", "4", device, "2"), `{"example.com/device":"2"}`},
		"in force, another notation": {resources(device, "2"), `{"example.com/device":"2000m"}`, resources(device, "2"), resources(device, "2"), `{"example.com/device":"2000m"}`},
		"changed in the class":       {resources(device, "2"), `{"example.com/device":"2"}`, resources(device, "3"), resources(device, "3"), `{"example.com/device":"3"}`},
		"changed on the node":        {resources(device, "9"), `{"example.com/device":"2"}`, resources(device, "2"), resources(device, "2"), `{"example.com/device":"2"}`},
		"removed on the node":        {resources("cpu", "4"), `{"example.com/device":"2"}`, resources(device, "2"), resources("cpu", "4", device, "2"), `{"example.com/device":"2"}`},
		"one removed in class":       {resources(device, "2", "a", "1"), `{"a":"1","example.com/device":"2"}`, resources("a", "1"), resources("a", "1"), `{"a":"1"}`},
		"all removed in class":       {resources("cpu", "4", device, "2"), `{"example.com/device":"2"}`, nil, resources("cpu", "4"), ""},
		"already removed by others":  {resources("cpu", "4"), `{"example.com/device":"2"}`, nil, resources("cpu", "4"), ""},
		"owned by others":            {resources("theirs", "1"), "", resources(device, "2"), resources("theirs", "1", device, "2"), `{"example.com/device":"2"}`},
		"invalid record":             {resources("theirs", "1"), "{", resources(device, "2"), resources("theirs", "1", device, "2"), `{"example.com/device":"2"}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{Status: corev1.NodeStatus{Capacity: tc.current}}
			if tc.record != "" {
				n.Annotations = map[string]string{capacityRecord: tc.record}
			}
			before := n.DeepCopy()
			noderef.SetCapacity(n, tc.want)
			if !equality.Semantic.DeepEqual(n.Status.Capacity, tc.merged) {
				t.Errorf("capacity %v, want %v", n.Status.Capacity, tc.merged)
			}
			if diff := cmp.Diff(before.ObjectMeta, n.ObjectMeta); diff != "" {
				t.Errorf("the record changes too early (-was +is):\n%s", diff)
			}
			if err := noderef.RecordCapacity(n, tc.want); err != nil {
				t.Fatal(err)
			}
			if got := n.Annotations[capacityRecord]; got != tc.after {
				t.Errorf("record %q, want %q", got, tc.after)
			}
			settled := n.DeepCopy()
			noderef.SetCapacity(n, tc.want)
			if err := noderef.RecordCapacity(n, tc.want); err != nil || !equality.Semantic.DeepEqual(settled, n) {
				t.Errorf("a second time changes something: %v", err)
			}
		})
	}
}

// TestCapacity_DoesNotModifyCache checks that the capacity list of a cached node is not modified, because
// other readers share it.
func TestCapacity_DoesNotModifyCache(t *testing.T) {
	shared := resources("cpu", "4")
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{}, Status: corev1.NodeStatus{Capacity: shared}}
	noderef.SetCapacity(n, resources("a", "1"))
	if len(shared) != 1 {
		t.Errorf("the list became %v", shared)
	}
}
