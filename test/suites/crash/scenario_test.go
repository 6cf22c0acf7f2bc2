package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/test/support/serverfault"
)

// scenario is what an operator does, and the expected result.
type scenario struct {
	name string
	// where is the setup in which the scenario is run. If empty, it is together, with a single cluster. also are
	// further setups, in which the scenario takes a different course.
	also  []setup
	where setup
	// clusterAPI makes the manager serve Cluster API instead of MCM's kinds.
	clusterAPI bool
	// classes makes the history record MachineClasses, too.
	classes bool
	// plugIn makes the driver a separate process, and selects which of the two processes is killed. If empty, the
	// driver is part of the manager.
	plugIn mortal
	// initialize makes VMs need a step after their creation.
	initialize bool
	// firstNeverJoins keeps the first VM's node from joining.
	firstNeverJoins bool
	// orphanPeriod is the period of the check for orphans. If zero, there is no check.
	orphanPeriod time.Duration
	// healthTimeout is how long a node may be unhealthy. If zero, the manager's default is used.
	healthTimeout time.Duration
	// drainTimeout is the timeout after which a drain is forced. If zero, the manager's default is used, and no
	// drain may be forced.
	drainTimeout time.Duration
	// outageTimeout is how long an API server must be unreachable for an outage. If zero, the manager's default
	// is used.
	outageTimeout time.Duration
	// overshoot specifies when MachineSets are frozen. If nil, the manager's default is used.
	overshoot *machineset.Overshoot
	// metrics makes managers serve their resource usage.
	metrics bool
	// secondManager starts a second manager that also acts as leader.
	secondManager bool
	// fault is the fault of the API servers, or nil.
	fault *serverfault.Fault
	// given prepares the world; act performs the operations whose points are recorded.
	given, act func(context.Context, *run) error
	// want returns an error if the final state is not as expected.
	want func(context.Context, *run) error
	// waitTimeout is how long a manager may take to reach the desired state. If zero, a default that suits most
	// scenarios is used.
	waitTimeout time.Duration
	// mayDelete reports whether a Pod may be deleted instead of evicted. If nil, none may.
	mayDelete func(pod string) bool
	// onCrash inspects the world between the crash of a manager and the start of the next one. It may be nil.
	onCrash func(context.Context, *run) error
	// always is a rule that must hold from act to the end. If nil, only the final state is checked.
	always rule
}

// everywhere returns each scenario in all its setups.
func everywhere() []scenario {
	var all []scenario
	for _, s := range slices.Concat(lives, sizes, rollouts, clusterAPI, locations, forced, preservations, updates, troubledUpdates, usersAmidUpdates, reserves, scarcities, zoneOutages, legacyClasses, plugIns, liveUpdates, classFollowers, restores) {
		s.where = cmp.Or(s.where, together)
		all = append(all, s)
		name := s.name
		for _, where := range s.also {
			s.name, s.where = fmt.Sprintf("%s, %s", name, where), where
			all = append(all, s)
		}
	}
	return all
}

// called returns the scenario with a name.
func called(name string) scenario {
	all := everywhere()
	return all[slices.IndexFunc(all, func(s scenario) bool { return s.name == name })]
}

// standalone is the name of a Machine without a MachineSet.
const standalone = "alone"

// lives contains the scenarios of individual Machines.
var lives = []scenario{
	{
		name: "create", also: []setup{apart, noTarget},
		given:  declareClass,
		act:    func(ctx context.Context, r *run) error { return r.declareDeployment(ctx, 1) },
		want:   running(1),
		always: most(1),
	},
	{
		name:       "create with initialize",
		initialize: true,
		given:      declareClass,
		act:        declareStandalone,
		want:       running(1),
	},
	{
		name:  "adopt",
		given: givenVM,
		act:   declareStandalone,
		want:  running(1),
	},
	{
		name:            "failed join",
		firstNeverJoins: true,
		given:           declareClass,
		act:             declareAndFail,
		want:            running(1),
		always:          most(2), // the failed Machine, and its successor
	},
	{
		name: "delete", also: []setup{noTarget},
		given: givenDeployment(1),
		act:   removeAll,
		want:  nothing,
	},
	{
		name: "delete with drain", also: []setup{apart},
		given: givenPod,
		act:   removeAll,
		want:  nothing,
	},
	{
		name:  "delete amid creation",
		given: declareClass,
		act:   deleteAmid(declareStandalone),
		want:  nothing,
	},
	{
		name: "orphan", also: []setup{apart},
		orphanPeriod: 300 * time.Millisecond,
		given:        declareClass,
		act:          addOrphan,
		want:         running(0),
	},
}

func declareStandalone(ctx context.Context, r *run) error {
	return r.create(ctx, &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: standalone}, Spec: r.scenario.template()})
}

// declareAndFail creates a MachineDeployment of one Machine, and makes the Machine time out when its VM exists.
// Its successor has enough time.
func declareAndFail(ctx context.Context, r *run) error {
	if err := r.declareDeployment(ctx, 1); err != nil {
		return err
	}
	var waits string
	err := r.await(ctx, "a Machine Pending", func(ctx context.Context, r *run) error {
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		for _, machine := range machines.Items {
			if machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending {
				waits = machine.Name
				return nil
			}
		}
		return errors.New("there is none")
	})
	if err != nil {
		return err
	}
	return r.endTimeToJoin(ctx, waits)
}

// givenVM creates the VM of a Machine that does not exist, because its creation was lost and is repeated.
func givenVM(ctx context.Context, r *run) error {
	vm := r.vmOf(standalone)
	vm.Node = &sim.NodePlan{}
	if _, err := r.cloud.Add(vm); err != nil {
		return err
	}
	return declareClass(ctx, r)
}

func (r *run) vmOf(machine string) sim.VM {
	return sim.VM{Namespace: r.control.Namespace, Machine: machine, Pool: r.control.Namespace + "/" + pool}
}

// addOrphan creates a VM whose Machine no longer exists.
func addOrphan(_ context.Context, r *run) error {
	r.gate.names.keep("orphan")
	_, err := r.cloud.Add(r.vmOf("orphan"))
	return err
}

// deleteAmid deletes the declared objects as soon as the VM exists.
func deleteAmid(declare func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := declare(ctx, r); err != nil {
			return err
		}
		err := r.await(ctx, "a VM", func(context.Context, *run) error {
			journal, err := r.cloud.Journal()
			if err == nil && len(sim.Histories(journal)[r.control.Namespace+"/"+standalone].ProviderIDs) == 0 {
				err = errors.New("there is none")
			}
			return err
		})
		if err != nil {
			return err
		}
		return removeAll(ctx, r)
	}
}

// givenDeployment creates a MachineDeployment with that many running Machines.
func givenDeployment(replicas int32, options ...deploymentOption) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := declareClass(ctx, r); err != nil {
			return err
		}
		if err := r.declareDeployment(ctx, replicas, options...); err != nil {
			return err
		}
		return r.awaitRest(ctx, "what is given", running(int(replicas)))
	}
}
