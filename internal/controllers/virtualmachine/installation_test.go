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
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// secondInstallation runs a controller of another installation in the same namespace.
func (w *testEnv) secondInstallation(e *env.Env) *testEnv {
	w.Helper()
	other := &testEnv{
		T: w.T, client: w.client, clients: w.clients, namespace: w.namespace, events: record.NewFakeRecorder(1000), waitTimeout: w.waitTimeout, perHost: 1,
		installation: "other-system/vms",
	}
	var err error
	other.access, err = e.ControlPlane.UserConfig("user-of-" + w.namespace) // this user has the role
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

// refusals returns the events since the last call about VMs of another controller.
func (w *testEnv) refusals() []string {
	return slices.DeleteFunc(w.newEvents(), func(event string) bool { return !strings.Contains(event, eventOtherController) })
}

// handOver removes the controller's mark from a VM, so that the next controller that reconciles the VM takes it.
func (w *testEnv) handOver(vm string) {
	w.Helper()
	w.change(vm, func(vm *v1alpha1.VirtualMachine) { delete(vm.Annotations, v1alpha1.AnnotationController) })
}

// TestInstallation_TwoShareCluster checks that a controller ignores the VMs of another installation, including their deletion,
// until they are handed over. It sends one event and writes nothing.
func TestInstallation_TwoShareCluster(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	w := newTestEnvIn(t, e, nil)
	pod, _, _ := w.running("a")
	if mark := w.markOf("a"); mark != w.installation {
		t.Fatalf("the controller of a VM is %q, want %q", mark, w.installation)
	}
	other := w.secondInstallation(e)
	var events []string
	w.eventually("an event", func() bool { events = append(events, other.refusals()...); return len(events) > 0 })
	if !strings.Contains(events[0], w.installation) || !strings.Contains(events[0], other.installation) {
		t.Errorf("the event is %q", events[0])
	}
	before := w.vm("a").ResourceVersion
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, "example.org/a", "changed")
	})
	w.stop()
	w.handOver("a")
	w.eventually("the other controller takes the VM", func() bool { return w.markOf("a") == other.installation })
	if events = append(events, other.refusals()...); len(events) != 1 {
		t.Errorf("the events are %q, want one", events)
	}
	if before == w.vm("a").ResourceVersion {
		t.Error("nothing was changed")
	}
	pods := w.pods("a")
	if len(pods) != 1 || pods[0].UID != pod.UID || pods[0].DeletionTimestamp != nil {
		t.Errorf("after the hand-over the Pods are %v", pods)
	}
	w.start() // the first controller now ignores the VM
	w.eventually("an event of the first controller", func() bool { return len(w.refusals()) == 1 })
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.awaitEnd("a", pod)
}

// TestInstallation_DoesNotDeleteVMOfOther checks that a controller does not delete a VM of another one.
func TestInstallation_DoesNotDeleteVMOfOther(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	w := newTestEnvIn(t, e, nil)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	w.stop()
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	other := w.secondInstallation(e)
	w.eventually("an event", func() bool { return len(other.refusals()) == 1 })
	other.stop() // wait for running passes
	if other.writes.Load() != 0 || w.gone(&v1alpha1.VirtualMachine{}, "a") || w.gone(&corev1.Pod{}, pod.Name) {
		t.Errorf("the other controller made %d writes", other.writes.Load())
	}
	w.start()
	w.awaitEnd("a", pod)
}

// awaitEnd completes the deletion of a VM's hypervisor and disk, and waits until the VM is gone.
func (w *testEnv) awaitEnd(vm string, pod *corev1.Pod) {
	w.Helper()
	w.remove(pod)
	claim := &corev1.PersistentVolumeClaim{}
	w.eventually("the disk is being deleted", func() bool { return w.gone(claim, vm) || claim.DeletionTimestamp != nil })
	claim.Finalizers = nil
	w.must(client.IgnoreNotFound(w.client.Update(w.Context(), claim)))
	w.eventually("the VM is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, vm) })
}

// TestAddress_OfOtherInstallationIsNotUsed checks that a VM can have the same address as a VM of another installation, even
// if that one comes first by name.
func TestAddress_OfOtherInstallationIsNotUsed(t *testing.T) {
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

// TestAddress_StaysTakenWhileGuestRuns checks that no other VM gets the address of a running guest when its VM is assigned to
// a controller that does not exist, or is deleted by force, and that the address is free when the hypervisor has terminated.
func TestAddress_StaysTakenWhileGuestRuns(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]func(w *testEnv){
		"annotation": func(w *testEnv) {
			w.change("a", func(vm *v1alpha1.VirtualMachine) {
				metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationController, "gone-system/vms")
				metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationAddresses, "10.77.9.9")
			})
		},
		"annotations of the VM and its Pod": func(w *testEnv) {
			pod := w.pods("a")[0]
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationAddresses, "10.77.9.9")
			w.must(w.client.Update(w.Context(), &pod))
			w.change("a", func(vm *v1alpha1.VirtualMachine) {
				metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationAddresses, "10.77.9.9")
			})
		},
		"forced deletion": func(w *testEnv) {
			w.change("a", func(vm *v1alpha1.VirtualMachine) {
				metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationController, "gone-system/vms") // or the finalizer is added again
			})
			w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Finalizers = nil })
			w.must(w.client.Delete(w.Context(), w.vm("a")))
			w.eventually("the VM is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, "a") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			pod, _, _ := w.running("a")
			address := w.vm("a").Status.Addresses[0]
			release(w)
			w.declare("b", func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMIPs = []string{address} })
			w.awaitReady("b", reasonAddress)
			w.declare("c", nil)
			w.awaitPod("c", "")
			if got := w.vm("c").Annotations[v1alpha1.AnnotationAddresses]; got == address {
				t.Errorf("a new VM has the address %s of a running guest", address)
			}
			if pods := w.pods("b"); len(pods) > 0 {
				t.Errorf("a VM with the address of a running guest has the Pods %v", pods)
			}
			w.end(pod, left(vmpb.EndTerminated, "terminated"))
			w.awaitPod("b", "")
		})
	}
}

// TestInstallation_TwoStartConcurrently checks that each new VM is taken by exactly one of two controllers that see it at the
// same time, and gets one Pod.
func TestInstallation_TwoStartConcurrently(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	w := newTestEnvIn(t, e, nil)
	other := w.secondInstallation(e)
	const vms = 10
	for i := range vms {
		w.declare(fmt.Sprintf("vm-%d", i), nil)
	}
	controllers := map[string]*testEnv{w.installation: w, other.installation: other}
	taken := map[string]int{}
	for i := range vms {
		name := fmt.Sprintf("vm-%d", i)
		pod := w.awaitPod(name, "")
		owner := controllers[w.markOf(name)]
		if owner == nil {
			t.Fatalf("%s has controller %q", name, w.markOf(name))
		}
		taken[owner.installation]++
		w.schedule(pod)
		h := owner.hypervisor(name, pod, 1) // it connects to the controller that created its Pod
		w.wantStatus(h.lease(), 1)
	}
	events := 0
	w.eventually("an event for each VM", func() bool {
		events += len(w.refusals()) + len(other.refusals())
		return events == vms
	})
	for i := range vms {
		if pods := w.pods(fmt.Sprintf("vm-%d", i)); len(pods) != 1 {
			t.Errorf("vm-%d has %d Pods", i, len(pods))
		}
	}
	t.Logf("taken: %v", taken)
}
