package virtualmachine

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// move is a migration of a VM with leases, just before the switchover.
type move struct {
	*testEnv
	from, to       *corev1.Pod
	source, target *hypervisor
	// next returns the next update of the run lease that the target opened when it started.
	next func() *vmpb.RunLeaseUpdate
	// before is the source's lease.
	before v1alpha1.VirtualMachineLease
}

func (w *testEnv) moves(duration time.Duration) *move {
	w.Helper()
	m := &move{testEnv: w}
	m.from, m.source, _ = w.migratable("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.LeaseFullLeases, int32(duration/time.Second)
	})
	w.eventually("the VM can be migrated", func() bool {
		return meta.IsStatusConditionTrue(w.vm("a").Status.Conditions, v1alpha1.ConditionLiveMigratable)
	})
	w.evict(m.from)
	responses := m.source.requestTarget()
	m.to = w.awaitTarget("a", "")
	if has, err := podspec.LeaseOf(m.to); err != nil || has != duration {
		w.Errorf("the target has leases of %v, %v", has, err)
	}
	m.target, m.next = w.target("a", m.to, 2)
	if early := m.target.lease()(); early.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK || early.GetValidFor() != nil {
		w.Errorf("the target gets %v before the switchover", early)
	}
	w.wantMigrate(responses, m.to)
	m.before = *w.vm("a").Status.Lease
	return m
}

// wantPassed checks that a process has the lease, with a new token.
func (m *move) wantPassed(to *hypervisor, duration time.Duration) {
	m.Helper()
	status := m.vm("a").Status
	if status.ActivePodName != to.us.GetPodName() || status.Lease.State != v1alpha1.LeaseOpen ||
		status.Lease.FencingToken <= m.before.FencingToken || status.Lease.Transitions <= m.before.Transitions {
		m.Errorf("the lease was %+v, and is now %+v of pod %s", m.before, status.Lease, status.ActivePodName)
	}
	update := to.lease()()
	m.wantLeaseFor(update, duration)
	if update.GetFencingToken() != uint64(status.Lease.FencingToken) {
		m.Errorf("the token is %d, want %d", update.GetFencingToken(), status.Lease.FencingToken)
	}
}

// TestRunLease_MovesWithSwitchover checks that the switchover also moves the lease to the target, in any state, because the source has
// stopped its guest.
func TestRunLease_MovesWithSwitchover(t *testing.T) {
	t.Parallel()
	const duration = lease.MaxDuration
	for name, test := range map[string]struct {
		before func(m *move)
		state  v1alpha1.LeaseState
	}{
		"open":                            {func(*move) {}, v1alpha1.LeaseOpen},
		"the source is silent":            {func(m *move) { m.suspect("a") }, v1alpha1.LeaseSuspected},
		"the source's pod has terminated": {func(m *move) { m.end(m.from, "") }, v1alpha1.LeaseRevoked},
		"the source's guest has terminated": {func(m *move) {
			stream, err := m.source.RunLease(m.Context(), &vmpb.RunLeaseRequest{Us: m.source.us, Release: true})
			m.must(err)
			_, _ = stream.Recv()
		}, v1alpha1.LeaseReleased},
		"the user changes the lease mode": {func(m *move) {
			m.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.LeaseMode = v1alpha1.LeaseStorageLocking })
		}, v1alpha1.LeaseOpen},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTestEnv(t).moves(duration)
			test.before(m)
			m.awaitLease("a", test.state)
			m.must(m.target.switchOver(m.source.us))
			m.must(m.target.switchOver(m.source.us)) // repeated because the response was lost
			m.wantLeaseFor(m.next(), duration)       // on the existing stream
			m.wantPassed(m.target, duration)
			m.wantStatus(m.source.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
			// A later process of the source gets no certificate.
			wantCode(t, m.hypervisor("a", m.from, 9).switchOver(m.source.us), codes.Unavailable)
			if phase := m.record("a").Phase; phase != v1alpha1.MigrationSucceeded {
				t.Errorf("the migration is %s", phase)
			}
		})
	}
}

// TestRunLease_SourceTakesItBack checks that a source can take its VM back under another run ID, with a new lease, and that
// other processes in its Pod cannot.
func TestRunLease_SourceTakesItBack(t *testing.T) {
	t.Parallel()
	m := newTestEnv(t).moves(lease.MaxDuration)
	again := m.hypervisor("a", m.from, 9)
	m.wantStatus(again.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	m.must(again.switchOver(m.source.us))
	m.wantPassed(again, lease.MaxDuration)
	wantCode(t, m.target.switchOver(m.source.us), codes.FailedPrecondition)
	m.wantStatus(m.source.lease(), vmpb.RunLeaseUpdate_STATUS_TERMINATE)
}

// TestRunLease_StaleTargetCannotSwitchOver checks that a target cannot switch over after another hypervisor got the expired
// lease.
func TestRunLease_StaleTargetCannotSwitchOver(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := newTestEnv(t).moves(expiring)
	if third := m.awaitPod("a", m.from.Name); third.Name == m.to.Name {
		t.Fatal("the target has the VM without a switchover")
	}
	m.wantStatus(m.next, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	wantCode(t, m.target.switchOver(m.source.us), codes.FailedPrecondition)
	if record := m.record("a"); record.Phase != v1alpha1.MigrationFailed || record.Reason != migration.ReasonSourceEnded {
		t.Errorf("the migration is %+v", record)
	}
}
