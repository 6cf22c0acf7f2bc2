package instance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// guarded is a decorator of the simulated driver that checks that calls for the same machine never run
// concurrently. It overrides the calls for machines.
type guarded struct {
	*sim.Driver
	mu sync.Mutex
	// running counts the running calls, by machine.
	running map[string]int
	// overlap names the last call that began while another one was running.
	overlap error
}

// enter begins a call, and returns the function that completes it.
func (g *guarded) enter(method string, machine *v1alpha1.Machine) func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running[machine.Name]++; g.running[machine.Name] > 1 {
		g.overlap = fmt.Errorf("%s of %s while another call was running", method, machine.Name)
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.running[machine.Name]--
	}
}

func (g *guarded) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	defer g.enter("Status", req.Machine)()
	return g.Driver.GetMachineStatus(ctx, req)
}

func (g *guarded) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	defer g.enter("Create", req.Machine)()
	return g.Driver.CreateMachine(ctx, req)
}

func (g *guarded) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	defer g.enter("Delete", req.Machine)()
	return g.Driver.DeleteMachine(ctx, req)
}

func (g *guarded) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	defer g.enter("Initialize", req.Machine)()
	return g.Driver.InitializeMachine(ctx, req)
}

// story is a simulation of a few machines: the requests of their controller, the actions of their provider, and
// restarts at any moment.
type story struct {
	t       *testing.T
	driver  *guarded
	process *process
	// chance is the same for all calls, because their order differs between runs.
	chance float64
	// machines are the machines as stored in the API server.
	machines []*plot
}

// plot is one machine of a story.
type plot struct {
	req      instance.Request
	deleting bool
	vanished bool
}

const machines = 3

// removal is how long a VM may still exist after its deletion.
const removal = 15 * time.Second

// script is a story before it is run, so that it can be generated and reduced outside of the bubble.
type script struct {
	spec       map[string]string
	seed       uint64
	chance     float64
	initialize bool
	steps      []step
}

// step is one event of a story.
type step struct {
	// text is the name of the step in the output of a failure.
	text string
	run  func(*story) error
}

func (s step) String() string { return s.text }

func drawScript(rt *rapid.T) script {
	return script{
		spec: map[string]string{
			"latency":      rapid.SampledFrom([]string{"0s", "1s"}).Draw(rt, "latency"),
			"visibleAfter": rapid.SampledFrom([]string{"0s", "20s"}).Draw(rt, "visibleAfter"),
			"deleteDelay":  rapid.SampledFrom([]string{"0s", removal.String()}).Draw(rt, "deleteDelay"),
		},
		seed:       rapid.Uint64().Draw(rt, "seed"),
		chance:     float64(rapid.IntRange(0, 99).Draw(rt, "percent")) / 100,
		initialize: rapid.Bool().Draw(rt, "initialize"),
		steps:      rapid.SliceOfN(rapid.OneOf(controllerSteps(), controllerSteps(), providerSteps()), 1, 40).Draw(rt, "steps"),
	}
}

// controllerSteps generates the actions and crashes of the process.
func controllerSteps() *rapid.Generator[step] {
	return rapid.Custom(func(rt *rapid.T) step {
		i := rapid.IntRange(0, machines-1).Draw(rt, "machine")
		pause := time.Duration(rapid.IntRange(0, 3000).Draw(rt, "milliseconds")) * time.Millisecond
		name := instanceName(i)
		return rapid.SampledFrom([]step{
			{"pass over " + name, func(s *story) error { s.machines[i].store(s.look(s.machines[i])); return nil }},
			{"pass over " + name + ", crashing before it is stored", func(s *story) error {
				s.look(s.machines[i])
				s.restart()
				return nil
			}},
			{"delete " + name, func(s *story) error {
				s.machines[i].deleting = true
				s.look(s.machines[i])
				return nil
			}},
			{"restart", func(s *story) error { s.restart(); return nil }},
			{"forget " + name, func(s *story) error { s.process.Forget(keyOf(s.machines[i].req)); return nil }},
			{"wait " + pause.String(), func(*story) error { time.Sleep(pause); synctest.Wait(); return nil }},
			{"wait long", func(*story) error { time.Sleep(time.Minute); synctest.Wait(); return nil }},
		}).Draw(rt, "step")
	})
}

// providerSteps generates the actions of the provider.
func providerSteps() *rapid.Generator[step] {
	return rapid.Custom(func(rt *rapid.T) step {
		i := rapid.IntRange(0, machines-1).Draw(rt, "machine")
		if rapid.IntRange(0, 5).Draw(rt, "vanish") == 0 {
			return step{"vanish " + instanceName(i), func(s *story) error {
				n, err := s.driver.Cloud().Vanish(instanceName(i))
				s.machines[i].vanished = s.machines[i].vanished || n > 0
				return err
			}}
		}
		fault := sim.Fault{
			Machine:    instanceName(i),
			Method:     rapid.SampledFrom([]sim.Method{sim.CreateMachine, sim.DeleteMachine, sim.GetMachineStatus, sim.InitializeMachine}).Draw(rt, "method"),
			Codes:      []codes.Code{rapid.SampledFrom([]codes.Code{codes.DeadlineExceeded, codes.Internal, codes.Aborted, codes.ResourceExhausted}).Draw(rt, "code")},
			Times:      rapid.IntRange(1, 3).Draw(rt, "times"),
			LostAnswer: rapid.Bool().Draw(rt, "lost"),
			Hang:       rapid.IntRange(0, 4).Draw(rt, "hang") == 0,
		}
		return step{fmt.Sprintf("fault %+v", fault), func(s *story) error {
			s.driver.Cloud().Fail(fault)
			return nil
		}}
	})
}

func instanceName(i int) string { return string(rune('a' + i)) }

// run runs a script in a bubble, and returns an error if an invariant is violated.
func (sc script) run(t *testing.T) error {
	spec, err := json.Marshal(sc.spec)
	if err != nil {
		return err
	}
	s := &story{t: t, chance: sc.chance, driver: &guarded{Driver: sim.New(sim.Config{Seed: sc.seed, RequireInitialize: sc.initialize}), running: map[string]int{}}}
	for i := range machines {
		req := request(instanceName(i))
		req.Class.ProviderSpec.Raw = spec
		s.machines = append(s.machines, &plot{req: req})
	}
	s.start()
	defer func() { s.process.stop() }()
	for _, step := range sc.steps {
		err := step.run(s)
		synctest.Wait() // everything that takes no time has happened, so that stories are reproducible
		if err := errors.Join(err, s.check()); err != nil {
			return fmt.Errorf("after %s: %w", step, err)
		}
	}
	return errors.Join(s.end(), s.check())
}

// look runs one pass of the controller over a machine.
func (s *story) look(m *plot) any {
	if m.deleting {
		return s.process.Delete(m.req)
	}
	return s.process.Ensure(m.req)
}

// store stores a result in the machine, as a controller does.
func (m *plot) store(result any) {
	switch r := result.(type) {
	case instance.Located:
		m.storeInstance(instance.Exists{Location: r.Location})
	case instance.Exists:
		m.storeInstance(r)
	case instance.Failed:
		if r.Uninitialized != nil {
			m.storeInstance(*r.Uninitialized)
		}
	}
}

func (m *plot) storeInstance(exists instance.Exists) {
	if exists.Location != "" {
		m.req.Machine.Annotations = map[string]string{driver.AnnotationLocation: exists.Location}
	}
	if exists.Instance.ProviderID != "" && m.req.Machine.Spec.ProviderID == "" {
		m.req.Machine.Spec.ProviderID = exists.Instance.ProviderID
		m.req.Machine.Generation++
	}
}

func (s *story) restart() {
	s.process.stop()
	s.start()
}

func (s *story) start() {
	s.process = start(s.t, s.driver, func(opts *instance.Options) { opts.Chance = func() float64 { return s.chance } })
}

// check checks the invariants that hold at every moment.
func (s *story) check() error {
	entries, err := s.driver.Cloud().Journal()
	if err != nil {
		return err
	}
	histories := sim.Histories(entries)
	for _, m := range s.machines {
		if err := m.check(histories[keyOf(m.req).String()]); err != nil {
			return err
		}
	}
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	return s.driver.overlap
}

func (m *plot) check(h sim.History) error {
	name, stored := m.req.Machine.Name, m.req.Machine.Spec.ProviderID
	switch {
	case h.MostAtOnce > 1:
		return fmt.Errorf("%s had %d VMs at the same time: %v", name, h.MostAtOnce, h.ProviderIDs)
	case len(h.ProviderIDs) > 1 && !m.vanished:
		return fmt.Errorf("%s had several VMs although none vanished: %v", name, h.ProviderIDs)
	case stored != "" && stored != h.ProviderIDs[len(h.ProviderIDs)-1]:
		return fmt.Errorf("%s has the ID %s, but another VM was created after it: %v", name, stored, h.ProviderIDs)
	}
	return nil
}

// end stops all faults, and follows each machine to its final state. If a completed call did not wake its
// caller, the bubble would deadlock.
func (s *story) end() error {
	s.driver.Cloud().ClearFaults()
	s.restart()
	for _, m := range s.machines {
		final := s.follow(m)
		// A provider with delayed lists returns NotFound while it is still removing the VM.
		time.Sleep(removal)
		exists, err := s.exists(m)
		if err != nil {
			return err
		}
		if final != m.rightEnd(exists) {
			return fmt.Errorf("%s has the final result %s: deleting %v, VM exists %v, vanished %v", m.req.Machine.Name, final, m.deleting, exists, m.vanished)
		}
	}
	return nil
}

// rightEnd returns the expected kind of the last result, for a machine whose VM exists or not. It returns
// Pending, which is never the last result, if the existence of the VM is itself wrong.
func (m *plot) rightEnd(exists bool) string {
	switch {
	case m.deleting && !exists:
		return "Gone"
	case !m.deleting && exists:
		return "Exists"
	case !m.deleting && m.vanished:
		return "Lost"
	}
	return "Pending"
}

func (s *story) follow(m *plot) string {
	for {
		result := s.look(m)
		m.store(result)
		switch result.(type) {
		case instance.Pending:
			<-s.process.wake
		case instance.Located: // stored by the controller
		case instance.Failed, instance.Remains:
			time.Sleep(retry(result))
		default:
			return kind(result)
		}
	}
}

func (s *story) exists(m *plot) (bool, error) {
	vms, err := s.driver.Cloud().VMs()
	return slices.ContainsFunc(vms, func(vm sim.VM) bool { return vm.Machine == m.req.Machine.Name }), err
}

// TestEngine_NeverCreatesTwoInstances checks that, whatever calls fail, whatever responses are lost, and whenever the process
// crashes, a machine has at most one VM, and none after its deletion.
func TestEngine_NeverCreatesTwoInstances(t *testing.T) {
	tier.Check(t, func(rt *rapid.T) {
		script := drawScript(rt)
		var err error
		synctest.Test(t, func(t *testing.T) { err = script.run(t) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}
