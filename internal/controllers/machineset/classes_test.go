package machineset

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func classIn(name, zone string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: fixture.Namespace, Name: name, UID: types.UID(name), Generation: 1},
		NodeTemplate: &v1alpha1.NodeTemplate{Zone: zone},
	}
}

func fallingBackTo(list string, skew string) func(*v1alpha1.MachineSet) {
	return func(set *v1alpha1.MachineSet) {
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyFallbackClasses, list)
		if skew != "" {
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyZoneMaxSkew, skew)
		}
	}
}

// TestClasses_OfNewMachines checks that classes without capacity are skipped, and that zones are filled evenly if
// the set requests it.
func TestClasses_OfNewMachines(t *testing.T) {
	for name, test := range map[string]struct {
		skew, out string
		want      map[string]int
		message   string
	}{
		"all have capacity":            {"", "", map[string]int{fixture.Class: 4}, "Created 4 machines"},
		"the first is exhausted":       {"", fixture.Class, map[string]int{"b": 4}, "with class b because class " + fixture.Class + " has no capacity"},
		"spread":                       {"1", "", map[string]int{fixture.Class: 2, "b": 2}, "because its zone has fewer machines than that of class " + fixture.Class},
		"spread, and one is exhausted": {"1", "b", map[string]int{fixture.Class: 4}, "Created 4 machines"},
	} {
		t.Run(name, func(t *testing.T) {
			other := classIn("elsewhere", "c")
			other.Provider = "of another"
			s := newServer(newSet(4, fallingBackTo("missing,elsewhere,b", test.skew)), classIn(fixture.Class, "a"), classIn("b", "b"), other)
			c := s.newController()
			memory := capacity.New(capacity.Options{Clock: s.clock})
			c.Capacity = memory
			if test.out != "" {
				asked := memory.For(&v1alpha1.Machine{}, classIn(test.out, ""), nil)
				asked.Asking()
				asked.Asked(codes.ResourceExhausted)
			}
			pass(t, c)
			got := map[string]int{}
			for _, machine := range s.all() {
				got[machine.Spec.Class.Name]++
				if machine.Annotations[v1alpha1.AnnotationKeyClassChoices] != fixture.Class+",missing,elsewhere,b" {
					t.Errorf("class choices %q", machine.Annotations[v1alpha1.AnnotationKeyClassChoices])
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("machines by class (-want +got):\n%s", diff)
			}
			if events := s.events.lines; !slices.ContainsFunc(events, func(event string) bool { return strings.Contains(event, test.message) }) {
				t.Errorf("events do not contain %q: %q", test.message, events)
			}
		})
	}
}

// TestClasses_ListIsPropagated checks that changes to the list of classes are applied to Machines that have no VM, in
// one write each.
func TestClasses_ListIsPropagated(t *testing.T) {
	made := func(m *v1alpha1.Machine) { m.Spec.ProviderID = "sim:///a" }
	unmade := func(m *v1alpha1.Machine) { m.Spec.ProviderID = "" }
	s := newServer(newSet(2, fallingBackTo("b", "")), machine("a", made), machine("b", unmade))
	c := s.newController()
	pass(t, c)
	s.catchUp()
	pass(t, c)
	if n := s.count("patch Machine "); n != 1 {
		t.Errorf("%d writes: %q", n, s.writes)
	}
	if got := s.all()["b"].Annotations[v1alpha1.AnnotationKeyClassChoices]; got != fixture.Class+",b" {
		t.Errorf("class choices %q", got)
	}
}

// TestClasses_OneMachineProbesFirstChoice checks that one Machine uses the first choice when it may have capacity again.
func TestClasses_OneMachineProbesFirstChoice(t *testing.T) {
	s := newServer(newSet(3, fallingBackTo("b", "")), classIn(fixture.Class, "a"), classIn("b", "b"))
	c := s.newController()
	memory := capacity.New(capacity.Options{Clock: s.clock})
	c.Capacity = memory
	asked := memory.For(&v1alpha1.Machine{}, classIn(fixture.Class, ""), nil)
	asked.Asking()
	asked.Asked(codes.ResourceExhausted)
	s.clock.SetTime(s.clock.Now().Add(capacity.DefaultMemory + time.Second))
	pass(t, c)
	tries := 0
	for _, machine := range s.all() {
		if machine.Spec.Class.Name == fixture.Class {
			tries++
		}
	}
	if tries != 1 {
		t.Errorf("%d machines use the first choice, want 1", tries)
	}
}

// TestClasses_AvoidZoneWithOutage checks that if all Machines of a zone are unhealthy, they are replaced in
// another zone if the policy requests that.
func TestClasses_AvoidZoneWithOutage(t *testing.T) {
	failed := func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed }
	unknown := func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = v1alpha1.MachineUnknown }
	for policy, want := range map[v1alpha1.ZoneOutagePolicy]string{"": fixture.Class, v1alpha1.ZoneOutageWait: fixture.Class, v1alpha1.ZoneOutageReplace: "b"} {
		t.Run(string(policy), func(t *testing.T) {
			set := newSet(2, fallingBackTo("b", ""), func(set *v1alpha1.MachineSet) {
				metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyReplacement, `{"zoneOutage":"`+string(policy)+`"}`)
			})
			s := newServer(set, classIn(fixture.Class, "a"), classIn("b", "b"), machine("a", failed), machine("b", unknown))
			c := s.newController()
			for range 3 {
				pass(t, c)
				s.catchUp()
			}
			made := 0
			for name, machine := range s.all() {
				if name == "a" || name == "b" {
					continue
				}
				made++
				if got := machine.Spec.Class.Name; got != want {
					t.Errorf("class of the new machine: %s, want %s", got, want)
				}
				if got := machine.Annotations[v1alpha1.AnnotationKeyClassReason]; (got == v1alpha1.CauseZoneOutage) != (want == "b") {
					t.Errorf("class reason %q", got)
				}
			}
			if made != 1 {
				t.Errorf("%d machines were created, want one", made)
			}
			const message = "with class b because all machines in the zone of class " + fixture.Class + " were unhealthy"
			if got := slices.ContainsFunc(s.events.lines, func(event string) bool { return strings.Contains(event, message) }); got != (want == "b") {
				t.Errorf("events: %q", s.events.lines)
			}
		})
	}
}

// TestClasses_RememberZoneOutage checks that an outage of a zone is remembered after its Machines are gone.
func TestClasses_RememberZoneOutage(t *testing.T) {
	unknown := func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = v1alpha1.MachineUnknown }
	for name, test := range map[string]struct {
		later time.Duration
		want  string
	}{
		"immediately":              {0, "b"},
		"before it expires":        {4 * time.Minute, "b"},
		"after it expires":         {6 * time.Minute, fixture.Class},
		"after a very long outage": {24 * time.Hour, fixture.Class},
	} {
		t.Run(name, func(t *testing.T) {
			set := newSet(2, fallingBackTo("b", ""), func(set *v1alpha1.MachineSet) {
				metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyReplacement, `{"zoneOutage":"Replace"}`)
			})
			s := newServer(set, classIn(fixture.Class, "a"), classIn("b", "b"), machine("a", unknown), machine("b", unknown))
			c := s.newController()
			c.OutageMemory = 5 * time.Minute
			for range 3 {
				pass(t, c)
				s.catchUp()
			}
			const finalizerAndOutage = 2
			if got := slices.DeleteFunc(slices.Clone(s.writes), func(write string) bool { return write != "patch MachineSet pool" }); len(got) != finalizerAndOutage {
				t.Errorf("%d writes of the set, want %d", len(got), finalizerAndOutage)
			}
			for _, machine := range s.all() {
				machine.Finalizers = nil
				must(s.live.Update(t.Context(), machine))
				must(s.live.Delete(t.Context(), machine))
			}
			s.catchUp()
			s.clock.SetTime(s.clock.Now().Add(test.later))
			c = s.newController() // a new process
			c.OutageMemory = 5 * time.Minute
			pass(t, c)
			s.catchUp()
			made := s.all()
			if len(made) != 2 {
				t.Errorf("%d machines were created, want two", len(made))
			}
			for _, machine := range made {
				if got := machine.Spec.Class.Name; got != test.want {
					t.Errorf("class of a new machine: %s, want %s", got, test.want)
				}
			}
		})
	}
}
