package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
)

// waitTimeout is how long a manager may take to reach the desired state. It is many times what it takes after the
// longest back-off that a single crash causes.
const waitTimeout = 2 * time.Minute

// run is one execution of a scenario.
type run struct {
	scenario    scenario
	broken      fault
	waitTimeout time.Duration

	// control and target each have a namespace of this run. They are the same for a single cluster. Without a
	// target cluster, target is nil.
	control, target *env.Cluster
	// writes counts the writes of all other clients to these clusters.
	writes  struct{ control, target *writes }
	gate    *gate
	leaks   *leaks
	servers servers
	// second contains the connections of a second manager, which is never killed, to the same servers.
	second servers
	cloud  *sim.Cloud
	// history is what could be observed while points were recorded, or nil if that is not needed.
	history *history
	// forces checks forced drains. If nil, drains must not be forced.
	forces *forces
	// named is the Machine that an autoscaler marks for deletion, if any.
	named string
	// revival waits for the crash of the first manager; revived is set when the next one was started.
	revival sync.WaitGroup
	revived atomic.Bool
	// backup is what restore creates again.
	backup backup
	// removing is set when the deletion of all Machines was requested.
	removing atomic.Bool
	// managers are all processes so far, the newest last.
	mu       sync.Mutex
	managers []*process
	// plugIns are the processes of the driver, if it is separate; socket is where they register.
	plugIns []*process
	socket  string
}

// result is the result of a run.
type result struct {
	points []point
	// crashPoints are the crash points to try, if there was no crash. Others are skipped, because they are equivalent.
	crashPoints []crash
	same        sameWorlds
	// hit reports whether the planned point was reached.
	hit bool
	// secondActed reports whether a second manager performed an operation.
	secondActed bool
	// err describes a violation.
	err error
	// transcript describes what happened, for people.
	transcript string
}

// play runs a scenario on a lane. Without a plan, the manager is not killed.
func (l *lane) play(t *testing.T, s scenario, plan *crash, broken fault) result {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, err := l.prepare(ctx, t, s, plan, broken)
	if err != nil {
		return result{err: fmt.Errorf("preparing the run: %w", err)}
	}
	err = errors.Join(r.through(ctx), r.judge())
	// Managers and kubelets stop first, because they could recreate what is cleared.
	stop()
	r.revival.Wait()
	r.release()
	if err != nil {
		err = errors.Join(err, r.clear(t.Context()))
	}
	points, same := r.gate.recorded(), r.gate.same()
	return result{
		points: points, crashPoints: s.crashPoints(points, same), same: same, hit: r.gate.reached(), err: err, transcript: r.transcript(),
		secondActed: s.secondManager && !r.second.provider.gate.quiet(),
	}
}

// prepare creates everything that a run needs before its first manager.
func (l *lane) prepare(ctx context.Context, t *testing.T, s scenario, plan *crash, broken fault) (*run, error) {
	r := &run{scenario: s, broken: broken, waitTimeout: cmp.Or(s.waitTimeout, waitTimeout), gate: newGate(plan), leaks: &leaks{}}
	if broken != sound && plan != nil {
		r.waitTimeout = waitTimeoutWithBroken
	}
	var err error
	if err = r.share(ctx, l); err != nil {
		return nil, err
	}
	if s.plugIn != "" {
		if r.socket, err = socketDir(t); err != nil {
			return nil, err
		}
		r.gate.driverOnly = s.plugIn == thePlugIn
	}
	r.forces = r.newForces(ctx)
	control, target := s.users(t, r.control, r.target)
	if r.servers, err = r.serve(control, target, r.gate); err != nil {
		return nil, err
	}
	r.cloud = sim.NewCloud(sim.CloudOptions{})
	settings := sim.Config{Cloud: r.cloud, RequireInitialize: s.initialize}
	if r.target != nil {
		if settings.Nodes, err = client.New(r.target.Admin, client.Options{Scheme: manager.Scheme(), Mapper: r.target.Client.RESTMapper()}); err != nil {
			return nil, err
		}
	}
	if plan == nil {
		r.gate.succession.outside = r.outside
	}
	d := sim.New(settings)
	go d.Start(ctx) // a provider in memory is always readable
	provided := s.provide(d, broken)
	r.servers.provider = newProvider(provided, r.gate)
	if s.secondManager {
		own := newGate(nil)
		if r.second, err = r.serve(control, target, own); err != nil {
			return nil, err
		}
		r.second.provider = newProvider(provided, own)
	}
	return r, nil
}

// share takes the run's share of a lane.
func (r *run) share(ctx context.Context, l *lane) error {
	control, target, err := l.clusters(ctx, r.scenario.where)
	if err != nil {
		return err
	}
	if r.control, r.writes.control, err = countingWrites(control); err != nil || target == nil {
		return err
	}
	if target == control {
		r.target = r.control
		return nil
	}
	r.target, r.writes.target, err = countingWrites(target)
	return err
}

// serve creates the proxies for the API servers, with the users of the manager.
func (r *run) serve(control, target *rest.Config, g *gate) (s servers, err error) {
	name := "api"
	if target != nil {
		name = "control"
		if s.target, err = newAPIServer("target", target, r.scenario.fault, g, r.leaks); err != nil {
			return s, err
		}
		s.target.forces = r.forces
	}
	if s.control, err = newAPIServer(name, control, r.scenario.fault, g, r.leaks); err != nil {
		return s, err
	}
	s.control.forces = r.forces
	return s, nil
}

// through runs the scenario, and removes everything afterwards.
func (r *run) through(ctx context.Context) error {
	if r.scenario.secondManager {
		if err := r.begin(r.second); err != nil {
			return err
		}
	}
	if err := r.manage(); err != nil {
		return err
	}
	if r.scenario.plugIn != "" {
		if err := r.plug(); err != nil {
			return err
		}
	}
	r.revival.Go(func() { r.revive(ctx) })
	if err := r.scenario.given(ctx, r); err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	if err := r.observe(ctx); err != nil {
		return fmt.Errorf("observing: %w", err)
	}
	r.gate.count(true)
	if err := r.scenario.act(ctx, r); err != nil {
		return fmt.Errorf("acting: %w", err)
	}
	if err := r.awaitRest(ctx, "what is declared", r.scenario.want); err != nil {
		return err
	}
	r.gate.count(false)
	if r.gate.reached() && r.gate.plan.kills() {
		if err := r.after(ctx); err != nil {
			return err
		}
	}
	if err := r.await(ctx, "that all is known", complete); err != nil {
		return err
	}
	return r.end(ctx)
}

// after checks that the manager started after the crash preserves the desired state. That state may have been
// reached before the crash, so the manager must have reconciled it.
func (r *run) after(ctx context.Context) error {
	if err := r.await(ctx, "a second manager", second); err != nil {
		return err
	}
	if err := r.refresh(ctx); err != nil {
		return fmt.Errorf("declaring something new: %w", err)
	}
	return r.awaitRest(ctx, "what is declared, still", refreshed)
}

// second checks that the killed manager was replaced.
func second(_ context.Context, r *run) error {
	if !r.revived.Load() {
		return errors.New("there is none yet")
	}
	return nil
}

// manage starts a manager.
func (r *run) manage() error { return r.begin(r.servers) }

// begin starts a manager that connects to its servers through the given proxies.
func (r *run) begin(way servers) error {
	p, err := newProcess(way)
	if err != nil {
		return err
	}
	port := 0
	if r.scenario.metrics {
		if port, err = freePort(); err != nil {
			return err
		}
	}
	if r.scenario.plugIn == thePlugIn {
		way.provider.gate.addCompanion(p, false)
	} else {
		way.provider.gate.runs(p)
	}
	r.forces.work(p.pid())
	r.mu.Lock()
	r.managers = append(r.managers, p)
	r.mu.Unlock()
	return p.order(orders{
		Namespace: r.control.Namespace, NoTarget: r.target == nil, Broken: r.broken, ClusterAPI: r.scenario.clusterAPI,
		OrphanPeriod: r.scenario.orphanPeriod, Overshoot: r.scenario.overshoot, HealthTimeout: r.scenario.healthTimeout, Port: port,
		DrainTimeout: r.scenario.drainTimeout, OutageTimeout: r.scenario.outageTimeout, DriverSocket: r.socket,
	})
}

// revive starts a new process when the first one was killed.
func (r *run) revive(ctx context.Context) {
	select {
	case <-r.gate.died:
		// If the start fails or the inspection was impossible, the desired state is not reached, which is
		// detected elsewhere.
		if look := r.scenario.onCrash; look != nil && look(ctx, r) != nil {
			return
		}
		again := r.manage
		if r.scenario.plugIn == thePlugIn {
			again = r.plug
		}
		r.revived.Store(again() == nil)
	case <-ctx.Done():
	}
}

func (r *run) living() *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.managers[len(r.managers)-1]
}

// end removes what was declared, and checks that nothing remains.
func (r *run) end(ctx context.Context) error {
	if r.history != nil {
		r.history.end() // the following is not part of it
	}
	if err := removeAll(ctx, r); err != nil {
		return fmt.Errorf("taking everything away: %w", err)
	}
	if err := r.awaitRest(ctx, "nothing is left", nothing); err != nil {
		return err
	}
	return r.living().stop()
}

const (
	// askPeriod is the interval at which a run is checked for new events. askAnyway is the interval at which a
	// check queries the API servers if there are none.
	askPeriod, askAnyway = 100 * time.Millisecond, time.Second
)

// await waits until a check succeeds. It does not repeat the check while nothing happens.
func (r *run) await(ctx context.Context, what string, check func(context.Context, *run) error) error {
	return r.awaiting(ctx, what, check, func(_, now, known string) bool { return now != known })
}

// awaitRest is like await, for a state that is stable once reached: it checks when something has happened, and
// nothing more happens.
func (r *run) awaitRest(ctx context.Context, what string, check func(context.Context, *run) error) error {
	return r.awaiting(ctx, what, check, func(last, now, known string) bool { return now != known && now == last })
}

// awaiting is like await. Whether it repeats the check depends on the events a moment ago, the current events,
// and the events at the last check.
func (r *run) awaiting(ctx context.Context, what string, check func(context.Context, *run) error, again func(last, now, known string) bool) error {
	deadline := time.Now().Add(r.waitTimeout)
	ticker := time.NewTicker(askPeriod)
	defer ticker.Stop()
	for {
		asked, known := time.Now(), r.happened()
		err := check(ctx, r)
		if err == nil {
			r.gate.note("reached: %s", what)
			return nil
		}
		for last, now := known, known; !again(last, now, known) && time.Since(asked) <= askAnyway; last, now = now, r.happened() {
			if err := r.fallen(); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%w: %s: %w", errNotReached, what, err)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
			}
		}
	}
}

// happened summarizes the events of a run so far: the operations of managers and others, the history, and whether
// a new manager was started.
func (r *run) happened() string {
	others, changing := r.outside()
	happened := fmt.Sprintf("%s, %t, %s, %d, %t", r.gate.progress(), changing, others, r.history.length(), r.revived.Load())
	if provider := r.second.provider; provider != nil {
		happened += ", " + provider.gate.progress()
	}
	return happened
}

// fallen reports that a manager exited without being killed.
func (r *run) fallen() error {
	p := r.living()
	select {
	case <-p.done:
	default:
		return nil
	}
	if !r.gate.lives(p) {
		return nil
	}
	return fmt.Errorf("manager %d ended by itself: %v", p.pid(), p.err)
}

// release releases the resources of the run.
func (r *run) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range slices.Concat(r.managers, r.plugIns) {
		p.release()
	}
}

func (r *run) transcript() string {
	var text strings.Builder
	r.gate.mu.Lock()
	for _, line := range r.gate.story {
		fmt.Fprintln(&text, line)
	}
	r.gate.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range slices.Concat(r.managers, r.plugIns) {
		fmt.Fprintf(&text, "process %d printed:\n%s\n", p.pid(), p.output.Tail(60))
	}
	return text.String()
}
