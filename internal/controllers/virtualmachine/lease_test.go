package virtualmachine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// expiring is the duration of leases whose expiry a test waits for. On a busy machine, the steps before that can take
// several seconds.
const expiring = 3 * lease.MinDuration

// leasedFor creates a VM with leases, whose hypervisor has one. It returns the time at which the lease was requested.
func (w *testEnv) leasedFor(name string, duration time.Duration) (*corev1.Pod, *hypervisor, time.Time) {
	w.Helper()
	w.declare(name, func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.LeaseFullLeases, int32(duration/time.Second)
	})
	pod := w.awaitPod(name, "")
	w.schedule(pod)
	h := w.hypervisor(name, pod, 1)
	requested := time.Now()
	w.wantLeaseFor(h.lease()(), duration)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared = true })
	return pod, h, requested
}

func (w *testEnv) wantLeaseFor(update *vmpb.RunLeaseUpdate, duration time.Duration) {
	w.Helper()
	if update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK || update.GetValidFor().AsDuration() != duration || update.GetFencingToken() == 0 {
		w.Fatalf("the update is %v\n%s", update, w.describe())
	}
}

func (w *testEnv) awaitLease(name string, state v1alpha1.LeaseState) {
	w.Helper()
	w.eventually("the lease of "+name+" is "+string(state), func() bool { return w.vm(name).Status.Lease.State == state })
}

// suspect suspects the lease of a VM, as the controller does if the holder is silent.
func (w *testEnv) suspect(name string) {
	w.Helper()
	registry := &authority.Registry{Client: w.client, APIReader: w.client, Clock: clock.RealClock{}}
	w.eventually("the lease of "+name+" is suspected", func() bool {
		return registry.ChangeLease(w.Context(), w.vm(name), lease.Suspected) == nil // false if there was a conflict
	})
}

// TestRunLease_SilentHolderLosesVMAfterExpiry checks that a host that stops responding loses its VM, but not before its lease has expired.
func TestRunLease_SilentHolderLosesVMAfterExpiry(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, h, requested := w.leasedFor("a", expiring)
	if duration, err := podspec.LeaseOf(pod); err != nil || duration != expiring {
		t.Errorf("the pod has leases of %v, %v", duration, err)
	}
	before := w.vm("a").Status.Lease.FencingToken
	w.awaitLease("a", v1alpha1.LeaseSuspected)
	w.awaitReady("a", v1alpha1.ReasonLeaseExpiring)
	w.eventually("the phase is Lost", func() bool { return w.vm("a").Status.Phase == v1alpha1.PhaseLost })

	next := w.awaitPod("a", pod.Name)
	if waited := time.Since(requested); waited < lease.Wait(expiring) {
		t.Errorf("the lease moved after %v", waited)
	}
	if after := w.vm("a").Status.Lease; after.State != v1alpha1.LeaseOpen || after.FencingToken <= before {
		t.Errorf("the lease is %+v, and the token was %d", after, before)
	}
	if keptApart(pod) || !keptApart(next) {
		t.Errorf("the next hypervisor can be scheduled to the host of the silent one: %+v", next.Spec.Affinity)
	}
	w.schedule(next)
	w.wantLeaseFor(w.hypervisor("a", next, 1).lease()(), expiring)
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
}

// keptApart reports whether a Pod cannot be scheduled to hosts with other hypervisors of its VM.
func keptApart(pod *corev1.Pod) bool {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.PodAntiAffinity == nil {
		return false
	}
	return slices.ContainsFunc(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, func(term corev1.PodAffinityTerm) bool {
		return term.TopologyKey == corev1.LabelHostname && term.LabelSelector.MatchLabels[v1alpha1.LabelVM] == pod.Labels[v1alpha1.LabelVM]
	})
}

// TestLease_CapacityLimitsVMs checks that a VM whose lease could not be renewed in time, because of all others, is not
// started until there is capacity, and that a VM with a lease starts again without it.
func TestLease_CapacityLimitsVMs(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.renewals = 0.6 // of which a lease of 6 s needs 0.5
	w.restart()
	pod, _, _ := w.leasedFor("a", lease.MinDuration)
	w.eventually("little capacity is left", func() bool {
		select {
		case event := <-w.events.Events:
			return strings.Contains(event, "LeaseCapacityLow")
		default:
			return false
		}
	})
	w.declare("b", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.LeaseFullLeases, int32(lease.MinDuration/time.Second)
	})
	w.awaitReady("b", v1alpha1.ReasonLeaseCapacity)
	if pods := w.pods("b"); len(pods) > 0 {
		t.Errorf("there are pods: %v", pods)
	}
	w.declare("locked", nil)
	w.awaitPod("locked", "")

	w.change("b", func(vm *v1alpha1.VirtualMachine) { vm.Spec.LeaseDurationSeconds = 60 })
	w.awaitPod("b", "")
	w.renewals = 0.01
	w.restart()
	w.must(w.client.Delete(t.Context(), pod))
	w.awaitPod("a", pod.Name)
}

// TestRunLease_SuspectedHolderGetsItBack checks that a holder with a suspected lease gets it back when it requests it.
func TestRunLease_SuspectedHolderGetsItBack(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, h, _ := w.leasedFor("a", lease.MaxDuration)
	w.suspect("a")
	w.awaitReady("a", v1alpha1.ReasonLeaseExpiring)
	w.wantLeaseFor(h.lease()(), lease.MaxDuration)
	w.awaitLease("a", v1alpha1.LeaseOpen)
	w.awaitReady("a", reasonRunning)
	if has := w.vm("a").Status.ActivePodName; has != pod.Name {
		t.Errorf("the VM moved to %s", has)
	}
}

// TestRunLease_NextHypervisorWaitsForExpiryOrRelease checks that another hypervisor starts when the lease has expired or was released. It is not
// sufficient that the Pod is gone or has terminated.
func TestRunLease_NextHypervisorWaitsForExpiryOrRelease(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, test := range map[string]struct {
		end func(w *testEnv, pod *corev1.Pod, h *hypervisor)
		// waits reports whether the lease must expire.
		waits bool
	}{
		"the pod is gone":        {func(w *testEnv, pod *corev1.Pod, _ *hypervisor) { w.remove(pod) }, true},
		"the pod has terminated": {func(w *testEnv, pod *corev1.Pod, _ *hypervisor) { w.end(pod, "") }, true},
		"released": {func(w *testEnv, pod *corev1.Pod, h *hypervisor) {
			stream, err := h.RunLease(w.Context(), &vmpb.RunLeaseRequest{Us: h.us, Release: true})
			w.must(err)
			if update, err := stream.Recv(); err == nil {
				w.Errorf("the stream continues with %v", update)
			}
			w.end(pod, "")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			duration := expiring
			if !test.waits {
				duration = lease.MaxDuration // far longer than a busy machine takes
			}
			pod, h, _ := w.leasedFor("a", duration)
			terminated := time.Now()
			test.end(w, pod, h)
			if test.waits {
				w.awaitReady("a", v1alpha1.ReasonLeaseExpiring)
				w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
			}
			w.awaitPod("a", pod.Name)
			if waited := time.Since(terminated); waited >= lease.Wait(duration) != test.waits {
				t.Errorf("another hypervisor started after %v", waited)
			}
		})
	}
}

// TestRunLease_SurvivesFailover checks that a failover of the controller does not affect a holder that renews its lease,
// and causes no write for it.
func TestRunLease_SurvivesFailover(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const duration = 15 * time.Second // a busy machine may take seconds for a renewal
	w := newTestEnv(t)
	pod, _, _ := w.leasedFor("a", duration)
	w.awaitReady("a", reasonRunning)
	w.stop()
	before := w.vm("a").Status
	w.start()
	h := w.hypervisor("a", pod, 1) // the service has another address
	renewals := time.NewTicker(duration / 4)
	defer renewals.Stop()
	for end := time.Now().Add(lease.Silence(duration) + time.Second); time.Now().Before(end); <-renewals.C {
		w.wantLeaseFor(h.lease()(), duration)
		h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared = true })
	}
	after := w.vm("a").Status
	if *after.Lease != *before.Lease || after.VirtualMachineAuthority != before.VirtualMachineAuthority {
		t.Errorf("the lease was %+v, and is %+v", before.Lease, after.Lease)
	}
}

// TestRunLease_HasOneHolder checks that no other process gets the lease: neither a later process in the same Pod, nor
// another process by a switchover.
func TestRunLease_HasOneHolder(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, h, _ := w.leasedFor("a", lease.MaxDuration)
	later := w.hypervisor("a", pod, 2)
	w.wantStatus(later.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	_, err := later.MigrationSwitchover(t.Context(), &vmpb.MigrationSwitchoverRequest{Us: later.us, Them: h.us})
	wantCode(t, err, codes.FailedPrecondition)
	stream, err := later.RunLease(t.Context(), &vmpb.RunLeaseRequest{Us: later.us, Release: true})
	w.must(err)
	_, err = stream.Recv()
	wantCode(t, err, codes.FailedPrecondition)
	w.wantLeaseFor(h.lease()(), lease.MaxDuration)
}

// TestRunLease_Lost checks that a VM waits after its status was lost, because it is unknown which hypervisors have
// leases.
func TestRunLease_Lost(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, h, _ := w.leasedFor("a", lease.MaxDuration)
	w.stop()
	vm := w.vm("a")
	vm.Status = v1alpha1.VirtualMachineStatus{}
	w.must(w.client.Status().Update(t.Context(), vm))
	w.start()
	w.awaitReady("a", v1alpha1.ReasonLeaseExpiring)
	w.wantStatus(w.hypervisor("a", pod, h.us.GetRunId()).lease(), vmpb.RunLeaseUpdate_STATUS_UNKNOWN)
	w.remove(pod)
	w.eventually("the pods are gone", func() bool { return len(w.pods("a")) == 0 })
	if has := w.vm("a").Status.ActivePodName; has != "" {
		t.Errorf("pod %s has the VM", has)
	}
}
