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

// lease is that of an API server, for several processes.
type lease struct {
	mu     sync.Mutex
	record *resourcelock.LeaderElectionRecord
	away   bool
}

// of is the lock of a process.
func (l *lease) of(identity string) resourcelock.Interface { return &lock{l, identity} }

func (l *lease) setAway(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
}

type lock struct {
	*lease
	identity string
}

var errAway = errors.New("the API server is away")

func (l *lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.away:
		return nil, nil, errAway
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
	if l.away {
		return errAway
	}
	l.record = &record
	return nil
}

func (l *lock) RecordEvent(string) {}
func (l *lock) Identity() string   { return l.identity }
func (l *lock) Describe() string   { return "lease of " + l.identity }

// standing is a process that stands for election until it is ended.
func (g *given) standing(of *lease, identity string) (end func()) {
	g.lock = of.of(identity)
	g.start()
	ctx, cancel := context.WithCancel(g.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.elect(ctx) }()
	return func() {
		g.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			g.t.Error(err)
		}
	}
}

// Of two processes one gives ports away. Both forward.
func TestTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var of lease
		machine := machineOf("a", "one", infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"})
		one, two := newGiven(t, append(append(clusterOf("a"), clusterOf("b")...), machine)...), newGiven(t)
		two.client = one.client
		endOne := one.standing(&of, "one")
		synctest.Wait()
		endTwo := two.standing(&of, "two")
		synctest.Wait()

		two.has(two.reconciles("a"), nil, "")
		two.isOpen("a", 0)
		one.has(one.reconciles("a"), at(100), infrav1.ReasonNoHealthyMachine)
		two.healthy = loadbalancer.Ready // only this process reaches the machine
		two.reconciles("a")
		synctest.Wait()
		two.has(two.reconciles("a"), at(100), infrav1.ReasonNoHealthyMachine) // the condition is the leader's
		two.isOpen("a", 100)

		// When the first one ends, the other one gives away what is free, and finds out itself who waits.
		woken := two.wakes()
		endOne()
		two.has(two.reconciles("b"), nil, "")
		time.Sleep(leaseDuration + 3*retryPeriod)
		synctest.Wait()
		if got := woken(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("woken are %v", got)
		}
		two.has(two.reconciles("b"), at(101), infrav1.ReasonNoHealthyMachine)
		two.has(two.reconciles("a"), at(100), infrav1.ReasonForwarding)
		two.isOpen("a", 100)
		endTwo()
	})
}

// A process that cannot renew its lease gives no ports away, goes on to forward, and leads again later.
func TestTheAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var of lease
		g := newGiven(t, append(clusterOf("a"), clusterOf("b")...)...)
		end := g.standing(&of, "one")
		synctest.Wait()
		g.has(g.reconciles("a"), at(100), infrav1.ReasonNoHealthyMachine)
		of.setAway(true)
		time.Sleep(renewDeadline + retryPeriod)
		synctest.Wait()
		g.has(g.reconciles("b"), nil, "")
		g.isOpen("a", 100)
		of.setAway(false)
		time.Sleep(leaseDuration + 3*retryPeriod)
		synctest.Wait()
		g.has(g.reconciles("b"), at(101), infrav1.ReasonNoHealthyMachine)
		end()
	})
}

// A process that has just begun to lead may not know from its cache what the one before gave away last.
func TestWhatTheCacheDoesNotKnowIsNotGivenTwice(t *testing.T) {
	g := newGiven(t, append(clusterOf("a"), made("b", 1, 100)...)...)
	g.live = g.client
	stale := interceptor.NewClient(g.client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, from client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := from.List(ctx, list, options...)
			if all, ok := list.(*infrav1.MillwrightClusterList); ok {
				all.Items = slices.DeleteFunc(all.Items, func(infra infrav1.MillwrightCluster) bool { return infra.Name == "b" })
			}
			return err
		},
	})
	g.client = stale
	g.start()
	g.has(g.reconciles("a"), at(101), infrav1.ReasonNoHealthyMachine)
}

// Of two MillwrightClusters with the same port each process serves the one that the process that leads serves, as soon as it
// knows: clients come to any of them. So it stays that one when another process leads.
func TestAStandbyFollowsTheOneThatLeads(t *testing.T) {
	for name, order := range map[string][]string{
		"the one that has the port first":   {"young", "old"},
		"the one that lost the port first":  {"old", "young", "old"},
		"another process leads meanwhile":   {"lead", "young", "old"},
		"the same, the one that lost first": {"lead", "old", "young"},
	} {
		t.Run(name, func(t *testing.T) {
			one := newGiven(t, slices.Concat(made("young", 2, 101), made("old", 1, 100))...)
			one.reconciles("young")
			one.changes("old", 101)
			one.has(one.reconciles("old"), at(101), infrav1.ReasonPortTaken)

			two := newGiven(t)
			two.client, two.lock = withoutConditions(one.client), new(lease).of("two")
			two.start()
			two.reconciles("old")
			two.isOpen("old", 101) // the older one, as nothing is said yet of which is served
			two.Client = one.client
			woken := two.wakes()
			for _, name := range order {
				if name == "lead" {
					two.lead(t.Context())
					continue
				}
				two.reconciles(name)
			}
			two.isOpen("young", 101)
			two.isOpen("old", 0)
			if got := woken(); order[0] == "young" && !slices.Equal(got, []string{"old"}) {
				t.Errorf("woken are %v", got)
			}
			two.lead(t.Context())
			two.has(two.reconciles("old"), at(101), infrav1.ReasonPortTaken)
			two.has(two.reconciles("young"), at(101), infrav1.ReasonNoHealthyMachine)
		})
	}
}

// withoutConditions is a cache that is not up to date.
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
