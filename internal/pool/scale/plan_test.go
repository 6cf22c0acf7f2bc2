package scale

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// brief formats operations without their reasons, with one line each, or with a count if there are many of the
// same kind.
func brief(t *testing.T, operations []Operation) []string {
	t.Helper()
	var lines []string
	many := map[Action]int{}
	for _, op := range operations {
		if op.Reason == "" {
			t.Errorf("%s without a reason", op.Action)
		}
		switch {
		case op.Action == Create:
			lines = append(lines, fmt.Sprintf("create %d", op.Count))
		case len(operations) > 10:
			many[op.Action]++
		default:
			lines = append(lines, fmt.Sprintf("%s %s", op.Action, op.Machine.Name))
		}
	}
	for action, n := range many {
		lines = append(lines, fmt.Sprintf("%s %d", action, n))
	}
	return lines
}

func frozenSet(set *v1alpha1.MachineSet) {
	set.Labels = map[string]string{v1alpha1.LabelKeyFreeze: "True"}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	frozenNot := func(set *v1alpha1.MachineSet) { set.Labels = map[string]string{v1alpha1.LabelKeyFreeze: "False"} }
	noScaleUp := func(set *v1alpha1.MachineSet) {
		set.Labels = map[string]string{v1alpha1.LabelKeyMachineSetScaleUpDisabled: "false"} // only its presence matters
	}
	orphaning := func(set *v1alpha1.MachineSet) {
		set.DeletionTimestamp, set.Finalizers = &metav1.Time{Time: noon}, []string{v1alpha1.FinalizerMCM, metav1.FinalizerOrphanDependents}
	}
	foreground := func(set *v1alpha1.MachineSet) {
		set.DeletionTimestamp, set.Finalizers = &metav1.Time{Time: noon}, []string{v1alpha1.FinalizerMCM, metav1.FinalizerDeleteDependents}
	}
	gone := func(set *v1alpha1.MachineSet) { set.DeletionTimestamp = &metav1.Time{Time: noon} }
	failed := phase(v1alpha1.MachineFailed)
	updated := labelled(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful)
	other := func(m *v1alpha1.Machine) { m.Labels = map[string]string{"name": "other"} }

	backOff := map[bool]time.Time{true: noon.Add(time.Minute)}

	for reason, test := range map[string]struct {
		set       *v1alpha1.MachineSet
		owned     []*v1alpha1.Machine
		orphans   []*v1alpha1.Machine
		uncertain bool
		backsOff  bool
		parent    *v1alpha1.MachineDeployment
		want      []string
	}{
		"no replicas, no machines":              {set: newSet(0)},
		"as many as desired":                    {set: newSet(3), owned: machines(3)},
		"too few":                               {set: newSet(3), owned: machines(1), want: []string{"create 2"}},
		"a Burst at a time":                     {set: newSet(250), owned: machines(50), want: []string{"create 100"}},
		"the last of a Burst":                   {set: newSet(150), owned: machines(50), want: []string{"create 100"}},
		"a hundred thousand":                    {set: newSet(100_000), want: []string{"create 100"}},
		"too many":                              {set: newSet(1), owned: machines(3), want: []string{"delete m0", "delete m1"}},
		"far too many: a Burst at a time":       {set: newSet(0), owned: machines(250), want: []string{"delete 100"}},
		"machines that are leaving don't count": {set: newSet(2), owned: machines(2, deleting), want: []string{"create 2"}},
		"Terminating machines that are not being deleted count": {set: newSet(1), owned: machines(2, phase(v1alpha1.MachineTerminating)), want: []string{"delete m0"}},
		"failed machines count until they are deleted":          {set: newSet(2), owned: machines(2, failed), want: []string{"delete m0", "delete m1"}},
		"failed machines stay while there are too few":          {set: newSet(3), owned: machines(2, failed), want: []string{"create 1"}},
		"many failed: a Burst at a time":                        {set: newSet(200), owned: machines(200, failed), want: []string{"delete 100"}},
		"preserved ones count, and stay": {
			set: newSet(2), owned: machines(2, failed, preservedUntil(noon.Add(1))),
		},
		"updated in place: no others are deleted instead of moved machines": {
			set: newSet(1), owned: append(machines(2, updated), machine("x")),
			parent: newParent(2, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, ""),
		},
		"updated in place: others are deleted if there are too many": {
			set: newSet(1), owned: append(machines(2, updated), machine("x"), machine("y")), want: []string{"delete x"},
			parent: newParent(2, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, ""),
		},
		"updated in place: moved machines count": {
			set: newSet(2), owned: append(machines(1, updated), machine("x")),
			parent: newParent(2, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, ""),
		},

		"frozen: creates nothing":          {set: newSet(3, frozenSet), owned: machines(1)},
		"frozen: still shrinks":            {set: newSet(1, frozenSet), owned: machines(2), want: []string{"delete m0"}},
		"frozen, but not quite":            {set: newSet(1, frozenNot), want: []string{"create 1"}},
		"scale-up disabled":                {set: newSet(3, noScaleUp), owned: machines(1)},
		"scale-up disabled: still shrinks": {set: newSet(1, noScaleUp), owned: machines(2), want: []string{"delete m0"}},

		"backing off: creates nothing":             {set: newSet(3), owned: machines(1), backsOff: true},
		"backing off: failed machines are deleted": {set: newSet(3), owned: append(machines(1), machine("f", failed)), backsOff: true, want: []string{"delete f"}},
		"backing off: named machines are deleted": {
			set: newSet(3, func(set *v1alpha1.MachineSet) {
				set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: noon.Format(time.RFC3339)}
			}),
			owned: append(machines(1), machine("n", marked(noon))), backsOff: true, want: []string{"delete n"},
		},
		"backing off: surplus machines are deleted":       {set: newSet(1), owned: machines(2), backsOff: true, want: []string{"delete m0"}},
		"uncertain: nothing is created":                   {set: newSet(3), uncertain: true},
		"uncertain: nothing is deleted":                   {set: newSet(0), owned: machines(3), uncertain: true},
		"uncertain: not even failed machines are deleted": {set: newSet(1), owned: machines(1, failed), uncertain: true},
		"uncertain: owners are changed anyway": {
			set: newSet(2), owned: []*v1alpha1.Machine{machine("a", other)}, orphans: []*v1alpha1.Machine{machine("b", ownerless)}, uncertain: true,
			want: []string{"release a", "adopt b"},
		},

		"an orphan is adopted instead of creating a machine": {
			set: newSet(2), owned: machines(1), orphans: []*v1alpha1.Machine{machine("s", ownerless)}, want: []string{"adopt s"},
		},
		"surplus orphans are adopted and deleted": {
			set: newSet(1), orphans: machines(2, ownerless), want: []string{"adopt m0", "adopt m1", "delete m0"},
		},
		"an orphan that is being deleted is not adopted": {
			set: newSet(1), orphans: machines(1, ownerless, deleting), want: []string{"create 1"},
		},
		"a machine that no longer matches is released and replaced": {
			set: newSet(2), owned: append(machines(1), machine("x", other)), want: []string{"release x", "create 1"},
		},

		"deleting: all are deleted, whatever their labels": {
			set: newSet(3, gone), owned: append(machines(2), machine("x", other)), want: []string{"delete m0", "delete m1", "delete x"},
		},
		"deleting: machines being deleted are skipped": {
			set: newSet(3, gone), owned: append(machines(2, deleting), machine("x")), want: []string{"delete x"},
		},
		"deleting: nothing is adopted or created": {set: newSet(3, gone), orphans: machines(2, ownerless)},
		"deleting: also when uncertain":           {set: newSet(3, gone), owned: machines(1), uncertain: true, want: []string{"delete m0"}},
		"deleting: preserved ones too": {
			set: newSet(3, gone), owned: machines(1, failed, preservedUntil(noon.Add(1))), want: []string{"delete m0"},
		},
		"deleting in the foreground: no difference": {set: newSet(3, foreground), owned: machines(1), want: []string{"delete m0"}},
		"deleting with orphans: nothing is done": {
			set: newSet(3, orphaning), owned: append(machines(2), machine("f", failed), machine("x", other)), orphans: machines(2, ownerless),
		},
		"deleting: a Burst at a time": {set: newSet(0, gone), owned: machines(250), want: []string{"delete 100"}},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			got := Plan(Facts{Set: test.set, Owned: test.owned, Unowned: test.orphans, Parent: test.parent, Current: !test.uncertain, Now: noon, NotBefore: backOff[test.backsOff]})
			if diff := cmp.Diff(test.want, brief(t, got)); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestPlan_DoesNotDependOnCacheOrder checks that the order of operations and the contents of a burst do not
// depend on the order of the cache, and neither does the failure that a status reports.
func TestPlan_DoesNotDependOnCacheOrder(t *testing.T) {
	t.Parallel()
	const many = Burst + 20
	var outdated []Outdated
	for _, m := range machines(many) {
		outdated = append(outdated, Outdated{Machine: m, Differences: []string{"node template"}})
	}
	going := newSet(many, func(set *v1alpha1.MachineSet) { set.DeletionTimestamp = &metav1.Time{Time: noon} })
	for reason, f := range map[string]Facts{
		"what changes":           {Set: newSet(many), Owned: machines(many), Outdated: outdated},
		"what is adopted":        {Set: newSet(many), Unowned: machines(many, ownerless)},
		"what is released":       {Set: newSet(0), Owned: machines(many, unlabelled)},
		"what goes with its set": {Set: going, Owned: machines(many)},
		"what stays without it":  {Set: going, Owned: machines(many), Orphaned: true},
		"surplus":                {Set: newSet(0), Owned: machines(many)},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			f.Current, f.Now = true, noon
			var want []string
			for seed := range uint64(5) {
				shuffle := rand.New(rand.NewPCG(seed, 0))
				f.Owned, f.Unowned, f.Outdated = slices.Clone(f.Owned), slices.Clone(f.Unowned), slices.Clone(f.Outdated)
				shuffle.Shuffle(len(f.Outdated), func(i, j int) { f.Outdated[i], f.Outdated[j] = f.Outdated[j], f.Outdated[i] })
				shuffle.Shuffle(len(f.Owned), func(i, j int) { f.Owned[i], f.Owned[j] = f.Owned[j], f.Owned[i] })
				shuffle.Shuffle(len(f.Unowned), func(i, j int) { f.Unowned[i], f.Unowned[j] = f.Unowned[j], f.Unowned[i] })
				var got []string
				for _, op := range Plan(f) {
					if op.Machine != nil {
						got = append(got, string(op.Action)+" "+op.Machine.Name)
					}
				}
				if want == nil {
					want = got
				}
				if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
					t.Fatalf("with seed %d: first + now -\n%s", seed, diff)
				}
			}
		})
	}
}
