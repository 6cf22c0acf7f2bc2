package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// follows returns a change that sets spec.runStrategy.
func follows(strategy v1alpha1.RunStrategy) func(*v1alpha1.VirtualMachine) {
	return func(vm *v1alpha1.VirtualMachine) { vm.Spec.RunStrategy = strategy }
}

// requestRestart requests a restart of a VM.
func (w *testEnv) requestRestart(name string) {
	w.Helper()
	w.change(name, func(vm *v1alpha1.VirtualMachine) {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationRestart, vm.Status.ActivePodName)
	})
}

// awaitDeletion waits until the controller deletes a Pod, and checks that its guest does not migrate instead.
func (w *testEnv) awaitDeletion(h *hypervisor, pod *corev1.Pod) {
	w.Helper()
	w.eventually("the pod is being deleted", func() bool { return !w.gone(pod, pod.Name) && pod.DeletionTimestamp != nil })
	if got := <-h.requestTarget(); got.err != nil || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN {
		w.Errorf("the response to a hypervisor that must shut down is %v, %v", got.EnsureMigrationTargetResponse, got.err)
	}
}

// wantStopped checks that a VM is stopped for a reason, and that it stays so without its Pod and with another process
// of the controller.
func (w *testEnv) wantStopped(name, reason string, pod *corev1.Pod) {
	w.Helper()
	w.awaitReady(name, reason)
	w.remove(pod)
	w.eventually("the pod is gone", func() bool { return len(w.pods(name)) == 0 })
	w.restart()
	w.change(name, func(vm *v1alpha1.VirtualMachine) { vm.Spec.CPUs++ }) // causes a pass
	w.eventually("the new spec is observed", func() bool { vm := w.vm(name); return vm.Status.ObservedGeneration == vm.Generation })
	if vm := w.vm(name); vm.Status.Phase != v1alpha1.PhaseStopped || w.ready(name) != reason || len(w.pods(name)) > 0 {
		w.Errorf("phase %s, reason %s, %d pods", vm.Status.Phase, w.ready(name), len(w.pods(name)))
	}
}

// TestRunStrategy_Halted checks that a guest shuts down instead of being migrated, stays stopped, and starts again.
func TestRunStrategy_Halted(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, h, _ := w.migratable("a", nil)
	w.change("a", follows(v1alpha1.RunHalted))
	w.awaitDeletion(h, pod)
	w.end(pod, left(vmpb.EndStopped, "The guest shut down as requested."))
	w.wantStopped("a", v1alpha1.ReasonHalted, pod)
	w.requestRestart("a")
	if !w.hasEvent("ShuttingDown", "Shutting down the guest in pod "+pod.Name) {
		t.Error("there is no event about the shutdown of the guest")
	}
	w.change("a", follows(v1alpha1.RunAlways))
	if next := w.awaitPod("a", pod.Name); w.specOf(next).GetMode() != vmpb.VMSpec_SM_RUN {
		t.Errorf("the spec of the next hypervisor has %s", w.specOf(next).GetMode())
	}
}

// TestRunStrategy_HaltedFromTheBeginning checks that a VM that was never started has no Pod.
func TestRunStrategy_HaltedFromTheBeginning(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", follows(v1alpha1.RunHalted))
	w.awaitReady("a", v1alpha1.ReasonHalted)
	if vm := w.vm("a"); vm.Status.Phase != v1alpha1.PhaseStopped || len(w.pods("a")) > 0 {
		t.Errorf("phase %s, %d pods", vm.Status.Phase, len(w.pods("a")))
	}
	w.change("a", follows(v1alpha1.RunOnce))
	w.awaitPod("a", "")
}

// TestRunStrategy_RerunOnFailure checks that a guest starts again after a failure, and after it was stopped from
// outside, but not after it has shut itself down, unless a user requests it.
func TestRunStrategy_RerunOnFailure(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", follows(v1alpha1.RunRerunOnFailure))
	pod := w.awaitPod("a", "")
	for run, reason := range []string{vmpb.EndQEMUFailed, vmpb.EndStopped} {
		w.runsIn(pod, uint64(run+1))
		w.end(pod, left(reason, "The hypervisor ended."))
		pod = w.awaitPod("a", pod.Name)
	}
	w.runsIn(pod, 3)
	w.end(pod, left(vmpb.EndGuestShutdown, "The guest powered itself off."))
	w.wantStopped("a", v1alpha1.ReasonCompleted, pod)
	w.requestRestart("a")
	w.awaitPod("a", pod.Name)
}

// TestRunStrategy_Once checks that a guest does not start a second time, unless a user requests it, but that a Pod whose
// hypervisor never ran is replaced.
func TestRunStrategy_Once(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", follows(v1alpha1.RunOnce))
	first := w.awaitPod("a", "")
	w.remove(first)
	pod := w.awaitPod("a", first.Name)
	w.runsIn(pod, 1)
	w.end(pod, left(vmpb.EndQEMUFailed, "QEMU failed."))
	w.wantStopped("a", v1alpha1.ReasonCompleted, pod)
	w.requestRestart("a")
	w.awaitPod("a", pod.Name)
}

// TestRunStrategy_Restart checks that a requested restart shuts the guest down, and starts it once.
func TestRunStrategy_Restart(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, h, _ := w.migratable("a", nil)
	w.requestRestart("a")
	w.awaitDeletion(h, pod)
	w.end(pod, left(vmpb.EndStopped, "The guest shut down as requested."))
	next := w.awaitPod("a", pod.Name)
	w.remove(pod)
	w.runsIn(next, 9)
	w.awaitReady("a", reasonRunning)
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.CPUs++ }) // causes a pass
	w.eventually("the new spec is observed", func() bool { vm := w.vm("a"); return vm.Status.ObservedGeneration == vm.Generation })
	if w.gone(next, next.Name) || next.DeletionTimestamp != nil {
		t.Error("the guest is restarted again")
	}
}

// TestRunStrategy_StopsDiskServer checks that the disks of a stopped guest are not served, and are served again when it
// starts.
func TestRunStrategy_StopsDiskServer(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	server, pod, h := w.served("a")
	w.change("a", follows(v1alpha1.RunHalted))
	w.eventually("the hypervisor is deleted", func() bool { return !w.gone(pod, pod.Name) && pod.DeletionTimestamp != nil })
	w.must(w.client.Get(t.Context(), client.ObjectKeyFromObject(server), server))
	if server.DeletionTimestamp != nil {
		t.Error("the disk server is deleted before the hypervisor")
	}
	h.release()
	w.remove(pod)
	w.eventually("the server is deleted", func() bool { return !w.gone(server, server.Name) && server.DeletionTimestamp != nil })
	w.remove(server)
	w.awaitReady("a", v1alpha1.ReasonHalted)
	w.change("a", follows(v1alpha1.RunAlways))
	next := w.awaitServer("a", server.Name)
	w.serveDisksIn("a", next)
	w.awaitPod("a", pod.Name)
}
