package crash

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/env"
)

// patience is how long a manager may take to reach what is declared: many times what it
// takes after the longest back-off that a single death causes.
const patience = 40 * time.Second

// lane is where runs take place, one after another: a control plane of its own, since
// every manager looks at all nodes.
type lane struct{ *env.Cluster }

// run is one playing of a scenario.
type run struct {
	scenario scenario
	broken   fault
	patience time.Duration

	// cluster has a namespace of this run's.
	cluster  *env.Cluster
	gate     *gate
	leaks    *leaks
	api      *apiserver
	provider *provider
	cloud    *sim.Cloud
	// revival waits for the first one's death.
	revival sync.WaitGroup
	// managers are all processes so far, the newest one last.
	mu       sync.Mutex
	managers []*process
}

// result is what came of a run.
type result struct {
	points []point
	// hit tells whether the planned point was reached.
	hit bool
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
	return result{points: r.gate.recorded(), hit: r.gate.reached(), err: err, transcript: r.transcript()}
}

// prepare makes what a run needs, up to its first manager.
func (l *lane) prepare(ctx context.Context, t *testing.T, s scenario, plan *crash, broken fault) (*run, error) {
	cluster := *l.Cluster
	r := &run{scenario: s, broken: broken, patience: patience, cluster: &cluster, gate: newGate(plan), leaks: &leaks{}}
	if broken != "" {
		r.patience = patienceWithBroken
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "crash-"}}
	if err := cluster.Client.Create(ctx, namespace); err != nil {
		return nil, err
	}
	cluster.Namespace = namespace.Name
	// The manager has the roles that are shipped, and no others.
	config := cluster.UserWith(t, "config/rbac/control-role.yaml", "config/rbac/target-role.yaml")
	var err error
	if r.api, err = newAPIServer(config, r.gate, r.leaks); err != nil {
		return nil, err
	}
	nodes, err := client.New(cluster.Admin, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		return nil, err
	}
	r.cloud = sim.NewCloud(sim.CloudOptions{})
	d := sim.New(sim.Config{Cloud: r.cloud, Nodes: nodes, RequireInitialize: s.initialize})
	go d.Start(ctx) //nolint:errcheck // a cloud in memory can always be read
	r.provider = newProvider(s.provide(d, broken), r.gate)
	return r, nil
}

// through plays the scenario and takes everything away again.
func (r *run) through(ctx context.Context) error {
	if err := r.manage(); err != nil {
		return err
	}
	r.revival.Go(func() { r.revive(ctx) })
	if err := r.scenario.given(ctx, r); err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	r.gate.count(true)
	if err := r.scenario.act(ctx, r); err != nil {
		return fmt.Errorf("acting: %w", err)
	}
	if err := r.await(ctx, "what is declared", r.scenario.want); err != nil {
		return err
	}
	r.gate.count(false)
	if r.gate.reached() {
		// After a lost answer, what is declared may be reached before death comes.
		if err := r.await(ctx, "a second manager", second); err != nil {
			return err
		}
		if err := r.await(ctx, "what is declared, still", r.scenario.want); err != nil {
			return err
		}
	}
	return r.end(ctx)
}

// second checks that the manager has been followed by another one.
func second(_ context.Context, r *run) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.managers) < 2 {
		return errors.New("there is one only")
	}
	return nil
}

// manage starts a manager.
func (r *run) manage() error {
	p, err := newProcess(r.api, r.provider)
	if err != nil {
		return err
	}
	r.gate.runs(p)
	r.mu.Lock()
	r.managers = append(r.managers, p)
	r.mu.Unlock()
	return p.order(orders{Namespace: r.cluster.Namespace, Broken: r.broken, OrphanPeriod: r.scenario.orphanPeriod})
}

// revive starts a new manager when the first one was killed.
func (r *run) revive(ctx context.Context) {
	select {
	case <-r.gate.died:
		// That it cannot be started is seen by what is not reached.
		_ = r.manage()
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
	if err := removeAll(ctx, r); err != nil {
		return fmt.Errorf("taking everything away: %w", err)
	}
	if err := r.await(ctx, "nothing is left", nothing); err != nil {
		return err
	}
	return r.living().stop()
}

// judge looks for what must never have been.
func (r *run) judge() error {
	journal, err := r.cloud.Journal()
	if err != nil {
		return err
	}
	var wrong []error
	for _, p := range r.gate.recorded() {
		if p.verb == "delete" && strings.HasPrefix(p.object, "pods ") {
			wrong = append(wrong, fmt.Errorf("%w: %s", errNotEvicted, p))
		}
	}
	for machine, history := range sim.Histories(journal) {
		if history.MostAtOnce > 1 {
			wrong = append(wrong, fmt.Errorf("%w: machine %s had %d VMs at once", errTwoVMs, machine, history.MostAtOnce))
		}
		if history.Left > 0 {
			wrong = append(wrong, fmt.Errorf("%w: %d VMs of machine %s", errLeft, history.Left, machine))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.managers {
		r.leaks.search("what the manager printed", []byte(p.output.String()))
	}
	for _, leak := range r.leaks.all() {
		wrong = append(wrong, fmt.Errorf("%w: %s", errLeak, leak))
	}
	return errors.Join(wrong...)
}

// What must not be.
var (
	errTwoVMs     = errors.New("two instances of one machine")
	errLeft       = errors.New("something is left")
	errLeak       = errors.New("a secret value got out")
	errNotEvicted = errors.New("a pod was deleted, not evicted")
	errToken      = errors.New("a bootstrap token is left")
	errNotReached = errors.New("what is declared is not reached")
)

// await waits until a check finds nothing wrong.
func (r *run) await(ctx context.Context, what string, check func(context.Context, *run) error) error {
	deadline := time.Now().Add(r.patience)
	ticker := time.NewTicker(25 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check(ctx, r)
		if err == nil {
			return nil
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

// release ends what is left of the run.
func (r *run) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.managers {
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
	for _, p := range r.managers {
		fmt.Fprintf(&text, "manager %d printed:\n%s\n", p.pid(), p.output.Tail(60))
	}
	return text.String()
}
