package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// classFollowers contains the scenarios in which Machines switch to the class of their MachineDeployment, and are
// kept if their VMs can be updated.
var classFollowers = []scenario{
	{
		name:   "another class that all follow",
		given:  givenClassToFollow,
		act:    follow,
		want:   allFollowed,
		always: both(both(most(2), least(2)), noneReplaced),
	},
	{
		name:   "another class that one cannot follow",
		given:  inTurn(givenClassToFollow, exceptOne),
		act:    follow,
		want:   allFollowed,
		always: both(most(3), least(2)),
	},
	{
		name:   "another class that is taken back",
		given:  givenClassToFollow,
		act:    inTurn(follow, awaitThat("a Machine of the new class", anyOf(newClass)), func(ctx context.Context, r *run) error { return r.rollTo(ctx, pool) }),
		want:   allOf(2, pool),
		always: both(both(most(2), least(2)), noneReplaced),
	},
}

// givenClassToFollow creates two running Machines, and another class with other tags and the pool of the first
// one.
func givenClassToFollow(ctx context.Context, r *run) error {
	if err := givenBothClasses(2, rolling(1, 0))(ctx, r); err != nil {
		return err
	}
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: r.control.Namespace, Name: newClass}}
	return r.merge(ctx, class, fmt.Sprintf(`{"providerSpec":{"pool":"%s/%s","tags":{"team":"blue"}}}`, r.control.Namespace, pool))
}

// follow sets that class in the template.
func follow(ctx context.Context, r *run) error {
	return r.patchDeployment(ctx, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"template":{"spec":{"class":{"name":%q}}}}}`,
		v1alpha1.AnnotationKeyUpdateStrategy, liveupdate.Update, newClass))
}

// exceptOne excludes the first Machine from updates.
func exceptOne(ctx context.Context, r *run) error {
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	first := slices.MinFunc(machines.Items, func(a, b v1alpha1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return r.merge(ctx, &first, fmt.Sprintf(`{"metadata":{"annotations":{%q:""}}}`, v1alpha1.AnnotationKeyUpdateStrategy))
}

// allFollowed checks that all Machines and VMs match the other class, and that no update is requested.
func allFollowed(ctx context.Context, r *run) error {
	if err := allOf(2, newClass)(ctx, r); err != nil {
		return err
	}
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	for i := range machines.Items {
		if asked := liveupdate.RequestedClass(&machines.Items[i]); asked != "" {
			return fmt.Errorf("machine %s is still asked about class %s", machines.Items[i].Name, asked)
		}
	}
	return errors.Join(vmsTagged(r, "blue"), oneSetOf(ctx, r, newClass))
}

// oneSetOf checks that there is exactly one MachineSet, of that class.
func oneSetOf(ctx context.Context, r *run, class string) error {
	sets := &v1alpha1.MachineSetList{}
	if err := r.list(ctx, sets); err != nil {
		return err
	}
	if len(sets.Items) != 1 || sets.Items[0].Spec.Template.Spec.Class.Name != class {
		return fmt.Errorf("there are %d sets, of which one was to be of class %s", len(sets.Items), class)
	}
	return nil
}

// vmsTagged checks that all VMs have only that tag.
func vmsTagged(r *run, team string) error {
	vms, err := r.cloud.VMs()
	if err != nil {
		return err
	}
	for _, vm := range vms {
		if !maps.Equal(vm.Tags, map[string]string{"team": team}) {
			return fmt.Errorf("VM %s has the tags %v", vm.ProviderID, vm.Tags)
		}
	}
	return nil
}
