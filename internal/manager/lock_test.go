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

// election is a namespace with two leases that several processes want.
type election struct {
	*testing.T
	env     *env.Env
	clients *kubernetes.Clientset

	mu   sync.Mutex
	said []string
}

func newElection(t *testing.T) *election {
	t.Helper()
	e := env.New(t)
	return &election{T: t, env: e, clients: kubernetes.NewForConfigOrDie(e.Admin)}
}

// candidate is the lock of a process of ours.
func (e *election) candidate(runner *tasks.Runner) *lock {
	e.Helper()
	log := funcr.New(func(_, args string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.said = append(e.said, args)
	}, funcr.Options{})
	made, err := newLock(Config{Control: e.env.Admin, Log: log, Settings: Settings{Namespace: e.env.Namespace}}, runner)
	if err != nil {
		e.Fatal(err)
	}
	return made
}

// mcm is the lock of one of MCM's processes.
func (e *election) mcm(lease, identity string) resourcelock.Interface {
	e.Helper()
	made, err := resourcelock.New(resourcelock.LeasesResourceLock, e.env.Namespace, lease,
		e.clients.CoreV1(), e.clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: identity})
	if err != nil {
		e.Fatal(err)
	}
	return made
}

// pace is how an elector goes about it.
type pace struct{ duration, deadline, retry time.Duration }

var (
	// fast lets go soon, and loses its leases where a request takes long. It is for those
	// who need not keep them.
	fast = pace{time.Second, 700 * time.Millisecond, 100 * time.Millisecond}
	// steady keeps its leases also where everything is slow.
	steady = pace{time.Hour, 50 * time.Minute, 100 * time.Millisecond}
	// slow does so with more than a second between two renewals, as the default has.
	slow = pace{time.Hour, 50 * time.Minute, 1200 * time.Millisecond}
)

// compete has a lock compete for leadership until the returned function is called. The
// channel is closed once it leads.
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

// write makes a lease as another process left it.
func (e *election) write(name, holder string, seconds int32) {
	e.Helper()
	if err := e.take(name, holder, seconds); err != nil {
		e.Fatal(err)
	}
}

// take writes a lease. The error is a conflict if its holder was faster.
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

// expire does what time would: a lease whose holder has died ends in a second.
func (e *election) expire(name, holder string) {
	e.Helper()
	// The last renewal may come between reading and writing.
	gomega.NewWithT(e.T).Eventually(func() error { return e.take(name, holder, 1) }).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
}

// holder reads who holds a lease; "none" if it does not exist.
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
		e.Fatal("nobody leads")
	}
}

// heldBy is what an elector writes.
func heldBy(identity string) resourcelock.LeaderElectionRecord {
	now := metav1.Now()
	return resourcelock.LeaderElectionRecord{HolderIdentity: identity, LeaseDurationSeconds: 15, AcquireTime: now, RenewTime: now}
}

// TestOneOfMCMsProcessesKeepsUsOut: whoever does half of our work must have ended before
// we begin, whatever the other lease says. It matters in clusters where only one of MCM's
// processes was replaced.
func TestOneOfMCMsProcessesKeepsUsOut(t *testing.T) {
	others := map[string]func(e *election, other string){
		"missing": func(*election, string) {},
		// Its validity of a second is shorter than the time between two renewals of the
		// other one, as it is with everybody's default times.
		"given away": func(e *election, other string) { e.write(other, "", 1) },
		"of a dead":  func(e *election, other string) { e.write(other, "dead", 1) },
	}
	type contest struct {
		*election
		name, held string
		leads      <-chan struct{}
		mcmDies    func()
	}
	var contests []contest // all at once, since each takes its time
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
			t.Errorf("%s: we lead beside MCM", c.name)
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
			t.Errorf("%s: in the end the leases are held by %q and %q", c.name, a, b)
		}
	}
}

// TestWeKeepMCMOut: either of its processes waits while we lead, and goes on when we end
// in order.
func TestWeKeepMCMOut(t *testing.T) {
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

// TestLeasesAreTakenTogether: a lease that somebody takes between our reading and our
// writing is not taken from them.
func TestLeasesAreTakenTogether(t *testing.T) {
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
				t.Errorf("taking the leases answers %v, want a conflict", err)
			}
			if got := e.holder(taken); got != "mcm" {
				t.Errorf("the lease was taken from MCM by %q", got)
			}
			shown, _, err := ours.Get(t.Context())
			if err != nil || shown.HolderIdentity != "mcm" {
				t.Errorf("shown: %+v, %v; want that MCM holds it", shown, err)
			}
		})
	}
}

// TestMissingLeaseIsNotTakenFirst: while one lease is held, the other is not even made.
func TestMissingLeaseIsNotTakenFirst(t *testing.T) {
	e := newElection(t)
	e.write(both[1], "mcm", 15)
	ours := e.candidate(tasks.New(1))
	shown, _, err := ours.Get(t.Context())
	if err != nil || shown.HolderIdentity != "mcm" {
		t.Fatalf("shown: %+v, %v; want that MCM holds it", shown, err)
	}
	if got := e.holder(both[0]); got != "none" {
		t.Errorf("%s is held by %q", both[0], got)
	}
}

// TestDeletedLeaseIsMadeAgain: a leader survives that somebody deletes a lease.
func TestDeletedLeaseIsMadeAgain(t *testing.T) {
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

// TestLeasesAreKeptWhileATaskRuns: the next leader must not begin before our last call to
// a driver has ended.
func TestLeasesAreKeptWhileATaskRuns(t *testing.T) {
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
		t.Errorf("giving the leases away answers %v, want that we are busy", err)
	}
	if err := ours.Update(t.Context(), heldBy(ours.Identity())); err != nil {
		t.Errorf("they cannot even be renewed: %v", err)
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

// TestOnlyOursIsGivenAway: at the end of a process that lost a lease without noticing,
// the lease stays with whom it belongs to now.
func TestOnlyOursIsGivenAway(t *testing.T) {
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
		t.Errorf("the leases are held by %q and %q, want nobody and mcm", a, b)
	}
}

// TestStandByIsSaidOnce: for whom we wait is said once for each holder, with the lease.
func TestStandByIsSaidOnce(t *testing.T) {
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
	if len(e.said) != 2 || !strings.Contains(e.said[0], "mcm-0") || !strings.Contains(e.said[1], "mcm-1") || !strings.Contains(e.said[0], both[1]) {
		t.Errorf("said %q, want one line for each of two holders", e.said)
	}
}

// TestLossIsReported: a process that finds leases of its own with another holder has lost them.
func TestLossIsReported(t *testing.T) {
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
		t.Error("leases are lost that this process never had")
	}
	e.write(both[0], "", 1)
	if lost() {
		t.Error("leases are lost that nobody else holds")
	}
	if err := ours.Update(t.Context(), heldBy(ours.Identity())); err != nil {
		t.Fatal(err)
	}
	if lost() {
		t.Error("leases are lost that this process holds")
	}
	e.write(both[1], "other", 15)
	for range 2 {
		if !lost() {
			t.Error("the loss of a lease goes unnoticed")
		}
	}
}
