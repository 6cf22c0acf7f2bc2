package crash

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/serverfault"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// troubled are the names of the scenarios that run under every fault of an API server.
var troubled = []string{
	"rolling update", "create, apart", "delete with drain, apart", "scale down by name", "capi create", "capi delete amid creation",
}

// TestFaults_InAPIServers runs scenarios with faulty API servers of both clusters, and checks the same rules as without
// faults: each fault with one scenario, and with all of them in an exhaustive run.
func TestFaults_InAPIServers(t *testing.T) {
	tier.All(t)
	fleet := newFleet(t)
	for i, fault := range serverfault.All(1) {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			t.Attr("fault", "An API server "+fault.Name)
			names := troubled
			if !tier.Exhaustive() {
				names = []string{troubled[i%len(troubled)]}
			}
			for _, name := range names {
				if err := fleet.trouble(t, name, fault); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			affected, eligible := fault.Counts()
			if affected == 0 {
				t.Error("no request was affected")
			}
			t.Attr("outcome", fmt.Sprintf("Every scenario reaches the desired state without violating a rule (scenarios: %d, affected requests: %d of %d)", len(names), affected, eligible))
		})
	}
}

// TestFaults_TwoLeaders runs two managers that both act as leader. No Machine ever has two VMs, and the
// desired state is reached. There may temporarily be more Machines than desired.
func TestFaults_TwoLeaders(t *testing.T) {
	tier.All(t)
	fleet := newFleet(t)
	names := partOf(append([]string{"create", "scale up", "adopt"}, troubled...), 2)
	var acted atomic.Int64
	t.Attr("fault", "Two managers act as leader at the same time")
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := called(name)
			s.secondManager, s.always = true, nil
			result := fleet.play(t, s, nil, sound)
			if result.err != nil {
				t.Errorf("%v\n%s", result.err, result.transcript)
			}
			if result.secondActed {
				acted.Add(1)
			}
		})
	}
	t.Cleanup(func() { // when all subtests are complete
		if acted.Load() == 0 {
			t.Error("the second manager did nothing in any scenario")
		}
		t.Attr("outcome", fmt.Sprintf("Every scenario reaches the desired state, and no Machine ever has two VMs (scenarios: %d, both managers acted in: %d)", len(names), acted.Load()))
	})
}

// TestFaults_ControlPlaneIsKilled kills etcd, the API server, or both during operations, and restarts them.
func TestFaults_ControlPlaneIsKilled(t *testing.T) {
	tier.All(t)
	for _, killed := range [][]string{{"etcd"}, {"kube-apiserver"}, {"etcd", "kube-apiserver"}} {
		t.Run(strings.Join(killed, ", "), func(t *testing.T) {
			t.Parallel()
			t.Attr("fault", "A crash and restart of "+strings.Join(killed, " and ")+" during a rolling update")
			own := env.New(t, env.WithOwn())
			l := &lane{nodes: withAllKinds(t, own.Cluster)}
			s := called("rolling update")
			s.always = nil // watches terminate with their server
			act := s.act
			s.act = func(ctx context.Context, r *run) error {
				if err := act(ctx, r); err != nil {
					return err
				}
				for _, component := range killed {
					if err := own.ControlPlane.Kill(component); err != nil {
						return err
					}
				}
				return nil
			}
			if result := l.play(t, s, nil, sound); result.err != nil {
				t.Errorf("%v\n%s", result.err, result.transcript)
			}
			t.Attr("outcome", "The rolling update completes")
		})
	}
}

// trouble runs a scenario under a fault.
func (f fleet) trouble(t *testing.T, name string, fault *serverfault.Fault) error {
	s := called(name)
	s.fault = fault
	whole := f.play(t, s, nil, sound)
	if whole.err != nil {
		return fmt.Errorf("%w\n%s", whole.err, whole.transcript)
	}
	if !fault.Killed {
		return nil
	}
	crashPoints := crashes(whole.points)
	crashPoint := crashPoints[len(crashPoints)/2]
	if killed := f.play(t, s, &crashPoint, sound); killed.err != nil {
		return fmt.Errorf("killed %s: %w\n%s", crashPoint, killed.err, killed.transcript)
	}
	return nil
}
