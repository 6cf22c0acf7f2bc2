package virtualmachine

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
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
			is := disksServed(&scope{vm: vm, served: servedDisks{pod: podWith(corev1.PodRunning, nil), process: &disks.Server{}, revoking: true, asked: c.asked}}, nil)
			if is.Status != metav1.ConditionFalse || is.Reason != c.reason {
				t.Errorf("the condition is %+v", is)
			}
			if _, text := eventFor(vm, &is, nil); (text != "") != c.event {
				t.Errorf("the event is %q", text)
			}
		})
	}
}

// TestServerThatIsAway: a server that nobody hears of is no server that serves, and one that is to go is none that starts. What
// somebody has to do is said, as it may be for ever.
func TestServerThatIsAway(t *testing.T) {
	away := func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ServerContainerName, Ready: true}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	}
	going := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	const host, isDeleted = "Host host-1 does not answer", "is being deleted"
	for name, c := range map[string]struct {
		pod       *corev1.Pod
		given     servedDisks
		status    metav1.ConditionStatus
		reason    string
		says, not string
	}{
		"served last":    {podWith(corev1.PodRunning, away), servedDisks{process: &disks.Server{}, asked: disks.State{Done: true}}, metav1.ConditionUnknown, v1alpha1.ReasonHostUnreachable, host, isDeleted},
		"has to revoke":  {podWith(corev1.PodRunning, away), servedDisks{process: &disks.Server{}, revoking: true, asked: disks.State{Err: errors.New("no answer")}}, metav1.ConditionFalse, v1alpha1.ReasonStorageNotRevoked, host, isDeleted},
		"never served":   {podWith(corev1.PodRunning, away), servedDisks{}, metav1.ConditionFalse, v1alpha1.ReasonDiskServerStarting, host, isDeleted},
		"is deleted":     {podWith(corev1.PodRunning, going), servedDisks{}, metav1.ConditionFalse, v1alpha1.ReasonDiskServerStarting, isDeleted, host},
		"deleted on one": {podWith(corev1.PodRunning, func(pod *corev1.Pod) { away(pod); going(pod) }), servedDisks{}, metav1.ConditionFalse, v1alpha1.ReasonDiskServerStarting, isDeleted, "yet"},
		"and says so":    {podWith(corev1.PodRunning, func(pod *corev1.Pod) { away(pod); going(pod) }), servedDisks{}, metav1.ConditionFalse, v1alpha1.ReasonDiskServerStarting, host, "yet"},
		"serves":         {podWith(corev1.PodRunning, nil), servedDisks{process: &disks.Server{}, asked: disks.State{Done: true}}, metav1.ConditionTrue, "Served", "serves the disks", host},
	} {
		t.Run(name, func(t *testing.T) {
			c.given.pod = c.pod
			is := disksServed(&scope{vm: &v1alpha1.VirtualMachine{}, served: c.given}, nil)
			if is.Status != c.status || is.Reason != c.reason || !strings.Contains(is.Message, c.says) || strings.Contains(is.Message, c.not) {
				t.Errorf("the condition is %+v", is)
			}
		})
	}
}
