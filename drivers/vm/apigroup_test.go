package vm

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// TestDriver_SeparatesAPIGroups: machines of the same name in two API groups have VMs with different names. Unknown
// groups count as machine.sapcloud.io.
func TestDriver_SeparatesAPIGroups(t *testing.T) {
	names := map[string]string{}
	for annotation, want := range map[string]string{"": v1alpha1.GroupName, driver.APIGroupClusterAPI: driver.APIGroupClusterAPI, "machine": v1alpha1.GroupName, "bad value": v1alpha1.GroupName} {
		class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{driver.AnnotationAPIGroup: annotation}}}
		got := apiGroupOf(class)
		if got != want {
			t.Errorf("annotation %q counts as group %q", annotation, got)
		}
		names[got] = identity{APIGroup: got, Namespace: "ns", Machine: "m"}.name()
	}
	if names[v1alpha1.GroupName] == names[driver.APIGroupClusterAPI] {
		t.Errorf("both groups have the VM name %s", names[driver.APIGroupClusterAPI])
	}
}

// The node of a Machine has the machine's name. The node of a Cluster API machine has the name of its VM.
func TestNodeName_OfEachAPIGroup(t *testing.T) {
	for group, want := range map[string]string{v1alpha1.GroupName: "m", driver.APIGroupClusterAPI: "m-hash"} {
		c := call{identity: identity{APIGroup: group, Machine: "m"}, key: client.ObjectKey{Name: "m-hash"}}
		if got := c.nodeName(); got != want {
			t.Errorf("node of group %s: %s, want %s", group, got, want)
		}
	}
}
