package vm

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
