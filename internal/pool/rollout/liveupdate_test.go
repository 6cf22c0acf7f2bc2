package rollout

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// updatesClass makes a deployment update VMs to its class, which is b.
func updatesClass(d *v1alpha1.MachineDeployment) {
	fixture.OfClass("b")(d)
	annotated(v1alpha1.AnnotationKeyUpdateStrategy, string(liveupdate.Update))(d)
}

// responded returns a Machine of class a whose driver reports that an update to class b changes tags, and that the
// given properties need a new VM.
func responded(name string, replacements ...string) *v1alpha1.Machine {
	class := &v1alpha1.MachineClass{}
	class.Name = "b"
	return fixture.Running(fixture.Set("a", 1), name, func(machine *v1alpha1.Machine) {
		machine.Spec.Class.Name = "a"
		machine.Annotations[v1alpha1.AnnotationKeyUpdateClass] = "b"
		liveupdate.State{}.Queried(class, []string{"tags"}, nil, replacements).Write(machine)
	})
}

// withLiveUpdate adds the live update of Machines to facts.
func withLiveUpdate(f Facts, machines ...*v1alpha1.Machine) Facts {
	f.LiveUpdate = liveupdate.Find(f.Deployment, f.Current, f.Old, f.Now)
	f.LiveUpdate.Machines = machines
	return f
}

// TestPlan_LiveUpdate checks what is planned while the VMs of a deployment are updated to another class. The set with
// the Machines takes over the class only after all requests for other classes were withdrawn, and after a set that
// already has the class was deleted. Machines that cannot be updated are then replaced within the limits.
func TestPlan_LiveUpdate(t *testing.T) {
	t.Parallel()
	ofClassB := func(request string) func(*v1alpha1.Machine) {
		return func(machine *v1alpha1.Machine) {
			machine.Spec.Class.Name = "b"
			machine.Annotations[v1alpha1.AnnotationKeyUpdateClass] = request
		}
	}
	updatable, replaceable, retired := responded("m-1"), responded("m-2", "zone"), responded("m-3", "zone")
	deletion.Prefer(retired)
	old, current, empty := fixture.Set("a", 2), fixture.Set("b", 2), fixture.Set("b", 0)
	done, aboutC := fixture.Running(current, "m-4", ofClassB("")), fixture.Running(old, "m-5", ofClassB("c"))
	unsettled, growing := fixture.Set("b", 2, fixture.Unsettled), fixture.Set("b", 3, fixture.Reports(3, 2))
	type machines = []*v1alpha1.Machine
	for name, test := range map[string]struct {
		unavailable string
		sets        sets
		machines    machines
		want        string
	}{
		"all drivers responded":            {"0", sets{old}, machines{updatable, replaceable}, "take class pool-a"},
		"one was asked about another":      {"0", sets{old}, machines{updatable, aboutC}, "forget about update pool-a"},
		"an empty set has the class":       {"0", sets{old, empty}, machines{updatable, replaceable}, "prune pool-b"},
		"one is updatable":                 {"0", sets{current}, machines{updatable, replaceable}, "follow class pool-b"},
		"one must be replaced, a surge":    {"0", sets{current}, machines{done, replaceable}, "pool-b to 3"},
		"one must be replaced, no surge":   {"1", sets{current}, machines{done, replaceable}, "retire pool-b"},
		"it will be deleted first":         {"1", sets{current}, machines{done, retired}, "pool-b to 1"},
		"the new one is not available yet": {"0", sets{growing}, machines{done, replaceable, done}, ""},
		"the set has not observed it":      {"0", sets{unsettled}, machines{done, replaceable}, ""},
		"a machine is not shown yet":       {"0", sets{current}, machines{replaceable}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := fixture.Deployment(2, fixture.Rolling("1", test.unavailable), updatesClass)
			f := withLiveUpdate(NewFacts(d, test.sets, fixture.Noon), test.machines...)
			if diff := cmp.Diff(test.want, strings.Join(brief(t, Plan(New(f))), ", ")); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}
