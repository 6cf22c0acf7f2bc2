package provisioner

import (
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestFullDisk checks that a claim waits for free disk space, and reports that.
func TestFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while the provisioner of local mode creates the directory of a volume")
	fs := smallfs.New(t)
	b := newTestProvisioner(t)
	b.Dir = fs.Path("volumes")
	b.start()
	small := func(spec *corev1.PersistentVolumeClaimSpec) {
		spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("64Ki")
	}
	b.claim("first", small)
	b.awaitBound("first")
	fs.FillFiles()
	claim := b.claim("second", small)
	b.eventually("an event that names the directory", func() (bool, any) {
		events, err := b.Client.CoreV1().Events(b.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, event := range events.Items {
			if event.InvolvedObject.UID == claim.UID && event.Type == corev1.EventTypeWarning && event.Reason == reasonFailed &&
				strings.Contains(event.Message, string(claim.UID)) && strings.Contains(event.Message, syscall.ENOSPC.Error()) {
				return true, nil
			}
		}
		return false, events.Items
	})
	fs.FreeSpace()
	b.awaitBound("second")
	t.Attr("outcome", "The claim waits, and an event names the directory; the claim is bound once there is free space")
}
