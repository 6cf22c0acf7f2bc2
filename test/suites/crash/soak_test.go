package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/serverfault"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	// shortSoak is the duration of TestSoak if MILLWRIGHT_SOAK is not set.
	shortSoak = 20 * time.Second
	// operationsPerRound is the number of operations before everything must match the desired state.
	operationsPerRound = 12
	// longestPause is the longest time between two operations.
	longestPause = 200 * time.Millisecond
	// mostMachines is the maximum number of desired Machines.
	mostMachines = 6
	// soakTimeout is longer than the longest back-off of caches after repeated failures of API servers.
	soakTimeout = 90 * time.Second
	// soakHealthTimeout is how long a node may be unhealthy.
	soakHealthTimeout = 2 * time.Second
)

// soak is a long run of random operations and faults.
type soak struct {
	random *rand.Rand
	length time.Duration
	// replicas and class are the current desired state.
	replicas int32
	class    string
	// most is the maximum number of desired Machines since the round began.
	most   int32
	rounds int
	// held contains the Machines that were preserved at some time of the round, removed those that the soak
	// deletes, and forced those that it deletes by force.
	held, removed, forced map[string]bool
	// pods contains the nodes of the Pods.
	pods map[string]string
	// awaySince is when both API servers last became unreachable.
	awaySince time.Time
	// secrets is how often the Secret was changed.
	secrets int
	// done counts operations by name.
	done map[string]int
	// usage is the manager's resource usage at the end of each round since it was last killed.
	usage []usage
}

// soakOperation is an operation of an operator, a provider or a network.
type soakOperation struct {
	name string
	do   func(*soak, context.Context, *run) error
}

var soakOperations = slices.Concat([]soakOperation{
	{"scale", (*soak).scale},
	{"scale", (*soak).scale},
	{"roll out another class", (*soak).rollOut},
	{"delete a Machine", (*soak).deleteMachine},
	{"name a Machine for deletion", (*soak).nameMachine},
	{"pause", (*soak).pause},
	{"a VM vanishes", (*soak).vanish},
	{"a node is not ready", (*soak).unready},
	{"the driver fails", (*soak).failDriver},
	{"an API server is faulty", (*soak).misbehave},
	{"an API server is faulty", (*soak).misbehave},
	{"the API servers recover", (*soak).behave},
}, moreSoakOperations, soakUpdateOperations)

// TestSoak performs random operations during random faults, and occasionally kills the manager in the first half.
// All writes must obey the rules, everything must match the desired state after each round, and the manager's
// resource usage must not grow in the second half. Without MILLWRIGHT_SOAK, the test is short and performs the
// same operations in each run.
func TestSoak(t *testing.T) {
	tier.All(t)
	fleet := newFleet(t)
	length, random := tier.Soak(t, shortSoak)
	s := &soak{random: random, length: length,
		replicas: 3, class: pool,
		done: map[string]int{}, held: map[string]bool{}, removed: map[string]bool{}, forced: map[string]bool{}, pods: map[string]string{}}
	t.Attr("fault", "Random operations and faults for "+s.length.String())
	result := fleet.play(t, scenario{
		name: "soak", where: apart, orphanPeriod: time.Second, healthTimeout: soakHealthTimeout, metrics: true,
		outageTimeout: shortOutage, waitTimeout: soakTimeout,
		given:     inTurn(givenBudget, givenAgents(s.replicas)),
		act:       s.rest,
		want:      s.asDeclared,
		always:    both(both(s.neverTooMany, frozenMakeNothing), s.keepPreserved),
		mayDelete: s.mayDelete,
	}, nil, sound)
	t.Logf("%d rounds: %v", s.rounds, s.done)
	if result.err != nil {
		t.Fatalf("%v\n%s", result.err, result.transcript)
	}
	if err := flat(s.usage); err != nil {
		t.Error(err)
	}
	first, last := s.usage[0], s.usage[len(s.usage)-1]
	t.Attr("outcome", fmt.Sprintf("Each of %d rounds of %d operations reaches the desired state; the manager uses %s after the first round since it was last killed, and %s after %d more rounds",
		s.rounds, operationsPerRound, first, last, len(s.usage)-1))
}

// rest runs rounds until the time is over, and at least two with the same manager.
func (s *soak) rest(ctx context.Context, r *run) error {
	began := time.Now()
	for time.Since(began) < s.length || len(s.usage) < 2 {
		if s.rounds > 0 {
			if err := r.observe(ctx); err != nil {
				return err
			}
		}
		kills := time.Since(began) < s.length/2
		if err := s.round(ctx, r, kills); err != nil {
			return fmt.Errorf("round %d: %w", s.rounds, err)
		}
		s.rounds++
	}
	return nil
}

// round performs some operations, and waits until everything matches the desired state.
func (s *soak) round(ctx context.Context, r *run, kills bool) error {
	s.most = s.replicas
	clear(s.held)
	if err := s.chooseStrategy(ctx, r); err != nil {
		return err
	}
	killed := s.random.IntN(operationsPerRound)
	for i := range operationsPerRound {
		if kills && i == killed {
			s.usage = nil
			r.gate.replace()
			if err := r.manage(); err != nil {
				return err
			}
		}
		op := soakOperations[s.random.IntN(len(soakOperations))]
		s.done[op.name]++
		r.gate.note("%s", op.name)
		if err := op.do(s, ctx, r); err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
		// Users, providers and networks do not act at the same time.
		select {
		case <-time.After(time.Duration(s.random.Int64N(int64(longestPause)))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.settle(ctx, r)
}

// settle stops all faults, and waits until everything matches the desired state.
func (s *soak) settle(ctx context.Context, r *run) error {
	if err := s.behave(ctx, r); err != nil {
		return err
	}
	r.cloud.ClearFaults()
	if _, err := r.cloud.SetNodeReady("*", corev1.ConditionTrue); err != nil {
		return err
	}
	if err := r.patchDeployment(ctx, `{"spec":{"paused":false}}`); err != nil {
		return err
	}
	for _, do := range []func(context.Context, *run) error{s.release, s.evictable, s.rolledBack, s.endUpdates} {
		if err := do(ctx, r); err != nil {
			return err
		}
	}
	r.gate.note("all faults are over")
	if err := r.await(ctx, "what is declared", r.scenario.want); err != nil {
		return err
	}
	if err := s.collectPods(ctx, r); err != nil {
		return err
	}
	if err := r.await(ctx, "that all is known", complete); err != nil {
		return err
	}
	if err := r.history.judge(r, r.scenario.always); err != nil {
		return err
	}
	used, err := r.living().usage()
	s.usage = append(s.usage, used)
	return err
}

// evictable permits the eviction of all Pods.
func (s *soak) evictable(ctx context.Context, r *run) error {
	return s.allow(ctx, r, int32(len(s.pods)+1))
}

// asDeclared checks that everything matches the desired state.
func (s *soak) asDeclared(ctx context.Context, r *run) error {
	if err := r.marksNameMachines(ctx); err != nil {
		return err
	}
	return allInSetOf(int(s.replicas), s.class)(ctx, r)
}

// neverTooMany requires that no Machine is created beyond the number desired in this round plus the surge.
// Preserved Machines do not count.
func (s *soak) neverTooMany(_ *run, was, is moment) error {
	active := 0
	for name, machine := range is.machines {
		if machine.DeletionTimestamp.IsZero() && !s.held[name] {
			active++
		}
	}
	const surge = 1
	if len(is.machines) > len(was.machines) && active > int(s.most)+surge {
		return fmt.Errorf("%w: %d, at most %d", errTooMany, active, s.most+surge)
	}
	return nil
}

func (s *soak) scale(ctx context.Context, r *run) error {
	s.want(s.random.Int32N(mostMachines) + 1)
	return r.scale(ctx, s.replicas)
}

// want records the next desired state.
func (s *soak) want(replicas int32) {
	s.replicas, s.most = replicas, max(s.most, replicas)
}

func (s *soak) rollOut(ctx context.Context, r *run) error {
	s.class = map[string]string{pool: newClass, newClass: pool}[s.class]
	return r.rollTo(ctx, s.class)
}

func (s *soak) pause(ctx context.Context, r *run) error {
	return r.patchDeployment(ctx, fmt.Sprintf(`{"spec":{"paused":%t}}`, s.random.IntN(2) == 0))
}

func (s *soak) deleteMachine(ctx context.Context, r *run) error {
	machine, err := s.anyMachine(ctx, r)
	if err != nil || machine == nil {
		return err
	}
	return s.remove(ctx, r, machine)
}

// nameMachine marks a Machine as an autoscaler does.
func (s *soak) nameMachine(ctx context.Context, r *run) error {
	machine, err := s.anyMachine(ctx, r)
	if err != nil || machine == nil || s.replicas == 1 {
		return err
	}
	r.named = machine.Name
	s.want(s.replicas - 1)
	return r.nameAndScale(ctx, int(s.replicas))
}

// vanish deletes the VM of a running Machine. A Machine that still waits for its node would wait for the whole
// creation timeout.
func (s *soak) vanish(ctx context.Context, r *run) error {
	machine, err := s.anyMachine(ctx, r)
	if err != nil || machine == nil || machine.Status.CurrentStatus.Phase != v1alpha1.MachineRunning {
		return err
	}
	_, err = r.cloud.Vanish(machine.Name)
	return err
}

func (s *soak) unready(ctx context.Context, r *run) error {
	machine, err := s.anyMachine(ctx, r)
	if err != nil || machine == nil {
		return err
	}
	_, err = r.cloud.SetNodeReady(machine.Name, corev1.ConditionFalse)
	return err
}

func (s *soak) failDriver(_ context.Context, r *run) error {
	methods := []sim.Method{sim.CreateMachine, sim.DeleteMachine, sim.GetMachineStatus}
	responses := []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Unknown}
	r.cloud.Fail(sim.Fault{
		Method: methods[s.random.IntN(len(methods))], Codes: []codes.Code{responses[s.random.IntN(len(responses))]},
		Times: 1 + s.random.IntN(2), LostAnswer: s.random.IntN(2) == 0,
	})
	return nil
}

func (s *soak) misbehave(_ context.Context, r *run) error {
	faults := serverfault.All(s.random.Uint64())
	fault := faults[s.random.IntN(len(faults))]
	r.gate.note("an API server %s", fault.Name)
	servers := []*apiserver{r.servers.control, r.servers.target}
	servers[s.random.IntN(len(servers))].fault.Store(fault)
	return nil
}

func (s *soak) behave(_ context.Context, r *run) error {
	r.servers.control.fault.Store(nil)
	r.servers.target.fault.Store(nil)
	return nil
}

// anyMachine returns a Machine, or nil if there are none.
func (s *soak) anyMachine(ctx context.Context, r *run) (*v1alpha1.Machine, error) {
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil || len(machines.Items) == 0 {
		return nil, err
	}
	slices.SortFunc(machines.Items, func(a, b v1alpha1.Machine) int {
		return metav1.Time.Compare(a.CreationTimestamp, b.CreationTimestamp.Time)
	})
	return &machines.Items[s.random.IntN(len(machines.Items))], nil
}

// flat reports whether a manager's resource usage does not keep growing over the rounds.
func flat(used []usage) error {
	quarter := max(1, len(used)/4)
	first, last := smallest(used[:quarter]), smallest(used[len(used)-quarter:])
	var more []error
	for _, resource := range []struct {
		name         string
		first, last  float64
		factor, some float64
	}{
		{"goroutines", first.goroutines, last.goroutines, 1.1, 10},
		{"open files", first.files, last.files, 1.1, 10},
		{"bytes of heap in use", first.heap, last.heap, 1.2, 8 << 20},
	} {
		if resource.last > resource.first*resource.factor+resource.some {
			more = append(more, fmt.Errorf("the manager used %.0f %s, and %.0f in the end", resource.first, resource.name, resource.last))
		}
	}
	return errors.Join(more...)
}

// smallest returns the minimum usage of each resource.
func smallest(used []usage) usage {
	least := used[0]
	for _, u := range used[1:] {
		least = usage{min(least.goroutines, u.goroutines), min(least.files, u.files), min(least.heap, u.heap)}
	}
	return least
}

// TestSoak_GrowthIsFound checks that TestSoak would detect a leak.
func TestSoak_GrowthIsFound(t *testing.T) {
	level, growing := []usage{}, map[string][]usage{}
	for i := range 20 {
		n := float64(i)
		u := usage{goroutines: 100, files: 20, heap: 30 << 20}
		level = append(level, u)
		growing["goroutines"] = append(growing["goroutines"], usage{u.goroutines + 3*n, u.files, u.heap})
		growing["files"] = append(growing["files"], usage{u.goroutines, u.files + n, u.heap})
		growing["heap"] = append(growing["heap"], usage{u.goroutines, u.files, u.heap + n*(1<<20)})
	}
	if err := flat(level); err != nil {
		t.Errorf("the same all the time: %v", err)
	}
	for name, used := range growing {
		if flat(used) == nil {
			t.Errorf("%s: growth is not found", name)
		}
	}
}
