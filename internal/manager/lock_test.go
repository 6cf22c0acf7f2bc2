package manager

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
	"github.com/millwright-dev/millwright/test/support/env"
)

var both = []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager}

// election is a namespace with two leases for which several processes compete.
type election struct {
	*testing.T
	env     *env.Env
	clients *kubernetes.Clientset

	mu     sync.Mutex
	logged []string
}

func newElection(t *testing.T) *election {
	t.Helper()
	e := env.New(t)
	return &election{T: t, env: e, clients: kubernetes.NewForConfigOrDie(e.Admin)}
}

// candidate returns the lock of one of our processes.
func (e *election) candidate(runner *tasks.Runner) *lock {
	e.Helper()
	log := funcr.New(func(_, args string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.logged = append(e.logged, args)
	}, funcr.Options{})
	made, err := newLock(Config{Control: e.env.Admin, Log: log, Settings: Settings{Namespace: e.env.Namespace}}, runner)
	if err != nil {
		e.Fatal(err)
	}
	return made
}

// mcm returns the lock of one of MCM's processes.
func (e *election) mcm(lease, identity string) resourcelock.Interface {
	e.Helper()
	made, err := resourcelock.New(resourcelock.LeasesResourceLock, e.env.Namespace, lease,
		e.clients.CoreV1(), e.clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: identity})
	if err != nil {
		e.Fatal(err)
	}
	return made
}

// pace contains the times of an elector.
type pace struct{ duration, deadline, retry time.Duration }

var (
	// fast gives up early and loses its leases when requests are slow. Use it where the leases need not be kept.
	fast = pace{time.Second, 700 * time.Millisecond, 100 * time.Millisecond}
	// steady keeps its leases even if requests are slow.
	steady = pace{time.Hour, 50 * time.Minute, 100 * time.Millisecond}
	// slow does the same with more than a second between two renewals, like the default.
	slow = pace{time.Hour, 50 * time.Minute, 1200 * time.Millisecond}
)

// compete lets a lock compete for leadership until the returned function is called. The channel is closed once
// the lock leads.
func (e *election) compete(lock resourcelock.Interface, p pace) (leads <-chan struct{}, stop func()) {
	e.Helper()
	began := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: p.duration, RenewDeadline: p.deadline, RetryPeriod: p.retry,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(began) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		elector.Run(ctx)
	}()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	e.Cleanup(stop)
	return began, stop
}

// write writes a lease as another process would have left it.
func (e *election) write(name, holder string, seconds int32) {
	e.Helper()
	if err := e.take(name, holder, seconds); err != nil {
		e.Fatal(err)
	}
}

// take writes a lease. It returns a conflict if the holder was faster.
func (e *election) take(name, holder string, seconds int32) error {
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.env.Namespace, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
	}
	api := e.clients.CoordinationV1().Leases(e.env.Namespace)
	existing, err := api.Get(e.Context(), name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(e.Context(), lease, metav1.CreateOptions{})
	case err == nil:
		lease.ResourceVersion = existing.ResourceVersion
		_, err = api.Update(e.Context(), lease, metav1.UpdateOptions{})
	}
	return err
}

// expire makes the lease of a dead holder expire after one second.
func (e *election) expire(name, holder string) {
	e.Helper()
	// The last renewal may happen between the read and the write.
	gomega.NewWithT(e.T).Eventually(func() error { return e.take(name, holder, 1) }).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
}

// holder returns the holder of a lease, or "none" if the lease does not exist.
func (e *election) holder(name string) string {
	e.Helper()
	lease, err := e.clients.CoordinationV1().Leases(e.env.Namespace).Get(e.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "none"
	}
	if err != nil {
		e.Fatal(err)
	}
	return *lease.Spec.HolderIdentity
}

func (e *election) await(leads <-chan struct{}) {
	e.Helper()
	select {
	case <-leads:
	case <-time.After(env.WaitTimeout):
		e.Fatal("no process leads")
	}
}

// heldBy returns the record that an elector writes.
func heldBy(identity string) resourcelock.LeaderElectionRecord {
	now := metav1.Now()
	return resourcelock.LeaderElectionRecord{HolderIdentity: identity, LeaseDurationSeconds: 15, AcquireTime: now, RenewTime: now}
}

// TestLock_WaitsForBothProcessesOfMCM checks that Millwright starts only after each of MCM's processes has ended,
// whatever the other lease contains. This matters in clusters where only one of MCM's processes was replaced.
func TestLock_WaitsForBothProcessesOfMCM(t *testing.T) {
	others := map[string]func(e *election, other string){
		"missing": func(*election, string) {},
		// The lease is valid for one second, which is shorter than the time between two renewals of the other
		// lease, as with the default times.
		"released": func(e *election, other string) { e.write(other, "", 1) },
		"expired":  func(e *election, other string) { e.write(other, "dead", 1) },
	}
	type contest struct {
		*election
		name, held string
		leads      <-chan struct{}
		mcmDies    func()
	}
	var contests []contest // run in parallel, because each takes long
	for i, held := range both {
		for name, prepare := range others {
			e := newElection(t)
			prepare(e, both[1-i])
			mcmLeads, mcmDies := e.compete(e.mcm(held, "mcm"), slow)
			e.await(mcmLeads)
			leads, _ := e.compete(e.candidate(tasks.New(1)), fast)
			contests = append(contests, contest{e, held + " held, other " + name, held, leads, mcmDies})
		}
	}
	until := time.Now().Add(5 * slow.retry)
	for _, c := range contests {
		gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
			lease, err := c.clients.CoordinationV1().Leases(c.env.Namespace).Get(t.Context(), c.held, metav1.GetOptions{})
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(lease.Spec.RenewTime.Time).To(gomega.BeTemporally(">", until))
		}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed(), c.name+": MCM does not renew its lease")
		select {
		case <-c.leads:
			t.Errorf("%s: Millwright leads together with MCM", c.name)
		default:
		}
		if got := c.holder(c.held); got != "mcm" {
			t.Errorf("%s: the lease of MCM is held by %q", c.name, got)
		}
	}
	for _, c := range contests {
		c.mcmDies()
		c.expire(c.held, "mcm")
	}
	for _, c := range contests {
		c.await(c.leads)
		if a, b := c.holder(both[0]), c.holder(both[1]); a != b || a == "mcm" {
			t.Errorf("%s: finally, the leases are held by %q and %q", c.name, a, b)
		}
	}
}

// TestLock_BlocksMCM checks that each of MCM's processes waits while Millwright leads, and continues after a
// clean shutdown.
func TestLock_BlocksMCM(t *testing.T) {
	e := newElection(t)
	ours := e.candidate(tasks.New(1))
	leads, end := e.compete(ours, fast)
	e.await(leads)
	for _, name := range both {
		if got := e.holder(name); got != ours.Identity() {
			t.Errorf("%s is held by %q", name, got)
		}
	}
	first, _ := e.compete(e.mcm(both[0], "mc"), fast)
	second, _ := e.compete(e.mcm(both[1], "mcm"), fast)
	end()
	e.await(first)
	e.await(second)
}

// TestLock_TakesBothLeasesTogether checks that a lease that another process takes between our read and our write is
// not taken from it.
func TestLock_TakesBothLeasesTogether(t *testing.T) {
	for _, taken := range both {
		t.Run(taken, func(t *testing.T) {
			e := newElection(t)
			e.write(both[0], "", 1)
			e.write(both[1], "", 1)
			ours := e.candidate(tasks.New(1))
			if _, _, err := ours.Get(t.Context()); err != nil {
				t.Fatal(err)
			}
			e.write(taken, "mcm", 15)
			if err := ours.Update(t.Context(), heldBy(ours.Identity())); !apierrors.IsConflict(err) {
				t.Errorf("taking the leases returns %v, want a conflict", err)
			}
			if got := e.holder(taken); got != "mcm" {
				t.Errorf("the lease was taken from MCM by %q", got)
			}
			shown, _, err := ours.Get(t.Context())
			if err != nil || shown.HolderIdentity != "mcm" {
				t.Errorf("got %+v, %v; want MCM as the holder", shown, err)
			}
		})
	}
}

// TestLock_DoesNotCreateLeaseWhileOtherIsHeld checks that the second lease is not created while the first is held.
func TestLock_DoesNotCreateLeaseWhileOtherIsHeld(t *testing.T) {
	e := newElection(t)
	e.write(both[1], "mcm", 15)
	ours := e.candidate(tasks.New(1))
	shown, _, err := ours.Get(t.Context())
	if err != nil || shown.HolderIdentity != "mcm" {
		t.Fatalf("got %+v, %v; want MCM as the holder", shown, err)
	}
	if got := e.holder(both[0]); got != "none" {
		t.Errorf("%s is held by %q", both[0], got)
	}
}

// TestLock_RecreatesDeletedLease checks that a leader continues after one of its leases was deleted.
func TestLock_RecreatesDeletedLease(t *testing.T) {
	e := newElection(t)
	ours := e.candidate(tasks.New(1))
	leads, _ := e.compete(ours, steady)
	e.await(leads)
	for _, name := range both {
		if err := e.clients.CoordinationV1().Leases(e.env.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		gomega.NewWithT(t).Eventually(func() string { return e.holder(name) }).WithTimeout(env.WaitTimeout).Should(gomega.Equal(ours.Identity()))
	}
}

// TestLock_KeepsLeasesWhileTaskRuns checks that no other leader can start before our last call to a driver has
// ended.
func TestLock_KeepsLeasesWhileTaskRuns(t *testing.T) {
	e := newElection(t)
	runner := tasks.New(1)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runner.Start(ctx) }()
	ours := e.candidate(runner)
	if err := ours.Create(t.Context(), heldBy(ours.Identity())); err != nil {
		t.Fatal(err)
	}
	running, finish := make(chan struct{}), make(chan struct{})
	runner.Go(func(context.Context) {
		close(running)
		<-finish
	})
	<-running
	if err := ours.Update(t.Context(), heldBy("")); !errors.Is(err, errBusy) {
		t.Errorf("releasing the leases returns %v, want an error about running tasks", err)
	}
	if err := ours.Update(t.Context(), heldBy(ours.Identity())); err != nil {
		t.Errorf("the leases cannot be renewed: %v", err)
	}
	for _, name := range both {
		if got := e.holder(name); got != ours.Identity() {
			t.Errorf("%s is held by %q", name, got)
		}
	}
	close(finish)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := ours.Update(t.Context(), heldBy("")); err != nil {
		t.Fatal(err)
	}
	for _, name := range both {
		if got := e.holder(name); got != "" {
			t.Errorf("%s is still held by %q", name, got)
		}
	}
}

// TestLock_ReleasesOnlyOwnLeases checks that a process that lost a lease without noticing does not release the lease
// of the new holder when it exits.
func TestLock_ReleasesOnlyOwnLeases(t *testing.T) {
	e := newElection(t)
	ours := e.candidate(tasks.New(1))
	if err := ours.Create(t.Context(), heldBy(ours.Identity())); err != nil {
		t.Fatal(err)
	}
	e.write(both[1], "mcm", 15)
	if _, _, err := ours.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ours.Update(t.Context(), heldBy("")); err != nil {
		t.Fatal(err)
	}
	if a, b := e.holder(both[0]), e.holder(both[1]); a != "" || b != "mcm" {
		t.Errorf("the leases are held by %q and %q, want no holder and mcm", a, b)
	}
}

// TestLock_ReleasesAfterLateRenewal checks that leases are released even if the API server stores a canceled renewal
// after the elector has read the leases.
func TestLock_ReleasesAfterLateRenewal(t *testing.T) {
	e := newElection(t)
	ours := e.candidate(tasks.New(1))
	if err := ours.Create(t.Context(), heldBy(ours.Identity())); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ours.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.write(both[0], ours.Identity(), 15)
	e.write(both[1], "mcm", 15)
	if err := ours.Update(t.Context(), heldBy("")); err != nil {
		t.Fatal(err)
	}
	if a, b := e.holder(both[0]), e.holder(both[1]); a != "" || b != "mcm" {
		t.Errorf("the leases are held by %q and %q, want no holder and mcm", a, b)
	}
}

// TestLock_LogsHolderOnce checks that a standby process logs once per holder for whom it waits, with the lease.
func TestLock_LogsHolderOnce(t *testing.T) {
	e := newElection(t)
	ours := e.candidate(tasks.New(1))
	e.write(both[1], "mcm-0", 15)
	for range 3 {
		if _, _, err := ours.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.write(both[1], "mcm-1", 15)
	for range 3 {
		if _, _, err := ours.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(e.logged) != 2 || !strings.Contains(e.logged[0], "mcm-0") || !strings.Contains(e.logged[1], "mcm-1") || !strings.Contains(e.logged[0], both[1]) {
		t.Errorf("logged %q, want one line for each of two holders", e.logged)
	}
}

// TestLock_ReportsLoss checks that a process has lost its leadership when one of its leases has another holder.
func TestLock_ReportsLoss(t *testing.T) {
	e := newElection(t)
	ours := e.candidate(tasks.New(1))
	lost := func() bool {
		t.Helper()
		if _, _, err := ours.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ours.lost:
			return true
		default:
			return false
		}
	}
	e.write(both[0], "other", 15)
	if lost() {
		t.Error("reports the loss of leases that this process never held")
	}
	e.write(both[0], "", 1)
	if lost() {
		t.Error("reports the loss of leases without a holder")
	}
	if err := ours.Update(t.Context(), heldBy(ours.Identity())); err != nil {
		t.Fatal(err)
	}
	if lost() {
		t.Error("reports the loss of leases that this process holds")
	}
	e.write(both[1], "other", 15)
	for range 2 {
		if !lost() {
			t.Error("does not report the loss of a lease")
		}
	}
}
