package liveupdate

import (
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestFind_IgnoresSetsThatDiffer(t *testing.T) {
	legacyKind := func(set *v1alpha1.MachineSet) { set.Spec.Template.Spec.Class.Kind = "AWSMachineClass" }
	if p := Find(wanting(Update), nil, []*v1alpha1.MachineSet{fixture.Set("a", 3, legacyKind)}, fixture.Noon); p != nil {
		t.Error("a live update from another kind of class")
	}
	if p := Find(wanting(Update), fixture.Set("b", 0), nil, fixture.Noon); p != nil {
		t.Error("a live update of a set without Machines")
	}
}

func TestPool_NilHasNoMachines(t *testing.T) {
	var p *Pool
	if n := len(p.Active()) + len(p.ToQuery()) + len(p.Obsolete()) + len(p.ToUpdate()) + len(p.ToReplace()) + int(p.Left()); n != 0 {
		t.Errorf("%d machines", n)
	}
	if p.TakesOver() || p.Holds() || p.DryRun() {
		t.Errorf("takes over %t, holds %t, dry run %t", p.TakesOver(), p.Holds(), p.DryRun())
	}
}

// one returns the live update of a set with one Machine, before the set takes over the class.
func one(strategy Strategy, changes ...func(*v1alpha1.Machine)) (*Pool, *v1alpha1.Machine) {
	set := fixture.Set("a", 1)
	p := Find(wanting(strategy), nil, []*v1alpha1.MachineSet{set}, fixture.Noon)
	m := fixture.Running(set, "m", append([]func(*v1alpha1.Machine){ofClass("a")}, changes...)...)
	p.Machines = []*v1alpha1.Machine{m}
	return p, m
}

func TestPool_UpdateIsNotDryRun(t *testing.T) {
	if p, _ := one(Update, responded()); p.DryRun() {
		t.Error("an update is a dry run")
	}
	if p, _ := one(DryRun, responded()); !p.DryRun() {
		t.Error("a dry run is an update")
	}
}

// A Machine without a provider ID may have a VM until its creation is known to have failed.
func TestPool_MachineWithoutProviderIDWaits(t *testing.T) {
	for phase, want := range map[v1alpha1.MachinePhase]string{
		"": "replaces (no VM)", v1alpha1.MachineCrashLoopBackOff: "replaces (no VM)",
		v1alpha1.MachinePending: "unknown: not running", v1alpha1.MachineUnknown: "unknown: not running",
	} {
		p, m := one(Update, inPhase(phase, ""))
		if got := p.Describe(m); got != want {
			t.Errorf("phase %q: %q, want %q", phase, got, want)
		}
	}
}

func TestPool_PreservedMachineIsUpdated(t *testing.T) {
	p, m := one(Update, responded(), fixture.PreservedUntil(fixture.Noon.Add(time.Hour)))
	if got, want := p.Describe(m), "updates (tags)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPool_SummaryCountsStages(t *testing.T) {
	p, _ := one(Update, responded())
	if got, want := p.Summary(), `1 machine for class "b": 1 to be updated`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	preserved := fixture.PreservedUntil(fixture.Noon.Add(time.Hour))
	for name, change := range map[string]func(*v1alpha1.Machine){
		"queried": annotated(v1alpha1.AnnotationKeyUpdateClass, "b"), "unqueried": ofClass("a"), "over": ofClass("b"),
		"replaceable": responded("zone"), "preserved": func(m *v1alpha1.Machine) { responded("zone")(m); preserved(m) },
		"idle": inPhase(v1alpha1.MachineUnknown, "vm-1"), "updating": func(m *v1alpha1.Machine) { ofClass("b")(m); responded()(m) },
	} {
		p.Machines = append(p.Machines, fixture.Running(p.Set, name, ofClass("a"), change))
	}
	want := `8 machines for class "b": 1 done, 1 being updated, 1 to be updated, 1 to be replaced, 1 preserved without an update, 1 not running, 2 waiting for the driver`
	if got := p.Summary(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPool_FollowTakesOverFallbackClasses(t *testing.T) {
	p, m := one(Update, responded())
	p.Set.Spec.Template.Spec.Class.Name = "b"
	p.Set.Annotations[v1alpha1.AnnotationKeyFallbackClasses] = "c"
	p.Follow(m)
	if got := m.Annotations[v1alpha1.AnnotationKeyClassChoices]; got != "b,c" || m.Spec.Class.Name != "b" {
		t.Errorf("the machine has the class %s and the choices %q", m.Spec.Class.Name, got)
	}
}
