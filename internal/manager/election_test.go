package manager

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// stored is a lease as stored by the API server.
type stored struct {
	record        *resourcelock.LeaderElectionRecord
	reads, writes int
}

// view is a lease as one process sees it.
type view struct {
	*stored
	identity string
}

func (v *view) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	v.reads++
	if v.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "lease")
	}
	raw, err := json.Marshal(v.record)
	return v.record, raw, err
}

func (v *view) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return v.Update(ctx, record)
}

func (v *view) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	v.writes++
	v.record = &record
	return nil
}

func (v *view) RecordEvent(string) {}
func (v *view) Identity() string   { return v.identity }
func (v *view) Describe() string   { return "lease" }

// TestElection_ReleasedLeaseIsTakenSoon checks that a standby process reads the lease more often than the leader
// renews it.
func TestElection_ReleasedLeaseIsTakenSoon(t *testing.T) {
	election := Election{Enabled: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
	synctest.Test(t, func(t *testing.T) {
		lease := &stored{}
		leads := make(chan string, 2)
		run := func(identity string) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			elector := electorOf(t, election, &view{lease, identity}, leads)
			go func() {
				defer close(ended)
				elector.Run(ctx)
			}()
			return func() { cancel(); <-ended }
		}
		stopFirst := run("first")
		if leader := <-leads; leader != "first" {
			t.Fatalf("%s leads", leader)
		}
		stopSecond := run("second")
		defer stopSecond()
		time.Sleep(time.Minute)
		if lease.writes < 25 || lease.writes > 32 {
			t.Errorf("the leader wrote its lease %d times in a minute, want every 2 s", lease.writes)
		}
		if lease.reads > 125 {
			t.Errorf("the standby process read the lease %d times in a minute", lease.reads)
		}
		stopFirst()
		released := time.Now()
		if leader := <-leads; leader != "second" {
			t.Fatalf("%s leads", leader)
		}
		if took := time.Since(released); took > 1200*time.Millisecond {
			t.Errorf("the standby process took the released lease after %v", took)
		}
	})
}

// electorOf returns an elector configured like that of controller-runtime.
func electorOf(t *testing.T, election Election, one resourcelock.Interface, leads chan<- string) *leaderelection.LeaderElector {
	t.Helper()
	options := &ctrl.Options{}
	election.configure(options, &lock{
		leases: []*lease{{Interface: one}}, interval: election.RetryPeriod, idle: (&tasks.Runner{}).Idle,
		seen: make(chan struct{}), won: make(chan struct{}), lost: make(chan struct{}),
	})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: options.LeaderElectionResourceLockInterface, LeaseDuration: *options.LeaseDuration,
		RenewDeadline: *options.RenewDeadline, RetryPeriod: *options.RetryPeriod, ReleaseOnCancel: options.LeaderElectionReleaseOnCancel,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leads <- one.Identity() },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return elector
}
