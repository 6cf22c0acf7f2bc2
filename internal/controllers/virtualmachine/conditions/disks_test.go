package conditions

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
)

// TestRevocationIsNoNews: that a server was asked to revoke a moment ago is said, and is no event. That it did not do so is one.
func TestRevocationIsNoNews(t *testing.T) {
	vm := &v1alpha1.VirtualMachine{}
	for name, c := range map[string]struct {
		asked  disks.State
		reason string
		event  bool
	}{
		"asked":  {disks.State{}, v1alpha1.ReasonDiskServerStarting, false},
		"failed": {disks.State{Err: errors.New("no answer")}, v1alpha1.ReasonStorageNotRevoked, true},
	} {
		t.Run(name, func(t *testing.T) {
			is := DisksServed(vm, Server{Pod: podWith(corev1.PodRunning, nil), Serves: true, Next: true, Asked: c.asked})
			if is.Status != metav1.ConditionFalse || is.Reason != c.reason {
				t.Errorf("the condition is %+v", is)
			}
			if _, text := EventFor(vm, &is, nil); (text != "") != c.event {
				t.Errorf("the event is %q", text)
			}
		})
	}
}
