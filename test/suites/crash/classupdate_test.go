package crash

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// liveUpdates contains the scenarios in which existing VMs are updated after a change of their class.
var liveUpdates = []scenario{
	{
		name: "update of a VM", also: []setup{noTarget},
		given:  givenDeployment(1),
		act:    editTags(liveupdate.Update, "blue"),
		want:   tagged("blue", liveupdate.None),
		always: most(1),
	},
	{
		name:   "dry run, then update of a VM",
		given:  givenDeployment(1),
		act:    inTurn(editTags(liveupdate.DryRun, "blue"), awaitEffect(liveupdate.Updates), editTags(liveupdate.Update, "blue")),
		want:   tagged("blue", liveupdate.None),
		always: most(1),
	},
	{
		name:   "update of a VM that is taken back",
		given:  givenDeployment(1),
		act:    inTurn(editTags(liveupdate.Update, "red"), awaitEffect(liveupdate.None), editTags(liveupdate.Update, "blue"), editTags(liveupdate.Update, "red")),
		want:   tagged("red", liveupdate.None),
		always: most(1),
	},
	{
		name:   "deletion amid an update of a VM",
		given:  givenDeployment(1),
		act:    inTurn(editTags(liveupdate.Update, "blue"), removeAll),
		want:   nothing,
		always: most(1),
	},
}

// editTags changes the tags that the class gives to VMs.
func editTags(strategy liveupdate.Strategy, team string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		return r.merge(ctx, &v1alpha1.MachineClass{ObjectMeta: r.poolMeta()}, fmt.Sprintf(
			`{"metadata":{"annotations":{%q:%q}},"providerSpec":{"tags":{"team":%q}}}`, v1alpha1.AnnotationKeyUpdateStrategy, strategy, team))
	}
}

// awaitEffect waits until all Machines report the effect of an update.
func awaitEffect(want liveupdate.Effect) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		return r.await(ctx, "the Machines to report the effect of an update", effects(want))
	}
}

func effects(want liveupdate.Effect) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		class := &v1alpha1.MachineClass{}
		if err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: pool}, class); err != nil {
			return err
		}
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		for i := range machines.Items {
			if got := liveupdate.Read(machines.Items[i].Annotations).Effect(class); got != want {
				return fmt.Errorf("machine %s reports that an update does %q, not %q", machines.Items[i].Name, got, want)
			}
		}
		return nil
	}
}

// tagged checks that the Machine runs, with the tags of its class.
func tagged(team string, effect liveupdate.Effect) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := running(1)(ctx, r); err != nil {
			return err
		}
		if err := vmsTagged(r, team); err != nil {
			return err
		}
		return effects(effect)(ctx, r)
	}
}
