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

// TestServedDisks_RevocationSendsNoEvent checks that a revocation in progress is shown in the condition but causes no event, and that
// a failed one does cause an event.
func TestServedDisks_RevocationSendsNoEvent(t *testing.T) {
	vm := &v1alpha1.VirtualMachine{}
	for name, c := range map[string]struct {
		state  disks.State
		reason string
		event  bool
	}{
		"in progress": {disks.State{}, v1alpha1.ReasonDiskServerStarting, false},
		"failed":      {disks.State{Err: errors.New("no response")}, v1alpha1.ReasonStorageNotRevoked, true},
	} {
		t.Run(name, func(t *testing.T) {
			is := disksServed(&scope{vm: vm, served: servedDisks{pod: podWith(corev1.PodRunning, nil), process: &disks.Server{}, revoking: true, state: c.state}}, nil)
			if is.Status != metav1.ConditionFalse || is.Reason != c.reason {
				t.Errorf("the condition is %+v", is)
			}
			if _, text := eventFor(vm, &is, nil); (text != "") != c.event {
				t.Errorf("the event is %q", text)
			}
		})
	}
}

// TestDiskServer_UnreachableIsReported checks that a disk server on an unreachable host is not reported as serving, and that one that
// is being deleted is not reported as starting. The condition contains what users must do.
func TestDiskServer_UnreachableIsReported(t *testing.T) {
	unreachable := func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ServerContainerName, Ready: true}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	}
	deleting := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	const host, isDeleted = "Host host-1 is unreachable", "is being deleted"
	for name, c := range map[string]struct {
		pod       *corev1.Pod
		given     servedDisks
		status    metav1.ConditionStatus
		reason    string
		want, not string
	}{
		"was serving":                         {podWith(corev1.PodRunning, unreachable), servedDisks{process: &disks.Server{}, state: disks.State{Done: true}}, metav1.ConditionUnknown, v1alpha1.ReasonHostUnreachable, host, isDeleted},
		"must revoke":                         {podWith(corev1.PodRunning, unreachable), servedDisks{process: &disks.Server{}, revoking: true, state: disks.State{Err: errors.New("no response")}}, metav1.ConditionFalse, v1alpha1.ReasonStorageNotRevoked, host, isDeleted},
		"never served":                        {podWith(corev1.PodRunning, unreachable), servedDisks{}, metav1.ConditionFalse, v1alpha1.ReasonDiskServerStarting, host, isDeleted},
		"being deleted":                       {podWith(corev1.PodRunning, deleting), servedDisks{}, metav1.ConditionFalse, v1alpha1.ReasonDiskServerStarting, isDeleted, host},
		"unreachable and being deleted":       {podWith(corev1.PodRunning, func(pod *corev1.Pod) { unreachable(pod); deleting(pod) }), servedDisks{}, metav1.ConditionFalse, v1alpha1.ReasonDiskServerStarting, isDeleted, "yet"},
		"unreachable and being deleted, host": {podWith(corev1.PodRunning, func(pod *corev1.Pod) { unreachable(pod); deleting(pod) }), servedDisks{}, metav1.ConditionFalse, v1alpha1.ReasonDiskServerStarting, host, "yet"},
		"serves":                              {podWith(corev1.PodRunning, nil), servedDisks{process: &disks.Server{}, state: disks.State{Done: true}}, metav1.ConditionTrue, "Served", "serves the disks", host},
	} {
		t.Run(name, func(t *testing.T) {
			c.given.pod = c.pod
			is := disksServed(&scope{vm: &v1alpha1.VirtualMachine{}, served: c.given}, nil)
			if is.Status != c.status || is.Reason != c.reason || !strings.Contains(is.Message, c.want) || strings.Contains(is.Message, c.not) {
				t.Errorf("the condition is %+v", is)
			}
		})
	}
}
