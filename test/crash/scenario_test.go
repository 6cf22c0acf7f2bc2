package crash

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
)

// scenario is what an operator does, and what is to come of it.
type scenario struct {
	name string
	// initialize has VMs need a step after their creation.
	initialize bool
	// firstNeverJoins keeps the first VM's node from joining.
	firstNeverJoins bool
	// orphanPeriod is the time between two looks for orphans. Zero: nobody looks.
	orphanPeriod time.Duration
	// creationTimeout of Machines. Zero is the manager's.
	creationTimeout time.Duration
	// given prepares the world; act is what the points are recorded of.
	given, act func(context.Context, *run) error
	// want finds what is not as it shall be in the end.
	want func(context.Context, *run) error
}

// standalone is the name of a Machine that no set has made.
const standalone = "alone"

var scenarios = []scenario{
	{
		name:  "create",
		given: declareClass,
		act:   func(ctx context.Context, r *run) error { return r.declareDeployment(ctx, 1) },
		want:  running(1),
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
		creationTimeout: 1500 * time.Millisecond,
		given:           declareClass,
		act:             func(ctx context.Context, r *run) error { return r.declareDeployment(ctx, 1) },
		want:            running(1),
	},
	{
		name:  "scale down",
		given: givenDeployment(2),
		act:   func(ctx context.Context, r *run) error { return r.scale(ctx, 1) },
		want:  running(1),
	},
	{
		name:  "delete",
		given: givenDeployment(1),
		act:   removeAll,
		want:  nothing,
	},
	{
		name:  "delete with drain",
		given: givenPod,
		act:   removeAll,
		want:  nothing,
	},
	{
		name:  "delete amid creation",
		given: declareClass,
		act:   deleteAmidCreation,
		want:  nothing,
	},
	{
		name:         "orphan",
		orphanPeriod: 300 * time.Millisecond,
		given:        declareClass,
		act:          addOrphan,
		want:         running(0),
	},
}

func declareStandalone(ctx context.Context, r *run) error {
	return r.create(ctx, &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: standalone}, Spec: r.scenario.template()})
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
	return sim.VM{Namespace: r.cluster.Namespace, Machine: machine, Pool: r.cluster.Namespace + "/" + pool}
}

// addOrphan makes a VM whose Machine does not exist any more.
func addOrphan(_ context.Context, r *run) error {
	r.gate.names.keep("orphan")
	_, err := r.cloud.Add(r.vmOf("orphan"))
	return err
}

// deleteAmidCreation takes a Machine away as soon as its VM exists.
func deleteAmidCreation(ctx context.Context, r *run) error {
	if err := declareStandalone(ctx, r); err != nil {
		return err
	}
	err := r.await(ctx, "a VM", func(context.Context, *run) error {
		journal, err := r.cloud.Journal()
		if err == nil && len(sim.Histories(journal)[r.cluster.Namespace+"/"+standalone].ProviderIDs) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	if err != nil {
		return err
	}
	return removeAll(ctx, r)
}

// givenDeployment has so many Machines run.
func givenDeployment(replicas int32) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := declareClass(ctx, r); err != nil {
			return err
		}
		if err := r.declareDeployment(ctx, replicas); err != nil {
			return err
		}
		return r.await(ctx, "what is given", running(int(replicas)))
	}
}
