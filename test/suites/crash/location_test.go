package crash

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// The accounts that the class's Secret selects.
const (
	firstAccount  = "default"
	wrongAccount  = "wrong"
	secondAccount = "second"
)

// locations contains the scenarios in which the driver's location changes while a VM exists, or may exist.
var locations = []scenario{
	{
		name:   "edited class amid creation",
		given:  declareClass,
		act:    editClassAmid(declareStandalone),
		want:   running(1),
		always: both(most(1), located),
	},
	{
		name: "edited class, then deletion", also: []setup{apart},
		given:  givenDeployment(1),
		act:    inTurn(editClass, removeAll),
		want:   nothing,
		always: both(most(1), located),
	},
	{
		name:   "changed Secret amid creation",
		given:  declareClass,
		act:    misleadAmid(declareStandalone),
		want:   running(1),
		always: both(most(1), located),
	},
	{
		name: "changed Secret, then deletion", also: []setup{apart},
		given:  givenDeployment(1),
		act:    inTurn(misleadDeletion, leadTo(firstAccount), removeAll),
		want:   nothing,
		always: both(most(1), located),
	},
	{
		name: "moved infrastructure", also: []setup{noTarget},
		given:  givenDeployment(1),
		act:    inTurn(misleadDeletion, move, leadTo(secondAccount), removeAll),
		want:   nothing,
		always: both(most(1), located),
	},
	{
		name: "capi edited class amid creation", clusterAPI: true, where: noTarget,
		given:  declareClass,
		act:    editClassAmid(declareInfrastructure),
		want:   provisioned,
		always: both(orderly, located),
	},
	{
		name: "capi edited class, then deletion", clusterAPI: true, where: noTarget,
		given:  givenInfrastructure,
		act:    inTurn(editClass, removeAll),
		want:   nothing,
		always: both(orderly, located),
	},
	{
		name: "capi changed Secret amid creation", clusterAPI: true, where: noTarget,
		given:  declareClass,
		act:    misleadAmid(declareInfrastructure),
		want:   provisioned,
		always: both(orderly, located),
	},
	{
		name: "capi changed Secret, then deletion", clusterAPI: true, where: noTarget,
		given:  givenInfrastructure,
		act:    inTurn(misleadDeletion, leadTo(firstAccount), removeAll),
		want:   nothing,
		always: both(orderly, located),
	},
	{
		name: "capi moved infrastructure", clusterAPI: true, where: noTarget,
		given:  givenInfrastructure,
		act:    inTurn(misleadDeletion, move, leadTo(secondAccount), removeAll),
		want:   nothing,
		always: both(orderly, located),
	},
}

// inTurn performs several operations one after another.
func inTurn(acts ...func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		for _, act := range acts {
			if err := act(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// editClass changes the driver's pool, and the tags of VMs.
func editClass(ctx context.Context, r *run) error {
	return r.merge(ctx, &v1alpha1.MachineClass{ObjectMeta: r.poolMeta()}, `{"providerSpec":{"pool":"other","tags":{"edited":"yes"}}}`)
}

// leadTo changes the driver's account. The manager does not watch the Secrets of Cluster API, so the
// MillwrightMachine is touched, too.
func leadTo(account string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		secret := &corev1.Secret{ObjectMeta: r.poolMeta()}
		if err := r.merge(ctx, secret, fmt.Sprintf(`{"stringData":{"account":%q}}`, account)); err != nil {
			return err
		}
		touched := fmt.Sprintf(`{"metadata":{"annotations":{"touched":%q}}}`, account)
		return client.IgnoreNotFound(r.merge(ctx, &infrav1.MillwrightMachine{ObjectMeta: r.aloneMeta()}, touched))
	}
}

func (r *run) aloneMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: r.control.Namespace, Name: standalone}
}

// move makes the VMs appear in another account.
func move(_ context.Context, r *run) error { return r.cloud.Move(firstAccount, secondAccount) }

// editClassAmid edits the class as soon as the location of the creation is recorded.
func editClassAmid(declare func(context.Context, *run) error) func(context.Context, *run) error {
	return inTurn(declare, awaitThat("a location", begun), editClass)
}

// misleadAmid changes the driver's location as soon as the location of the creation is recorded, and reverts it
// when the manager cannot proceed.
func misleadAmid(declare func(context.Context, *run) error) func(context.Context, *run) error {
	return inTurn(declare, awaitThat("a location", begun), leadTo(wrongAccount), awaitThat("an ID or a failure", settled), leadTo(firstAccount))
}

// misleadDeletion changes the driver's location, and waits until a deletion has failed because of that.
func misleadDeletion(ctx context.Context, r *run) error {
	return inTurn(leadTo(wrongAccount), removeMachines, awaitThat("a deletion that failed", withheld))(ctx, r)
}

func awaitThat(what string, check func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error { return r.await(ctx, what, check) }
}

// begun checks that the location of the creation of a VM is recorded.
func begun(ctx context.Context, r *run) error {
	return r.only(ctx, func(object client.Object, _ printed) error {
		if driver.Location(object) == "" {
			return errors.New("there is no location")
		}
		return nil
	})
}

// settled checks that the only Machine has a provider ID, or that its creation failed.
func settled(ctx context.Context, r *run) error {
	return r.only(ctx, func(_ client.Object, is printed) error {
		if is.id == "" && !is.creationFailed {
			return errors.New("neither")
		}
		return nil
	})
}

// withheld checks that the deletion of the only Machine failed. The deletion may also have completed together
// with that of its VM, before the manager observed the changed Secret.
func withheld(ctx context.Context, r *run) error {
	if vms, err := r.cloud.VMs(); err != nil || len(vms) == 0 {
		return err
	}
	return r.only(ctx, func(_ client.Object, is printed) error {
		if !is.deletionFailed {
			return errors.New("it has not failed")
		}
		return nil
	})
}

// printed returns what a Machine or a MillwrightMachine reports about its VM.
type printed struct {
	id                             string
	creationFailed, deletionFailed bool
}

// only checks the single Machine or MillwrightMachine.
func (r *run) only(ctx context.Context, check func(client.Object, printed) error) error {
	if r.scenario.clusterAPI {
		infra := &infrav1.MillwrightMachine{}
		if err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: standalone}, infra); err != nil {
			return err
		}
		is := printed{id: infra.Spec.ProviderID}
		if ready := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionReady); ready != nil {
			is.creationFailed = ready.Reason == infrav1.ReasonCreationFailed
			is.deletionFailed = ready.Reason == infrav1.ReasonDeletionFailed
		}
		return check(infra, is)
	}
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	if got := len(machines.Items); got != 1 {
		return fmt.Errorf("there are %d Machines, not one", got)
	}
	machine := &machines.Items[0]
	last := machine.Status.LastOperation
	failed := last.State == v1alpha1.MachineStateFailed
	return check(machine, printed{
		id:             machine.Spec.ProviderID,
		creationFailed: failed && last.Type == v1alpha1.MachineOperationCreate,
		deletionFailed: failed && last.Type == v1alpha1.MachineOperationDelete,
	})
}

// located requires that the location of a VM is recorded if its provider ID is known.
func located(_ *run, _, is moment) error {
	for name, machine := range is.machines {
		if machine.Spec.ProviderID != "" && driver.Location(machine) == "" {
			return fmt.Errorf("%w: %s", errUnlocated, name)
		}
	}
	for name, infra := range is.infrastructure {
		if infra.Spec.ProviderID != "" && driver.Location(infra) == "" {
			return fmt.Errorf("%w: %s", errUnlocated, name)
		}
	}
	return nil
}
