package deletion

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var noon = fixture.Noon

type change = func(*v1alpha1.Machine)

// machine returns a Running Machine that is one hour old.
func machine(name string, changes ...change) *v1alpha1.Machine {
	return fixture.Running(fixture.MachineSet(), name, changes...)
}

func phase(phase v1alpha1.MachinePhase) change {
	return func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = phase }
}

// updateState sets the progress of the in-place update of a Machine's node.
func updateState(reason string) change {
	return func(m *v1alpha1.Machine) {
		m.Status.Conditions = append(m.Status.Conditions, corev1.NodeCondition{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason})
	}
}

func annotated(key, value string) change {
	return func(m *v1alpha1.Machine) { m.Annotations[key] = value }
}

func priorityOf(value string) change { return annotated(v1alpha1.AnnotationKeyMachinePriority, value) }

// onlyMarked marks a Machine as named for deletion, without changing its priority.
func onlyMarked(at time.Time) change {
	return annotated(v1alpha1.AnnotationKeyMarkedForDeletionTime, at.Format(time.RFC3339))
}

func inReserve(m *v1alpha1.Machine) { m.Spec = *reserve.Marked(&m.Spec, reserve.NoSchedule) }

// ofChoice sets the class of a Machine that may have the classes "first" or "second".
func ofChoice(class string) change {
	return func(m *v1alpha1.Machine) {
		m.Annotations[v1alpha1.AnnotationKeyClassChoices], m.Spec.Class.Name = "first,second", class
	}
}

func withVM(m *v1alpha1.Machine) { m.Spec.ProviderID = "sim:///" + m.Name }

func age(d time.Duration) change {
	return func(m *v1alpha1.Machine) { m.CreationTimestamp = metav1.NewTime(noon.Add(-d)) }
}

func names(machines []*v1alpha1.Machine) []string {
	var names []string
	for _, m := range machines {
		names = append(names, m.Name)
	}
	return names
}

// expectOrder checks that Machines are deleted in the given order.
func expectOrder(t *testing.T, order []*v1alpha1.Machine, replaced bool) {
	t.Helper()
	for seed := range uint64(20) {
		shuffled := slices.Clone(order)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		slices.SortFunc(shuffled, func(a, b *v1alpha1.Machine) int { return Compare(a, b, replaced) })
		if diff := cmp.Diff(names(order), names(shuffled)); diff != "" {
			t.Fatalf("seed %d: want - got +\n%s", seed, diff)
		}
	}
}

// Each case lists Machines in the order in which they are deleted. Their names are in another order, so that the
// names do not decide.
func TestCompare_OrdersByEachCriterion(t *testing.T) {
	t.Parallel()
	for reason, order := range map[string][]*v1alpha1.Machine{
		"lower priority first; absent, empty and invalid priorities are 3": {
			machine("z", priorityOf("-1")),
			machine("y", priorityOf("1")),
			machine("x", priorityOf("2")),
			machine("a", priorityOf("three")),
			machine("b"),
			machine("c", priorityOf("")),
			machine("d", priorityOf("3")),
			machine("e", priorityOf("3.5")),
			machine("f", priorityOf("4")),
		},
		"priority before phase": {
			machine("z", priorityOf("2"), phase(v1alpha1.MachineRunning)),
			machine("a", priorityOf("3"), phase(v1alpha1.MachineFailed)),
		},
		"marked before unmarked, the earlier mark first, before the phase": {
			machine("z", onlyMarked(noon.Add(-2*time.Minute))),
			machine("y", onlyMarked(noon.Add(-time.Minute))),
			machine("a", phase(v1alpha1.MachineFailed)),
		},
		"an invalid mark is ignored": {
			machine("z", phase(v1alpha1.MachineFailed)),
			machine("a", annotated(v1alpha1.AnnotationKeyMarkedForDeletionTime, "yesterday")),
		},
		"phase": {
			machine("y", phase(v1alpha1.MachineFailed)),
			machine("x", phase(v1alpha1.MachineCrashLoopBackOff)),
			machine("w", phase(v1alpha1.MachineUnknown)),
			machine("v", phase(v1alpha1.MachinePending)),
			machine("u", phase(v1alpha1.MachineAvailable)),
			machine("t", phase(v1alpha1.MachineRunning), age(9*time.Hour)),
		},
		"excess Machines before others of their phase, regardless of age": {
			machine("z", phase(v1alpha1.MachinePending)),
			machine("y", inReserve, age(time.Minute)),
			machine("a", age(9*time.Hour)),
		},
		"excess Machines before later class choices, and these before age": {
			machine("z", ofChoice("first"), inReserve),
			machine("y", ofChoice("second"), age(time.Minute)),
			machine("a", ofChoice("first"), age(9*time.Hour)),
		},
		"unlisted phases are first, and equal": {
			machine("d", phase(""), age(4*time.Hour)),
			machine("c", phase(v1alpha1.MachineInPlaceUpdateFailed), age(3*time.Hour)),
			machine("b", phase(v1alpha1.MachineTerminating), age(2*time.Hour)),
			machine("0", phase(v1alpha1.MachineFailed), age(9*time.Hour)),
		},
		"Machines without a VM before others; restored and new Machines with a VM, which have no phase yet, before Running ones": {
			machine("z", phase(v1alpha1.MachineFailed), withVM),
			machine("y", phase(v1alpha1.MachinePending), age(time.Minute)),
			machine("x", age(time.Minute)),
			machine("w", phase(v1alpha1.MachineUnknown), withVM, age(9*time.Hour)),
			machine("v", phase(v1alpha1.MachinePending), withVM, age(9*time.Hour)),
			machine("u", phase(""), withVM, age(9*time.Hour)),
			machine("t", phase(""), withVM),
			machine("s", withVM, age(9*time.Hour)),
		},
		"a mark and a priority before a VM": {
			machine("z", withVM, onlyMarked(noon)),
			machine("y", phase(v1alpha1.MachinePending)),
		},
		"Machines that are being updated in place are last": {
			machine("z", phase(v1alpha1.MachineInPlaceUpdateFailed), updateState(v1alpha1.UpdateFailed)),
			machine("y", phase(v1alpha1.MachineFailed), updateState(v1alpha1.ReadyForUpdate), age(6*time.Hour)),
			machine("x", updateState(v1alpha1.CandidateForUpdate), age(5*time.Hour)),
			machine("w", updateState(v1alpha1.UpdateSuccessful), age(4*time.Hour)),
			machine("d", updateState(v1alpha1.SelectedForUpdate), age(3*time.Hour)),
			machine("c", phase(v1alpha1.MachineUnknown), updateState(v1alpha1.DrainSuccessful), age(2*time.Hour)),
			machine("b", phase(v1alpha1.MachineInPlaceUpdating), updateState(v1alpha1.ReadyForUpdate), age(time.Hour)),
			machine("a", phase(v1alpha1.MachineInPlaceUpdateSuccessful), updateState(v1alpha1.ReadyForUpdate), age(time.Minute)),
		},
		"older first": {
			machine("z", age(2*time.Hour)),
			machine("a", age(time.Hour)),
		},
		"name last": {machine("a"), machine("b"), machine("c")},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			expectOrder(t, order, false)
		})
	}
}

func TestCompare_KeepsUpdatedMachinesOfReplacedSet(t *testing.T) {
	t.Parallel()
	updated := machine("a", updateState(v1alpha1.UpdateSuccessful), age(2*time.Hour))
	other := machine("z", age(time.Hour))
	expectOrder(t, []*v1alpha1.Machine{other, updated}, true)
	expectOrder(t, []*v1alpha1.Machine{updated, other}, false)
}

func TestNamed_ComparesMarkWithLastReplicaChange(t *testing.T) {
	t.Parallel()
	named := func(at time.Time) *v1alpha1.Machine { return machine("a", priorityOf(First), onlyMarked(at)) }
	scaledAt := func(text string) *v1alpha1.MachineSet {
		return fixture.MachineSet(func(set *v1alpha1.MachineSet) {
			set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: text}
		})
	}
	scaled := scaledAt(noon.Format(time.RFC3339))
	for reason, test := range map[string]struct {
		machine *v1alpha1.Machine
		set     *v1alpha1.MachineSet
		want    bool
	}{
		"marked before the change":                    {named(noon.Add(-time.Second)), scaled, true},
		"marked in the same second":                   {named(noon), scaled, true},
		"marked after: replicas change later":         {named(noon.Add(time.Second)), scaled, false},
		"replicas were never changed":                 {named(noon), fixture.MachineSet(), false},
		"replicas were never changed, mark in year 0": {named(time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)), fixture.MachineSet(), false},
		"invalid time of the change":                  {named(noon), scaledAt("today"), false},
		"another priority":                            {machine("a", priorityOf("2"), onlyMarked(noon)), scaled, false},
		"no priority":                                 {machine("a", onlyMarked(noon)), scaled, false},
		"not marked":                                  {machine("a", priorityOf(First)), scaled, false},
		"invalid mark":                                {machine("a", priorityOf(First), annotated(v1alpha1.AnnotationKeyMarkedForDeletionTime, "now")), scaled, false},
		"not marked, change at the end of time":       {machine("a", priorityOf(First)), scaledAt("9999-12-31T23:59:59Z"), false},
	} {
		if got := Named(test.machine, test.set); got != test.want {
			t.Errorf("%s: named is %t, want %t", reason, got, test.want)
		}
	}
}

// Named is called for each Machine of a set in each pass, and almost no Machine is marked.
func TestNamed_DoesNotAllocateForUnmarkedMachine(t *testing.T) {
	m, set := machine("a"), fixture.MachineSet()
	if cost := testing.AllocsPerRun(10, func() { Named(m, set) }); cost > 0 {
		t.Errorf("%.0f allocations", cost)
	}
}

func TestMarked_RequiresPriority(t *testing.T) {
	t.Parallel()
	m := machine("a")
	Mark(m, fixture.Early)
	if got := Marked(m); got != fixture.Early || !IsFirst(m) {
		t.Errorf("marked at %q, want %q", got, fixture.Early)
	}
	m.Annotations[v1alpha1.AnnotationKeyMachinePriority] = Normal
	if got := Marked(m); got != "" {
		t.Errorf("a machine with the normal priority is marked at %q", got)
	}
}
