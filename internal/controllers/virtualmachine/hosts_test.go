package virtualmachine

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// containerTerminates returns the change of a Pod's status by a kubelet whose container has terminated without a
// message.
func containerTerminates(reason string) func(*corev1.PodStatus) {
	return func(status *corev1.PodStatus) {
		status.Phase = corev1.PodFailed
		status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: podspec.ContainerName, Image: "i", ImageID: "i",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: reason}},
		}}
	}
}

// TestHypervisor_TerminatedByKubelet checks that the kubelet's reason is shown, for whatever reason it terminates a
// hypervisor, and that the next hypervisor has the same disk.
func TestHypervisor_TerminatedByKubelet(t *testing.T) {
	tier.All(t)
	w := newTestEnv(t)
	fails := func(reason string) func(*corev1.PodStatus) {
		return func(status *corev1.PodStatus) {
			status.Phase, status.Reason, status.Message, status.ContainerStatuses = corev1.PodFailed, reason, "message of the kubelet", nil
		}
	}
	for name, test := range map[string]struct {
		change func(*corev1.PodStatus)
		reason string
	}{
		"evicted":         {fails("Evicted"), "Evicted"},
		"killed":          {containerTerminates("Error"), "Error"},
		"out-of-memory":   {containerTerminates("OOMKilled"), "OOMKilled"},
		"host-restarted":  {containerTerminates("ContainerStatusUnknown"), "ContainerStatusUnknown"},
		"host-shuts-down": {fails("Terminated"), "Terminated"},
		"no-device":       {fails("UnexpectedAdmissionError"), "UnexpectedAdmissionError"},
		"no-capacity":     {fails("OutOfmemory"), "OutOfmemory"},
	} {
		pod, _, lease := w.running(name)
		disk := w.vm(name).Status.VolumeClaimName
		w.newEvents()
		w.kubelet(pod, test.change)
		next := w.awaitPod(name, pod.Name)
		if spec := w.specOf(next); spec.GetMode() != vmpb.VMSpec_SM_RUN || w.vm(name).Status.VolumeClaimName != disk {
			t.Errorf("%s: the next hypervisor has %s and the disk %s, want %s", name, spec.GetMode(), w.vm(name).Status.VolumeClaimName, disk)
		}
		w.wantStatus(lease, vmpb.RunLeaseUpdate_STATUS_TERMINATE) // the lease of the previous hypervisor
		if events := strings.Join(w.newEvents(), "\n"); !strings.Contains(events, " "+test.reason+" ") {
			t.Errorf("%s: no event has the reason %s:\n%s", name, test.reason, events)
		}
	}
}

// TestHost_UnreachableIsReported checks that the VM of an unreachable host is not started elsewhere, and that its condition
// shows the state until the host is reachable again.
func TestHost_UnreachableIsReported(t *testing.T) {
	w := newTestEnv(t)
	pod, _, _ := w.running("a")
	ready := func(is corev1.ConditionStatus) {
		w.kubelet(pod, func(status *corev1.PodStatus) {
			status.Phase = corev1.PodRunning
			status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: is}}
			status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: podspec.ContainerName, Image: "i", ImageID: "i", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}}
		})
	}
	w.restart() // the hypervisor does not connect to the new process
	ready(corev1.ConditionFalse)
	w.awaitReady("a", v1alpha1.ReasonHostUnreachable)
	condition := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionReady)
	if vm := w.vm("a"); !strings.Contains(condition.Message, "host-1") || vm.Status.Phase != v1alpha1.PhaseLost || vm.Status.ActivePodUID != pod.UID || len(w.pods("a")) != 1 {
		t.Errorf("%d pods; the condition is %+v, the status %+v", len(w.pods("a")), condition, vm.Status)
	}
	ready(corev1.ConditionTrue)
	h := w.hypervisor("a", pod, 1)
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, nil)
	w.awaitReady("a", reasonRunning)
	if vm := w.vm("a"); vm.Status.ActivePodUID != pod.UID {
		t.Errorf("another pod has the VM: %+v", vm.Status)
	}
}
