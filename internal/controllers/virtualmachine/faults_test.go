package virtualmachine

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/serverfault"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestController_SurvivesInjectedFaults checks that a controller whose API server injects faults starts a VM, starts it again after its
// hypervisor has terminated, with the same disk and in one Pod at a time, and deletes everything.
func TestController_SurvivesInjectedFaults(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, fault := range serverfault.All(1) {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			t.Attr("fault", "The VM controller's API server "+fault.Name)
			ofObjects(fault)
			w := newTestEnvUnder(t, fault)
			w.declare("a", nil)
			first := w.runsIn(w.awaitPod("a", ""), 1)
			claims := w.claims()
			w.end(first, "")
			next := w.runsIn(w.awaitPod("a", first.Name), 2)
			if got := w.claims(); len(got) != 1 || got[0] != claims[0] {
				t.Errorf("the claims are %q, want %q", got, claims)
			}
			w.must(w.client.Delete(t.Context(), w.vm("a")))
			w.eventually("the VM is gone", func() bool {
				w.clear("a", claims[0])
				return w.gone(&v1alpha1.VirtualMachine{}, "a") && w.gone(&corev1.Pod{}, next.Name)
			})
			affected, eligible := fault.Counts()
			if affected == 0 {
				t.Error("no request was affected")
			}
			t.Attr("outcome", fmt.Sprintf("A VM is started twice with the same disk and then deleted (affected requests: %d of %d)", affected, eligible))
		})
	}
}

// clear completes deletions in the role of the kubelet and the volume controller.
func (w *testEnv) clear(vm, disk string) {
	w.Helper()
	for _, pod := range w.pods(vm) {
		if pod.DeletionTimestamp != nil {
			w.remove(&pod)
		}
	}
	claim := &corev1.PersistentVolumeClaim{}
	if !w.gone(claim, disk) && claim.DeletionTimestamp != nil {
		claim.Finalizers = nil
		w.must(client.IgnoreNotFound(w.client.Update(w.Context(), claim)))
	}
}

// ofObjects restricts a fault to requests for objects. Discovery requests are spared, because a watch starts only 10
// s after a failed one. The fault is also less frequent than elsewhere, because a pass and a connection each take
// several requests and are retried with a growing delay if one of them fails.
func ofObjects(fault *serverfault.Fault) {
	if fault.Every > 1 {
		fault.Every *= 3
	}
	concerns := fault.Concerns
	fault.Concerns = func(r *http.Request) bool { return strings.Count(r.URL.Path, "/") > 3 && concerns(r) }
}

// runsIn schedules a Pod and reports as its hypervisor that the VM is running, until the controller accepts the
// report. It checks that no other Pod of the VM is running.
func (w *testEnv) runsIn(pod *corev1.Pod, run uint64) *corev1.Pod {
	w.Helper()
	w.schedule(pod)
	h := w.hypervisor(pod.Labels[v1alpha1.LabelVM], pod, run)
	w.eventually("the authority of "+pod.Name, func() bool {
		stream, err := h.RunLease(w.Context(), &vmpb.RunLeaseRequest{Us: h.us})
		if err != nil {
			return false
		}
		update, err := stream.Recv()
		return err == nil && update.GetStatus() == vmpb.RunLeaseUpdate_STATUS_OK
	})
	w.eventually("the report of "+pod.Name, func() bool {
		_, err := h.ReportState(w.Context(), &vmpb.ReportStateRequest{Us: h.us, State: vmpb.ReportStateRequest_STATE_RUNNING, ImagePrepared: true})
		return err == nil
	})
	w.awaitReady(pod.Labels[v1alpha1.LabelVM], reasonRunning)
	for _, other := range w.pods(pod.Labels[v1alpha1.LabelVM]) {
		if other.Name != pod.Name && other.Status.Phase != corev1.PodFailed {
			w.Errorf("pod %s also exists with phase %q", other.Name, other.Status.Phase)
		}
	}
	return pod
}
