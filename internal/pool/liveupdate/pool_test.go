package liveupdate

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// wanting returns a deployment of three Machines whose template names class b.
func wanting(strategy Strategy, changes ...func(*v1alpha1.MachineDeployment)) *v1alpha1.MachineDeployment {
	d := fixture.Deployment(3, append([]func(*v1alpha1.MachineDeployment){fixture.OfClass("b"), fixture.Rolling("1", "0")}, changes...)...)
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyUpdateStrategy, string(strategy))
	return d
}

func TestFind(t *testing.T) {
	type sets = []*v1alpha1.MachineSet
	for name, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		current    *v1alpha1.MachineSet
		old        sets
		want       string
	}{
		"the class alone differs":      {wanting(Update), nil, sets{fixture.Set("a", 3)}, "pool-a"},
		"other sets without Machines":  {wanting(Update), fixture.Set("b", 0), sets{fixture.Set("a", 3), fixture.Set("c", 0)}, "pool-a"},
		"taken over before":            {wanting(Update), fixture.Set("b", 3), nil, "pool-b"},
		"a dry run":                    {wanting(DryRun), nil, sets{fixture.Set("a", 3)}, "pool-a"},
		"without a strategy":           {wanting(Keep), nil, sets{fixture.Set("a", 3)}, ""},
		"with nonsense for a strategy": {wanting("Perhaps"), nil, sets{fixture.Set("a", 3)}, ""},
		"paused":                       {wanting(Update, fixture.Paused), nil, sets{fixture.Set("a", 3)}, ""},
		"Recreate":                     {wanting(Update, fixture.Recreate), nil, sets{fixture.Set("a", 3)}, ""},
		"nodes in place":               {wanting(Update, fixture.InPlace("1", "0")), nil, sets{fixture.Set("a", 3)}, ""},
		"labels differ, too":           {wanting(Update, func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Labels["tier"] = "gold" }), nil, sets{fixture.Set("a", 3)}, ""},
		"a class of another kind":      {wanting(Update, func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Kind = "AWSMachineClass" }), nil, sets{fixture.Set("a", 3)}, ""},
		"a rollout is under way":       {wanting(Update), fixture.Set("b", 1), sets{fixture.Set("a", 3)}, ""},
		"two sets have Machines":       {wanting(Update), nil, sets{fixture.Set("a", 2), fixture.Set("c", 1)}, ""},
		"another set may have some":    {wanting(Update), nil, sets{fixture.Set("a", 3), fixture.Set("c", 0, fixture.Unsettled)}, ""},
		"the set is being deleted":     {wanting(Update), nil, sets{fixture.Set("a", 3, fixture.Leaving)}, ""},
		"there are no Machines":        {wanting(Update), nil, sets{fixture.Set("a", 0)}, ""},
		"there are no sets":            {wanting(Update), nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if change := Find(test.deployment, test.current, test.old, fixture.Noon); change != nil {
				got = change.Set.Name
			}
			if got != test.want {
				t.Errorf("finds %q, want %q", got, test.want)
			}
		})
	}
}

// responded simulates a driver's response about an update to class b: it changes tags, and the given properties
// need a new VM.
func responded(replacements ...string) func(*v1alpha1.Machine) {
	return func(machine *v1alpha1.Machine) {
		machine.Annotations[v1alpha1.AnnotationKeyUpdateClass] = "b"
		class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
		State{}.Queried(class, []string{"tags"}, nil, replacements).Write(machine)
	}
}

func annotated(key, value string) func(*v1alpha1.Machine) {
	return func(machine *v1alpha1.Machine) { machine.Annotations[key] = value }
}

func inPhase(phase v1alpha1.MachinePhase, providerID string) func(*v1alpha1.Machine) {
	return func(machine *v1alpha1.Machine) {
		machine.Status.CurrentStatus.Phase, machine.Spec.ProviderID = phase, providerID
	}
}

func ofClass(name string) func(*v1alpha1.Machine) {
	return func(machine *v1alpha1.Machine) { machine.Spec.Class.Name = name }
}

// TestPool_OneMachine tests what is done for a Machine before and after the set takes over the class.
func TestPool_OneMachine(t *testing.T) {
	const nothing, asks, forgets, follows, replaces = "", "asks", "forgets", "follows", "replaces"
	for name, test := range map[string]struct {
		machine       func(*v1alpha1.Machine)
		before, after string
		// holds reports whether the rollout waits for the Machine, takes whether the set takes over the class,
		// and left whether the Machine counts as not updated after that.
		holds, takes, left bool
	}{
		"not asked":             {ofClass("a"), asks, asks, true, false, true},
		"asked about another":   {annotated(v1alpha1.AnnotationKeyUpdateClass, "c"), asks, asks, true, false, true},
		"no response":           {annotated(v1alpha1.AnnotationKeyUpdateClass, "b"), nothing, nothing, true, false, true},
		"updatable":             {responded(), nothing, follows, true, true, true},
		"not updatable":         {responded("zone"), nothing, replaces, false, false, true},
		"excepted":              {annotated(v1alpha1.AnnotationKeyUpdateStrategy, ""), nothing, replaces, false, false, true},
		"allowed by itself":     {annotated(v1alpha1.AnnotationKeyUpdateStrategy, "Update"), asks, asks, true, false, true},
		"does not run":          {inPhase(v1alpha1.MachineUnknown, "vm-1"), nothing, nothing, false, false, true},
		"is being made":         {inPhase(v1alpha1.MachinePending, "vm-1"), nothing, nothing, false, false, true},
		"a VM, but no creation": {inPhase(v1alpha1.MachineCrashLoopBackOff, "vm-1"), nothing, nothing, false, false, true},
		"has no VM":             {inPhase(v1alpha1.MachineCrashLoopBackOff, ""), nothing, replaces, false, false, true},
		"has it, being updated": {func(m *v1alpha1.Machine) { ofClass("b")(m); responded()(m) }, nothing, nothing, true, true, true},
		"has it":                {ofClass("b"), nothing, nothing, true, true, false},
		"has it, asked of c":    {func(m *v1alpha1.Machine) { ofClass("b")(m); annotated(v1alpha1.AnnotationKeyUpdateClass, "c")(m) }, forgets, forgets, true, true, false},
		"has fallen back": {func(m *v1alpha1.Machine) {
			ofClass("c")(m)
			annotated(v1alpha1.AnnotationKeyClassReason, v1alpha1.CauseNoCapacity)(m)
		}, nothing, nothing, true, true, false},
		"preserved": {func(m *v1alpha1.Machine) {
			responded("zone")(m)
			fixture.PreservedUntil(fixture.Noon.Add(time.Hour))(m)
		}, nothing, nothing, false, false, false},
		"is being deleted": {func(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} }, nothing, nothing, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			does := func(change *Pool) string {
				var all []string
				for what, machines := range map[string][]*v1alpha1.Machine{asks: change.ToQuery(), forgets: change.Obsolete(), follows: change.ToUpdate(), replaces: change.ToReplace()} {
					if len(machines) > 0 {
						all = append(all, what)
					}
				}
				return strings.Join(all, " and ")
			}
			set := fixture.Set("a", 3)
			machine := fixture.Running(set, "m", func(m *v1alpha1.Machine) { ofClass("a")(m) }, test.machine)
			before := Find(wanting(Update), nil, []*v1alpha1.MachineSet{set}, fixture.Noon)
			before.Machines = []*v1alpha1.Machine{machine}
			if got := does(before); got != test.before {
				t.Errorf("before: %q, want %q", got, test.before)
			}
			if before.Holds() != test.holds || before.TakesOver() != test.takes || before.Left() != 0 {
				t.Errorf("before: holds %v, takes over %v, %d left", before.Holds(), before.TakesOver(), before.Left())
			}
			taken := set.DeepCopy()
			before.TakeOver(taken)
			after := Find(wanting(Update), taken, nil, fixture.Noon)
			after.Machines = before.Machines
			if got := does(after); got != test.after {
				t.Errorf("after: %q, want %q", got, test.after)
			}
			if after.Holds() || after.TakesOver() || (after.Left() == 1) != test.left {
				t.Errorf("after: holds %v, takes over %v, %d left", after.Holds(), after.TakesOver(), after.Left())
			}
		})
	}
}

// TestDescribe tests the texts that describe what happens to each Machine.
func TestDescribe(t *testing.T) {
	set := fixture.Set("a", 3)
	change := Find(wanting(Update), nil, []*v1alpha1.MachineSet{set}, fixture.Noon)
	var got []string
	for _, machine := range []struct {
		name string
		is   func(*v1alpha1.Machine)
	}{
		{"updatable", responded()}, {"replaceable", responded("zone", "image")}, {"unasked", ofClass("a")},
		{"asked", annotated(v1alpha1.AnnotationKeyUpdateClass, "b")},
		{"excepted", annotated(v1alpha1.AnnotationKeyUpdateStrategy, "DryRun")},
		{"excepted-not-running", func(m *v1alpha1.Machine) {
			inPhase(v1alpha1.MachineUnknown, "vm-1")(m)
			annotated(v1alpha1.AnnotationKeyUpdateStrategy, "")(m)
		}},
		{"not-running", inPhase(v1alpha1.MachineUnknown, "vm-1")}, {"without-vm", inPhase("", "")},
		{"preserved", func(m *v1alpha1.Machine) {
			responded("zone")(m)
			fixture.PreservedUntil(fixture.Noon.Add(time.Hour))(m)
		}},
		{"following", func(m *v1alpha1.Machine) { ofClass("b")(m); responded()(m) }}, {"over", ofClass("b")},
		{"deleted", func(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} }},
	} {
		change.Machines = append(change.Machines, fixture.Running(set, machine.name, ofClass("a"), machine.is))
	}
	for _, machine := range change.Active() {
		got = append(got, machine.Name+": "+change.Describe(machine))
	}
	want := []string{
		"asked: unknown: waiting for the driver",
		`excepted: replaces (its own update strategy is "DryRun")`,
		`excepted-not-running: replaces (its own update strategy is "")`,
		"following: being updated",
		"not-running: unknown: not running",
		"over: nothing",
		"preserved: nothing (preserved)",
		"replaceable: replaces (zone, image), updates (tags)",
		"unasked: unknown: waiting for the driver",
		"updatable: updates (tags)",
		"without-vm: replaces (no VM)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestPool_WaitsForAllResponses checks that the rollout waits for all responses, because a single one decides
// whether a new set is needed.
func TestPool_WaitsForAllResponses(t *testing.T) {
	set := fixture.Set("a", 2)
	change := Find(wanting(Update), nil, []*v1alpha1.MachineSet{set}, fixture.Noon)
	updatable := fixture.Running(set, "updatable", ofClass("a"), responded())
	change.Machines = []*v1alpha1.Machine{updatable, fixture.Running(set, "open", ofClass("a"), annotated(v1alpha1.AnnotationKeyUpdateClass, "b"))}
	if change.TakesOver() || !change.Holds() {
		t.Errorf("with a missing response: takes over %v, holds %v", change.TakesOver(), change.Holds())
	}
	change.Machines[1] = fixture.Running(set, "replaceable", ofClass("a"), responded("zone"))
	if !change.TakesOver() || !change.Holds() {
		t.Errorf("with both responses: takes over %v, holds %v", change.TakesOver(), change.Holds())
	}
	change.Machines = change.Machines[1:]
	if change.TakesOver() || change.Holds() {
		t.Errorf("without updatable machines: takes over %v, holds %v", change.TakesOver(), change.Holds())
	}
}

// TestPool_DryRunChangesNothing checks that a dry run changes nothing, even if it is requested after the set took
// over the class.
func TestPool_DryRunChangesNothing(t *testing.T) {
	for class, holds := range map[string]bool{"a": true, "b": false} {
		set := fixture.Set(class, 2)
		current, old := set, []*v1alpha1.MachineSet(nil)
		if class == "a" {
			current, old = nil, []*v1alpha1.MachineSet{set}
		}
		change := Find(wanting(DryRun), current, old, fixture.Noon)
		change.Machines = []*v1alpha1.Machine{fixture.Running(set, "updatable", ofClass("a"), responded()), fixture.Running(set, "replaceable", ofClass("a"), responded("zone"))}
		if n := len(change.ToUpdate()) + len(change.ToReplace()); n > 0 || change.TakesOver() || change.Holds() != holds || change.DryRun() != holds {
			t.Errorf("set of class %s: %d machines change, takes over %v, holds %v, dry run %v", class, n, change.TakesOver(), change.Holds(), change.DryRun())
		}
	}
}

// TestPool_MachinesToReplace checks that Machines without Pods are replaced first.
func TestPool_MachinesToReplace(t *testing.T) {
	set := fixture.Set("b", 4)
	change := Find(wanting(Update), set, nil, fixture.Noon)
	for _, machine := range []struct {
		name string
		is   func(*v1alpha1.Machine)
	}{
		{"older", func(m *v1alpha1.Machine) { m.CreationTimestamp = metav1.NewTime(fixture.Noon.Add(-2 * time.Hour)) }},
		{"younger", func(*v1alpha1.Machine) {}},
		{"in-excess", func(m *v1alpha1.Machine) { m.Spec = *reserve.Marked(&m.Spec, reserve.NoSchedule) }},
		{"without-vm", inPhase(v1alpha1.MachineCrashLoopBackOff, "")},
	} {
		change.Machines = append(change.Machines, fixture.Running(set, machine.name, ofClass("a"), responded("zone"), machine.is))
	}
	var got []string
	for _, machine := range change.ToReplace() {
		got = append(got, machine.Name)
	}
	if diff := cmp.Diff([]string{"without-vm", "in-excess", "older", "younger"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestFollow checks that a Machine gets the class and the class choices of its set.
func TestFollow(t *testing.T) {
	set := fixture.Set("b", 1)
	change := Find(wanting(Update), set, nil, fixture.Noon)
	machine := fixture.Running(set, "m", ofClass("a"), annotated(v1alpha1.AnnotationKeyClassChoices, "a,c"))
	change.Follow(machine)
	if choices, has := machine.Annotations[v1alpha1.AnnotationKeyClassChoices]; has || machine.Spec.Class.Name != "b" {
		t.Errorf("it has the class %s and the choices %q", machine.Spec.Class.Name, choices)
	}
}

// TestNext checks that replacements stay within the limits, and that Machines that do not run are replaced
// first.
func TestNext(t *testing.T) {
	for name, test := range map[string]struct {
		replicas, available int32
		desired             int32
		surge, unavailable  int32
		idle                bool // one of the two machines to replace does not run
		grow                int32
		leaving             string
	}{
		"one more first":                  {3, 3, 3, 1, 0, false, 4, ""},
		"it is not available yet":         {4, 3, 3, 1, 0, false, 4, ""},
		"it is":                           {4, 4, 3, 1, 0, false, 3, "m1"},
		"as many as the surge allows":     {3, 3, 3, 5, 0, false, 5, ""},
		"they are all there":              {5, 5, 3, 5, 0, false, 3, "m1 m2"},
		"fewer first":                     {3, 3, 3, 0, 1, false, 2, "m1"},
		"one that does not run goes":      {3, 2, 3, 1, 0, true, 2, "m2"},
		"neither more nor fewer possible": {3, 3, 3, 0, 0, false, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			set := fixture.Set("b", test.replicas, fixture.Reports(test.replicas, test.available))
			change := Find(wanting(Update), set, nil, fixture.Noon)
			for _, name := range []string{"m1", "m2"} {
				machine := fixture.Running(set, name, ofClass("a"), responded("zone"))
				if name == "m2" && test.idle {
					inPhase(v1alpha1.MachineCrashLoopBackOff, "")(machine)
				}
				change.Machines = append(change.Machines, machine)
			}
			step := change.Next(test.desired, test.surge, test.unavailable)
			var leaving []string
			for _, machine := range step.Leaving {
				leaving = append(leaving, machine.Name)
			}
			if got := strings.Join(leaving, " "); step.Replicas != test.grow || got != test.leaving {
				t.Errorf("%d replicas, %q deleted; want %d, %q", step.Replicas, got, test.grow, test.leaving)
			}
		})
	}
}
