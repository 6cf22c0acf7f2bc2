package balancer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
)

// lease is a fake lease that several processes share.
type lease struct {
	mu     sync.Mutex
	record *resourcelock.LeaderElectionRecord
	down   bool
}

// lockFor returns the lock of a process.
func (l *lease) lockFor(identity string) resourcelock.Interface { return &lock{l, identity} }

func (l *lease) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

type lock struct {
	*lease
	identity string
}

var errDown = errors.New("the API server is down")

func (l *lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.down:
		return nil, nil, errDown
	case l.record == nil:
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "lease")
	}
	record := *l.record
	return &record, []byte(record.HolderIdentity + record.RenewTime.String()), nil
}

func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

func (l *lock) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return errDown
	}
	l.record = &record
	return nil
}

func (l *lock) RecordEvent(string) {}
func (l *lock) Identity() string   { return l.identity }
func (l *lock) Describe() string   { return "lease of " + l.identity }

// campaign starts a process that stands for election until stop is called.
func (h *harness) campaign(l *lease, identity string) (stop func()) {
	h.lock = l.lockFor(identity)
	h.start()
	ctx, cancel := context.WithCancel(h.t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- h.elect(ctx) }()
	return func() {
		h.t.Helper()
		cancel()
		if err := <-stopped; err != nil {
			h.t.Error(err)
		}
	}
}

// Only one of two processes assigns ports, but both forward connections.
func TestElection_OnlyLeaderAssignsPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lease
		machine := machineOf("a", "one", infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"})
		one, two := newHarness(t, append(append(clusterOf("a"), clusterOf("b")...), machine)...), newHarness(t)
		two.client = one.client
		stopOne := one.campaign(&l, "one")
		synctest.Wait()
		stopTwo := two.campaign(&l, "two")
		synctest.Wait()

		two.wantStatus(two.settle("a"), nil, "")
		two.wantPort("a", 0)
		one.wantStatus(one.settle("a"), at(100), infrav1.ReasonNoHealthyMachine)
		two.health = loadbalancer.Ready // only this process reaches the machine
		two.settle("a")
		synctest.Wait()
		two.wantStatus(two.settle("a"), at(100), infrav1.ReasonNoHealthyMachine) // only the leader sets the condition
		two.wantPort("a", 100)

		// When the first process stops, the other one assigns the free ports, and finds out which objects wait for
		// one.
		triggered := two.watchWakeups()
		stopOne()
		two.wantStatus(two.settle("b"), nil, "")
		time.Sleep(leaseDuration + 3*retryPeriod)
		synctest.Wait()
		if got := triggered(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("triggered %v", got)
		}
		two.wantStatus(two.settle("b"), at(101), infrav1.ReasonNoHealthyMachine)
		two.wantStatus(two.settle("a"), at(100), infrav1.ReasonForwarding)
		two.wantPort("a", 100)
		stopTwo()
	})
}

// A process that cannot renew its lease assigns no ports, but forwards connections. Later it becomes the leader
// again.
func TestElection_APIServerUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lease
		h := newHarness(t, append(clusterOf("a"), clusterOf("b")...)...)
		stop := h.campaign(&l, "one")
		synctest.Wait()
		h.wantStatus(h.settle("a"), at(100), infrav1.ReasonNoHealthyMachine)
		l.setDown(true)
		time.Sleep(renewDeadline + retryPeriod)
		synctest.Wait()
		h.wantStatus(h.settle("b"), nil, "")
		h.wantPort("a", 100)
		l.setDown(false)
		time.Sleep(leaseDuration + 3*retryPeriod)
		synctest.Wait()
		h.wantStatus(h.settle("b"), at(101), infrav1.ReasonNoHealthyMachine)
		stop()
	})
}

// The cache of a new leader may not contain the last port that the earlier leader assigned.
func TestElection_NewLeaderDoesNotTrustCache(t *testing.T) {
	h := newHarness(t, append(clusterOf("a"), clusterAt("b", 1, 100)...)...)
	h.live = h.client
	stale := interceptor.NewClient(h.client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, from client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := from.List(ctx, list, options...)
			if all, ok := list.(*infrav1.MillwrightClusterList); ok {
				all.Items = slices.DeleteFunc(all.Items, func(infra infrav1.MillwrightCluster) bool { return infra.Name == "b" })
			}
			return err
		},
	})
	h.client = stale
	h.start()
	h.wantStatus(h.settle("a"), at(101), infrav1.ReasonNoHealthyMachine)
}

// If two MillwrightClusters have the same port, each process serves the one that the leader serves as soon as it
// knows which, because clients may connect to any process. Another leader continues to serve the same one.
func TestElection_StandbyFollowsLeader(t *testing.T) {
	for name, order := range map[string][]string{
		"owner first":                   {"young", "old"},
		"refused one first":             {"old", "young", "old"},
		"new leader, owner first":       {"lead", "young", "old"},
		"new leader, refused one first": {"lead", "old", "young"},
	} {
		t.Run(name, func(t *testing.T) {
			one := newHarness(t, slices.Concat(clusterAt("young", 2, 101), clusterAt("old", 1, 100))...)
			one.settle("young")
			one.setPort("old", 101)
			one.wantStatus(one.settle("old"), at(101), infrav1.ReasonPortTaken)

			two := newHarness(t)
			two.client, two.lock = withoutConditions(one.client), new(lease).lockFor("two")
			two.start()
			two.settle("old")
			two.wantPort("old", 101) // the older one, as there are no conditions yet
			two.Client = one.client
			triggered := two.watchWakeups()
			for _, step := range order {
				if step == "lead" {
					two.lead(t.Context())
					continue
				}
				two.settle(step)
			}
			two.wantPort("young", 101)
			two.wantPort("old", 0)
			if got := triggered(); order[0] == "young" && !slices.Equal(got, []string{"old"}) {
				t.Errorf("triggered %v", got)
			}
			two.lead(t.Context())
			two.wantStatus(two.settle("old"), at(101), infrav1.ReasonPortTaken)
			two.wantStatus(two.settle("young"), at(101), infrav1.ReasonNoHealthyMachine)
		})
	}
}

// withoutConditions returns a client with a stale cache that shows no conditions.
func withoutConditions(from client.Client) client.Client {
	return interceptor.NewClient(from.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, from client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := from.List(ctx, list, options...)
			if all, ok := list.(*infrav1.MillwrightClusterList); ok {
				for i := range all.Items {
					all.Items[i].Status.Conditions = nil
				}
			}
			return err
		},
	})
}
