package virtualmachine

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func (w *testEnv) replaceDisk(vm, pod string) {
	w.Helper()
	w.change(vm, func(vm *v1alpha1.VirtualMachine) {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationReplaceDisk, pod)
	})
}

// TestDisk_Lost checks that a VM that has run never gets another disk unless the user requests that for the Pod that
// has lost it.
func TestDisk_Lost(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1alpha1.VirtualMachine){
		"with an image":    nil,
		"without an image": func(vm *v1alpha1.VirtualMachine) { vm.Spec.InitialImage = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			w.declare("a", change)
			pod := w.awaitPod("a", "")
			if w.specOf(pod).GetRootDiskExists() {
				t.Error("the first hypervisor must create the disk")
			}
			w.schedule(pod)
			h := w.hypervisor("a", pod, 1)
			w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
			h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared = true })
			w.awaitReady("a", reasonRunning)

			w.end(pod, left(vmpb.EndQEMUFailed, "QEMU crashed"))
			second := w.awaitPod("a", pod.Name)
			if spec := w.specOf(second); !spec.GetRootDiskExists() || spec.GetMode() != vmpb.VMSpec_SM_RUN {
				t.Errorf("the next hypervisor may create the disk again: %v", spec)
			}
			w.replaceDisk("a", pod.Name) // this Pod has not lost its disk
			w.schedule(second)
			w.end(second, left(vmpb.EndDiskLost, "the disk is gone"))
			w.awaitReady("a", v1alpha1.ReasonDiskLost)
			ready := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionReady)
			if !strings.Contains(ready.Message, v1alpha1.AnnotationReplaceDisk+"="+second.Name) {
				t.Errorf("message %q", ready.Message)
			}
			w.eventually("a warning", func() bool { return w.warned("DiskLost") })
			if active := w.vm("a").Status.ActivePodName; active != second.Name {
				t.Errorf("pod %s without a disk was immediately followed by pod %s", second.Name, active)
			}

			w.replaceDisk("a", second.Name)
			third := w.awaitPod("a", second.Name)
			spec := w.specOf(third)
			if wantMode := w.specOf(pod).GetMode(); spec.GetRootDiskExists() || spec.GetMode() != wantMode {
				t.Errorf("the next hypervisor does not create the disk: %v", spec)
			}
		})
	}
}

// warned reports whether there is a Warning event with a reason. It drops events up to that one.
func (w *testEnv) warned(reason string) bool {
	for {
		select {
		case event := <-w.events.Events:
			if strings.HasPrefix(event, "Warning "+reason+" ") {
				return true
			}
		default:
			return false
		}
	}
}

// TestVolume_Replaced checks that a user can also request a new disk for a claim that is gone.
func TestVolume_Replaced(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, _, _ := w.running("a")
	claim := &corev1.PersistentVolumeClaim{}
	w.must(w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "a"}, claim))
	first := claim.UID
	claim.Finalizers = nil
	w.must(w.client.Update(t.Context(), claim))
	w.must(w.client.Delete(t.Context(), claim))
	w.remove(pod)
	w.awaitReady("a", v1alpha1.ReasonVolumeLost)
	w.replaceDisk("a", pod.Name)
	next := w.awaitPod("a", pod.Name)
	if w.gone(claim, "a") || claim.UID == first || w.specOf(next).GetMode() != vmpb.VMSpec_SM_PREPARE_IMAGE {
		t.Error("there is no new disk")
	}
}

// TestVolume_OfRunningVM checks that a guest that its storage has stopped is not Ready, and that there is a warning
// event.
func TestVolume_OfRunningVM(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	_, h, _ := w.running("a")
	for _, step := range []struct {
		cause  vmpb.ReportStateRequest_Cause
		reason string
	}{
		{vmpb.ReportStateRequest_CAUSE_NO_SPACE, v1alpha1.ReasonNoSpace},
		{vmpb.ReportStateRequest_CAUSE_STORAGE_FAILED, v1alpha1.ReasonStorageFailed},
	} {
		h.report(vmpb.ReportStateRequest_STATE_PAUSED, func(r *vmpb.ReportStateRequest) { r.Cause, r.Message = step.cause, "It fails." })
		w.awaitReady("a", step.reason)
		if vm := w.vm("a"); vm.Status.Phase != v1alpha1.PhaseRunning || meta.IsStatusConditionTrue(vm.Status.Conditions, v1alpha1.ConditionReady) {
			t.Errorf("phase %s, conditions %v", vm.Status.Phase, vm.Status.Conditions)
		}
		w.eventually("a warning", func() bool { return w.warned(step.reason) })
		w.restart() // another controller process has no report and changes nothing
		w.awaitReady("a", step.reason)
		h = w.hypervisor("a", w.awaitPod("a", ""), 1)
	}
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, nil)
	w.awaitReady("a", reasonRunning)
}

// TestDisk_LockedIsReported checks that a process that waits for the lock of the disk requests no run lease, and that the
// VM shows what it waits for.
func TestDisk_LockedIsReported(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	w.schedule(pod)
	locked := func(r *vmpb.ReportStateRequest) { r.Cause = vmpb.ReportStateRequest_CAUSE_DISK_LOCKED }
	h := w.hypervisor("a", pod, 1)
	h.report(vmpb.ReportStateRequest_STATE_WAITING, locked)
	w.awaitReady("a", v1alpha1.ReasonDiskLocked)
	if run := w.vm("a").Status.ActiveRunID; run != "" {
		t.Errorf("run %s is authoritative", run)
	}

	// The next process waits for a running one. The VM shows the running one.
	next := h.lease()
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_OK)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, nil)
	w.awaitReady("a", reasonRunning)
	later := w.hypervisor("a", pod, 2)
	report := &vmpb.ReportStateRequest{Us: later.us, State: vmpb.ReportStateRequest_STATE_WAITING, Cause: vmpb.ReportStateRequest_CAUSE_DISK_LOCKED}
	_, err := later.ReportState(t.Context(), report)
	wantCode(t, err, codes.FailedPrecondition)
	if reason := w.ready("a"); reason != reasonRunning {
		t.Errorf("the VM is %s", reason)
	}
}
