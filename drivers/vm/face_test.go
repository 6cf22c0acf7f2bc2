package vm

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// TestFacesAreApart: machines of two APIs with one name have VMs of two names, and only a
// face that is known counts.
func TestFacesAreApart(t *testing.T) {
	names := map[string]string{}
	for annotation, want := range map[string]string{"": "machine", driver.FaceClusterAPI: "capi", "machine": "machine", "bad value": "machine"} {
		class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{driver.AnnotationFace: annotation}}}
		got := faceOf(class)
		if got != want {
			t.Errorf("%q counts as %q", annotation, got)
		}
		names[got] = identity{Face: got, Namespace: "ns", Machine: "m"}.name()
	}
	if names["machine"] == names["capi"] {
		t.Errorf("both are called %s", names["capi"])
	}
}

// The node of a Machine is called like that, and the one of Cluster API's like its guest.
func TestNodeNameOfEachFace(t *testing.T) {
	for face, want := range map[string]string{faceMachine: "m", driver.FaceClusterAPI: "m-hash"} {
		c := call{identity: identity{Face: face, Machine: "m"}, key: client.ObjectKey{Name: "m-hash"}}
		if got := c.nodeName(); got != want {
			t.Errorf("node of face %s: %s, want %s", face, got, want)
		}
	}
}
