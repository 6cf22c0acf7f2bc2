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

// waitTimeout is how long a manager may take to reach what is declared: many times what it
// takes after the longest back-off that a single death causes.
const waitTimeout = 2 * time.Minute

// run is one playing of a scenario.
type run struct {
	scenario    scenario
	broken      fault
	waitTimeout time.Duration

	// control and target have a namespace of this run's each, the same if they are one
	// cluster. Without a target, that is nil.
	control, target *env.Cluster
	// writes are those of everybody else to these clusters.
	writes  struct{ control, target *writes }
	gate    *gate
	leaks   *leaks
	servers servers
	// second is the way of a second manager, which nobody kills, to the same servers.
	second servers
	cloud  *sim.Cloud
	// history is what could be observed while points were recorded; nil if nobody looks.
	history *history
	// forces judges drains that are forced; nil if none may be.
	forces *forces
	// named is the Machine that an autoscaler names for deletion, if it does.
	named string
	// revival waits for the first one's death; revived is set when it has been followed by another.
	revival sync.WaitGroup
	revived atomic.Bool
	// removing is set when the deletion of all Machines was asked for.
	removing atomic.Bool
	// managers are all processes so far, the newest one last.
	mu       sync.Mutex
	managers []*process
	// plugIns are those of the driver, if it is one; socket is where they register.
	plugIns []*process
	socket  string
}

// result is what came of a run.
type result struct {
	points []point
	// deaths are those that are to be tried, if nobody died. Others are left out, as they leave the same.
	deaths []crash
	same   sameWorlds
	// hit reports whether the planned point was reached.
	hit bool
	// secondActed reports whether a second manager did something.
	secondActed bool
	// err says what was not as it must be.
	err error
	// transcript tells people what happened.
	transcript string
}

// play plays a scenario on a lane. Without a plan nobody is killed.
func (l *lane) play(t *testing.T, s scenario, plan *crash, broken fault) result {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, err := l.prepare(ctx, t, s, plan, broken)
	if err != nil {
		return result{err: fmt.Errorf("preparing the run: %w", err)}
	}
	err = errors.Join(r.through(ctx), r.judge())
	// Managers and kubelets end first, or what is cleared might come back.
	stop()
	r.revival.Wait()
	r.release()
	if err != nil {
		err = errors.Join(err, r.clear(t.Context()))
	}
	points, same := r.gate.recorded(), r.gate.same()
	return result{
		points: points, deaths: s.deaths(points, same), same: same, hit: r.gate.reached(), err: err, transcript: r.transcript(),
		secondActed: s.secondManager && !r.second.provider.gate.quiet(),
	}
}

// prepare makes what a run needs, up to its first manager.
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
		if r.socket, err = socketFolder(t); err != nil {
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
	go d.Start(ctx) // a cloud in memory can always be read
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

// serve makes the ways to the API servers, as the users that the manager is there.
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

// through plays the scenario and takes everything away again.
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

// after sees that the manager after the one that died keeps things as they were wanted:
// they may have been so before its death, and it is to have looked at them.
func (r *run) after(ctx context.Context) error {
	if err := r.await(ctx, "a second manager", second); err != nil {
		return err
	}
	if err := r.refresh(ctx); err != nil {
		return fmt.Errorf("declaring something new: %w", err)
	}
	return r.awaitRest(ctx, "what is declared, still", refreshed)
}

// second checks that the manager that died has been followed by another one.
func second(_ context.Context, r *run) error {
	if !r.revived.Load() {
		return errors.New("there is none yet")
	}
	return nil
}

// manage starts a manager.
func (r *run) manage() error { return r.begin(r.servers) }

// begin starts a manager that finds its servers that way.
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
		way.provider.gate.worksBeside(p, false)
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
		// That it cannot be started is seen by what is not reached, and so is it if nobody could look.
		if look := r.scenario.onDeath; look != nil && look(ctx, r) != nil {
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

// end takes away what was declared, and sees that nothing is left.
func (r *run) end(ctx context.Context) error {
	if r.history != nil {
		r.history.end() // what follows is no part of it
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
	// askPeriod is how often it is seen whether something has happened in a run, and askAnyway how often a check
	// asks the API servers if nothing has.
	askPeriod, askAnyway = 100 * time.Millisecond, time.Second
)

// await waits until a check finds nothing wrong. While nothing happens, it need not ask again.
func (r *run) await(ctx context.Context, what string, check func(context.Context, *run) error) error {
	return r.awaiting(ctx, what, check, func(_, now, known string) bool { return now != known })
}

// awaitRest is await for what stays as it is once it is reached: it asks when something has happened, and nothing more
// happens.
func (r *run) awaitRest(ctx context.Context, what string, check func(context.Context, *run) error) error {
	return r.awaiting(ctx, what, check, func(last, now, known string) bool { return now != known && now == last })
}

// awaiting is await, which asks again by what had happened a moment ago, has happened now, and had when it asked.
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

// happened describes what has happened in a run so far: what managers and others did, what its history has, and that
// a manager lives again.
func (r *run) happened() string {
	others, changing := r.outside()
	happened := fmt.Sprintf("%s, %t, %s, %d, %t", r.gate.progress(), changing, others, r.history.length(), r.revived.Load())
	if provider := r.second.provider; provider != nil {
		happened += ", " + provider.gate.progress()
	}
	return happened
}

// fallen tells that a manager ended that nobody killed.
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

// release ends what is left of the run.
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
