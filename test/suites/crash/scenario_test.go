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

// scenario is what an operator does, and what is to come of it.
type scenario struct {
	name string
	// where is the set-up in which it is played: together, where control and target are
	// one cluster, if it is empty. also are further ones, in which it takes another way.
	also  []setup
	where setup
	// clusterAPI has the manager serve Cluster API, and not MCM's kinds.
	clusterAPI bool
	// classes has the history keep MachineClasses, too.
	classes bool
	// plugIn has the driver be a process of its own, and says which of the two dies. Empty: it is a part
	// of the manager.
	plugIn mortal
	// initialize has VMs need a step after their creation.
	initialize bool
	// firstNeverJoins keeps the first VM's node from joining.
	firstNeverJoins bool
	// orphanPeriod is the time between two looks for orphans. Zero: nobody looks.
	orphanPeriod time.Duration
	// healthTimeout is how long a node may be unhealthy. Zero is the manager's default.
	healthTimeout time.Duration
	// drainTimeout is after which time a drain is forced. Zero is the manager's default, and that none
	// may be.
	drainTimeout time.Duration
	// outageTimeout is how long an API server has to be away for an outage. Zero is the manager's
	// default.
	outageTimeout time.Duration
	// overshoot is when sets are frozen. Nil is the manager's default.
	overshoot *machineset.Overshoot
	// metrics has managers serve what they use.
	metrics bool
	// secondManager has a second manager work beside the first, as if both led.
	secondManager bool
	// fault is what the API servers do wrong; nil is nothing.
	fault *serverfault.Fault
	// given prepares the world; act is what the points are recorded of.
	given, act func(context.Context, *run) error
	// want finds what is not as it shall be in the end.
	want func(context.Context, *run) error
	// waitTimeout is how long a manager may take to reach what is declared. Zero is what suits most.
	waitTimeout time.Duration
	// mayDelete reports whether a pod may be deleted, not evicted. Nil: none may.
	mayDelete func(pod string) bool
	// onDeath looks at the world between the death of a manager and the next one. Nil: nobody does.
	onDeath func(context.Context, *run) error
	// always is what has to hold from act to the end; nil if only the end counts.
	always rule
}

// everywhere is the scenarios, each in all its set-ups.
func everywhere() []scenario {
	var all []scenario
	for _, s := range slices.Concat(lives, sizes, rollouts, clusterAPI, locations, forced, preservations, updates, troubledUpdates, usersAmidUpdates, reserves, scarcities, zoneOutages, legacyClasses, plugIns, classUpdates, classFollowers) {
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

// called finds a scenario by its name.
func called(name string) scenario {
	all := everywhere()
	return all[slices.IndexFunc(all, func(s scenario) bool { return s.name == name })]
}

// standalone is the name of a Machine that no set has made.
const standalone = "alone"

// lives are the scenarios of single Machines.
var lives = []scenario{
	{
		name: "create", also: []setup{apart, noTarget},
		given:  declareClass,
		act:    func(ctx context.Context, r *run) error { return r.declareDeployment(ctx, 1) },
		want:   running(1),
		always: most(1),
	},
	{
		name:       "create with initialise",
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
		always:          most(2), // the failed one, and its successor
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

// declareAndFail declares a deployment of one Machine, and ends the time that it has to join
// when its VM exists. Its successor has all the time that it takes.
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

// givenVM has the VM of a Machine exist that does not: its declaration was lost, and is
// made again.
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

// addOrphan makes a VM whose Machine does not exist any more.
func addOrphan(_ context.Context, r *run) error {
	r.gate.names.keep("orphan")
	_, err := r.cloud.Add(r.vmOf("orphan"))
	return err
}

// deleteAmid takes what it declares away as soon as its VM exists.
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

// givenDeployment has so many Machines run.
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
