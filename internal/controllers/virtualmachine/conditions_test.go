package virtualmachine

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func podWith(phase corev1.PodPhase, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-x", UID: "1"}, Status: corev1.PodStatus{Phase: phase}}
	pod.Spec.NodeName = "host-1"
	if change != nil {
		change(pod)
	}
	return pod
}

// waiting returns a Pod whose container the kubelet cannot start yet.
func waiting(reason, message string) *corev1.Pod {
	return podWith(corev1.PodPending, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerName, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}}}
	})
}

// terminatedPod returns a Pod whose hypervisor terminated with a message.
func terminatedPod(message string) *corev1.Pod { return containerTerminated("Error", message) }

// containerTerminated returns a Pod whose container terminated, with the kubelet's reason.
func containerTerminated(reason, message string) *corev1.Pod {
	return podWith(corev1.PodFailed, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerName, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: reason, Message: message},
		}}}
	})
}

func report(state vmpb.ReportStateRequest_State, message string) *vmpb.ReportStateRequest {
	return &vmpb.ReportStateRequest{State: state, Message: message}
}

func stopped(cause vmpb.ReportStateRequest_Cause) *vmpb.ReportStateRequest {
	return &vmpb.ReportStateRequest{State: vmpb.ReportStateRequest_STATE_PAUSED, Cause: cause}
}

func TestStatus(t *testing.T) {
	runningPod := podWith(corev1.PodRunning, nil)
	unreachable := podWith(corev1.PodRunning, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerName, Ready: true}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	})
	pulling := waiting("ImagePullBackOff", "no such image")
	running := report(vmpb.ReportStateRequest_STATE_RUNNING, "")
	prepared := func(vm *v1alpha1.VirtualMachine) { vm.Status.ImagePrepared = true }
	cases := map[string]struct {
		given           func(*v1alpha1.VirtualMachine)
		observed        observation
		phase           v1alpha1.VirtualMachinePhase
		status          metav1.ConditionStatus
		reason, message string
	}{
		"refused":      {nil, observation{scope: &scope{cause: &cause{"Unsupported", "spec.x"}}}, "Creating", "False", "Unsupported", "spec.x"},
		"starting":     {nil, observation{scope: &scope{active: runningPod}}, "Creating", "False", reasonStarting, ""},
		"no container": {nil, observation{scope: &scope{active: pulling}}, "Creating", "False", "ImagePullFailed", "no such image"},
		"running":      {prepared, observation{scope: &scope{active: runningPod}, report: running}, "Running", "True", reasonRunning, ""},
		"preparing without progress": {
			nil, observation{scope: &scope{active: runningPod}, report: report(vmpb.ReportStateRequest_STATE_PREPARING, "fetches the kernel")},
			"Creating", "False", reasonPreparing, "fetches the kernel",
		},
		"waiting": {
			nil, observation{scope: &scope{active: runningPod}, report: report(vmpb.ReportStateRequest_STATE_WAITING, "for the disk")},
			"Creating", "False", reasonStarting, "for the disk",
		},
		"paused as requested": {
			func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModePause },
			observation{scope: &scope{active: runningPod}, report: report(vmpb.ReportStateRequest_STATE_PAUSED, "")}, "Running", "True", reasonPaused, "",
		},
		"paused but should run": {nil, observation{scope: &scope{active: runningPod}, report: report(vmpb.ReportStateRequest_STATE_PAUSED, "")}, "Running", "False", reasonPaused, ""},
		"suspended": {
			func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModePause },
			observation{scope: &scope{active: runningPod}, report: stopped(vmpb.ReportStateRequest_CAUSE_SUSPENDED)}, "Running", "False", v1alpha1.ReasonSuspended, "",
		},
		"no space":                     {nil, observation{scope: &scope{active: runningPod}, report: stopped(vmpb.ReportStateRequest_CAUSE_NO_SPACE)}, "Running", "False", v1alpha1.ReasonNoSpace, ""},
		"stopped for an unknown cause": {nil, observation{scope: &scope{active: runningPod}, report: stopped(99)}, "Running", "False", reasonPaused, ""},
		"disk lost":                    {prepared, observation{scope: &scope{active: terminatedPod(fixture.TerminationMessage(vmpb.EndDiskLost, "gone"))}}, "Stopped", "False", v1alpha1.ReasonDiskLost, "replace-disk=a-x"},
		"no report since the restart of the controller": {func(vm *v1alpha1.VirtualMachine) {
			vm.Status.ActiveRunID = "1"
			vm.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonRunning}}
		}, observation{scope: &scope{active: runningPod}}, "Running", "True", reasonRunning, ""},
		"host unreachable":                  {prepared, observation{scope: &scope{active: unreachable}, report: running}, "Lost", "Unknown", reasonLost, "host-1"},
		"host unreachable, lease open":      {prepared, observation{scope: &scope{active: unreachable}, report: running, hasLease: true}, "Running", "True", reasonRunning, ""},
		"image rejected":                    {nil, observation{scope: &scope{active: terminatedPod(fixture.TerminationMessage(vmpb.EndImageRejected, "wrong checksum"))}}, "Creating", "False", "ImageRejected", "wrong checksum"},
		"guest shut down":                   {prepared, observation{scope: &scope{active: terminatedPod(fixture.TerminationMessage(vmpb.EndGuestShutdown, "bye"))}}, "Stopped", "False", "GuestShutdown", "bye"},
		"terminated without a message":      {prepared, observation{scope: &scope{active: terminatedPod("")}}, "Stopped", "False", "Error", "without a message"},
		"terminated with an invalid reason": {prepared, observation{scope: &scope{active: terminatedPod(fixture.TerminationMessage("no reason!", ""))}}, "Stopped", "False", vmpb.EndInternal, ""},
		"evicted": {prepared, observation{scope: &scope{active: podWith(corev1.PodFailed, func(pod *corev1.Pod) {
			pod.Status.Reason, pod.Status.Message = "Evicted", "disk pressure"
		})}}, "Stopped", "False", "Evicted", "disk pressure"},
		"out of memory": {prepared, observation{scope: &scope{active: containerTerminated("OOMKilled", "")}}, "Stopped", "False", "OOMKilled", "exceeded spec.resources.limits.memory"},
		"unknown to a kubelet that restarted": {
			prepared, observation{scope: &scope{active: containerTerminated("ContainerStatusUnknown", "The container could not be located when the pod was terminated")}},
			"Stopped", "False", "ContainerStatusUnknown", "could not be located",
		},
		"host without KVM, device plugin": {prepared, observation{scope: &scope{active: podWith(corev1.PodFailed, func(pod *corev1.Pod) {
			pod.Status.Reason, pod.Status.Message = "UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"
		})}}, "Stopped", "False", "UnexpectedAdmissionError", "no healthy devices"},
		"host without KVM, no emulation": {
			prepared, observation{scope: &scope{active: terminatedPod(fixture.TerminationMessage(vmpb.EndQEMUFailed, "Could not access KVM kernel module: No such file or directory"))}},
			"Stopped", "False", vmpb.EndQEMUFailed, "KVM kernel module",
		},
		"host of another architecture, image without it": {nil, observation{scope: &scope{active: waiting("ErrImagePull", "no match for platform in manifest: not found")}},
			"Creating", "False", v1alpha1.ReasonImagePullFailed, "no match for platform"},
		"host of another architecture, image starts": {nil, observation{scope: &scope{active: containerTerminated("StartError", "failed to create containerd task: exec /bin/millwright: exec format error")}},
			"Creating", "False", "StartError", "exec format error"},
		"Pod deleted by a user": {prepared, observation{scope: &scope{}}, "Stopped", "False", reasonDeleted, "was deleted"},
		"being deleted": {func(vm *v1alpha1.VirtualMachine) { vm.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			observation{scope: &scope{active: runningPod}, report: running}, "Terminating", "False", reasonTerminating, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm := fixture.Named("a", fixture.VirtualMachine())
			vm.Status.ActivePodName, vm.Status.ActivePodUID = "a-x", "1"
			if c.given != nil {
				c.given(vm)
			}
			c.observed.vm = vm
			got := statusOf(c.observed)
			ready := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionReady)
			if got.Phase != c.phase || ready.Status != c.status || ready.Reason != c.reason || !strings.Contains(ready.Message, c.message) {
				t.Errorf("%s, %s %s %q; want %s, %s %s %q", got.Phase, ready.Status, ready.Reason, ready.Message, c.phase, c.status, c.reason, c.message)
			}
		})
	}
}

func TestStatus_GuestsUnreachable(t *testing.T) {
	vm := fixture.Named("a", fixture.VirtualMachine())
	vm.Status.ActivePodName, vm.Status.ActivePodUID = "a-x", "1"
	silence := &service.Silence{From: netip.MustParseAddrPort("10.0.0.3:8462"), To: map[string]string{
		"default/e": "10.0.0.5:8462", "default/b": "10.0.0.1:8462", "default/d": "10.0.0.4:8462", "default/c": "10.0.0.2:8462",
	}}
	observed := observation{scope: &scope{vm: vm, active: podWith(corev1.PodRunning, nil)}, silence: silence}
	vm.Status = statusOf(observed)
	condition := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionGuestsUnreachable)
	const want = "from 10.0.0.3:8462 to 10.0.0.1:8462 (virtual machine default/b), 10.0.0.2:8462 (virtual machine default/c), 10.0.0.4:8462 (virtual machine default/d), 1 more;"
	if condition == nil || condition.Status != metav1.ConditionTrue || !strings.Contains(condition.Message, want) {
		t.Errorf("%+v, want %q", condition, want)
	}
	observed.silence = nil
	if condition := meta.FindStatusCondition(statusOf(observed).Conditions, v1alpha1.ConditionGuestsUnreachable); condition != nil {
		t.Errorf("%+v although all respond", condition)
	}
}
