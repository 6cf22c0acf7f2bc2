package virtualmachine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// beside runs a controller of another installation in the same namespace.
func (w *testEnv) beside(e *env.Env) *testEnv {
	w.Helper()
	other := &testEnv{
		T: w.T, client: w.client, clients: w.clients, namespace: w.namespace, events: record.NewFakeRecorder(1000), waitTimeout: w.waitTimeout, perHost: 1,
		installation: "other-system/vms",
	}
	var err error
	other.access, err = e.ControlPlane.UserConfig("user-of-" + w.namespace) // which has the role
	w.must(err)
	other.countWrites()
	other.start()
	w.Cleanup(func() { other.stop() })
	return other
}

func (w *testEnv) markOf(vm string) string {
	w.Helper()
	return w.vm(vm).Annotations[v1alpha1.AnnotationController]
}

// refusals are the events since the last call by which a VM is left to another controller.
func (w *testEnv) refusals() []string {
	return slices.DeleteFunc(w.newEvents(), func(event string) bool { return !strings.Contains(event, eventOtherController) })
}

// handOver has the next controller that sees a VM take it.
func (w *testEnv) handOver(vm string) {
	w.Helper()
	w.change(vm, func(vm *v1alpha1.VirtualMachine) { delete(vm.Annotations, v1alpha1.AnnotationController) })
}

// TestTwoInstallations: a controller leaves the VMs of another installation alone, also their deletion, says so once, and
// writes nothing, until they are handed over.
func TestTwoInstallations(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	w := newTestEnvIn(t, e, nil)
	pod, _, _ := w.running("a")
	if mark := w.markOf("a"); mark != w.installation {
		t.Fatalf("the controller of a VM is %q, want %q", mark, w.installation)
	}
	other := w.beside(e)
	var said []string
	w.eventually("an event", func() bool { said = append(said, other.refusals()...); return len(said) > 0 })
	if !strings.Contains(said[0], w.installation) || !strings.Contains(said[0], other.installation) {
		t.Errorf("the event is %q", said[0])
	}
	before := w.vm("a").ResourceVersion
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, "example.org/a", "changed")
	})
	w.stop()
	w.handOver("a")
	w.eventually("the other controller takes the VM", func() bool { return w.markOf("a") == other.installation })
	if said = append(said, other.refusals()...); len(said) != 1 {
		t.Errorf("the events are %q, want one", said)
	}
	if before == w.vm("a").ResourceVersion {
		t.Error("nothing was changed")
	}
	pods := w.pods("a")
	if len(pods) != 1 || pods[0].UID != pod.UID || pods[0].DeletionTimestamp != nil {
		t.Errorf("after the hand-over the Pods are %v", pods)
	}
	w.start() // the first one leaves it alone now
	w.eventually("an event of the first controller", func() bool { return len(w.refusals()) == 1 })
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.awaitEnd("a", pod)
}

// TestDeletionIsLeftToTheController that has the VM.
func TestDeletionIsLeftToTheController(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	w := newTestEnvIn(t, e, nil)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	w.stop()
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	other := w.beside(e)
	w.eventually("an event", func() bool { return len(other.refusals()) == 1 })
	other.stop() // no pass is under way
	if other.writes.Load() != 0 || w.gone(&v1alpha1.VirtualMachine{}, "a") || w.gone(&corev1.Pod{}, pod.Name) {
		t.Errorf("the other controller made %d writes", other.writes.Load())
	}
	w.start()
	w.awaitEnd("a", pod)
}

// awaitEnd ends the hypervisor of a VM that is being deleted, and waits until all is gone.
func (w *testEnv) awaitEnd(vm string, pod *corev1.Pod) {
	w.Helper()
	w.remove(pod)
	claim := &corev1.PersistentVolumeClaim{}
	w.eventually("the disk is being deleted", func() bool { return w.gone(claim, vm) || claim.DeletionTimestamp != nil })
	claim.Finalizers = nil
	w.must(client.IgnoreNotFound(w.client.Update(w.Context(), claim)))
	w.eventually("the VM is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, vm) })
}

// TestAddressesOfAnotherInstallation do not keep a VM from having the same, which would be those of the first one by name.
func TestAddressesOfAnotherInstallation(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	const address = "10.77.0.20"
	w.declare("a-theirs", func(vm *v1alpha1.VirtualMachine) {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationController, "other-system/vms")
		vm.Spec.VMIPs = []string{address}
	})
	w.declare("b-ours", func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMIPs = []string{address} })
	w.awaitPod("b-ours", "")
	if pods := w.pods("a-theirs"); len(pods) > 0 {
		t.Errorf("the VM of the other controller has the Pods %v", pods)
	}
}

// TestTwoInstallationsAtOnce: of two controllers that see new VMs at the same time, one takes each, and makes the only Pod.
func TestTwoInstallationsAtOnce(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	w := newTestEnvIn(t, e, nil)
	other := w.beside(e)
	const vms = 10
	for i := range vms {
		w.declare(fmt.Sprintf("vm-%d", i), nil)
	}
	by := map[string]*testEnv{w.installation: w, other.installation: other}
	taken := map[string]int{}
	for i := range vms {
		name := fmt.Sprintf("vm-%d", i)
		pod := w.awaitPod(name, "")
		owner := by[w.markOf(name)]
		if owner == nil {
			t.Fatalf("%s is that of %q", name, w.markOf(name))
		}
		taken[owner.installation]++
		w.schedule(pod)
		h := owner.hypervisor(name, pod, 1) // it finds the controller that has made its Pod
		w.wantStatus(h.lease(), 1)
	}
	said := 0
	w.eventually("an event for each VM", func() bool {
		said += len(w.refusals()) + len(other.refusals())
		return said == vms
	})
	for i := range vms {
		if pods := w.pods(fmt.Sprintf("vm-%d", i)); len(pods) != 1 {
			t.Errorf("vm-%d has %d Pods", i, len(pods))
		}
	}
	t.Logf("taken: %v", taken)
}
