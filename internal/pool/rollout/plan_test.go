package rollout

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// brief formats operations without their reasons.
func brief(t *testing.T, operations []Operation) []string {
	t.Helper()
	var lines []string
	for _, op := range operations {
		if op.Reason == "" {
			t.Errorf("%s without a reason", op.Action)
		}
		switch op.Action {
		case Create:
			lines = append(lines, fmt.Sprintf("create %d", op.Replicas))
		case Scale:
			lines = append(lines, fmt.Sprintf("%s to %d", op.Set.Name, op.Replicas))
		case Refresh:
			// Covered by TestRefreshed.
		default:
			lines = append(lines, fmt.Sprintf("%s %s", op.Action, op.Set.Name))
		}
	}
	return lines
}

func TestPlan(t *testing.T) {
	t.Parallel()
	one := fixture.Rolling("1", "1")
	other := func(set *v1alpha1.MachineSet) { set.Labels["name"] = "other" }
	desired := func(n string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) { set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas] = n }
	}
	refused := func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue}}
	}
	for reason, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		sets       sets
		orphans    sets
		want       []string
	}{
		"new":                      {fixture.Deployment(3), nil, nil, []string{"create 3"}},
		"new, none desired":        {fixture.Deployment(0), nil, nil, []string{"create 0"}},
		"complete":                 {fixture.Deployment(3), sets{fixture.Set("a", 3)}, nil, nil},
		"complete, with history":   {fixture.Deployment(3, fixture.OfClass("b")), sets{fixture.Set("a", 0), fixture.Set("b", 3)}, nil, nil},
		"scaled up: immediately":   {fixture.Deployment(30), sets{fixture.Set("a", 3)}, nil, []string{"pool-a to 30"}},
		"scaled up, not observed":  {fixture.Deployment(30), sets{fixture.Set("a", 3, fixture.Unsettled)}, nil, []string{"pool-a to 30"}},
		"scaled down: immediately": {fixture.Deployment(1), sets{fixture.Set("a", 30)}, nil, []string{"pool-a to 1"}},
		"scaled to zero and back while machines leave": {
			fixture.Deployment(3), sets{fixture.Set("a", 0, desired("0"), fixture.Reports(3, 0))}, nil, []string{"pool-a to 3"},
		},
		"scaled up within the limits of a rollout, after it was an old set": {
			fixture.Deployment(3), sets{fixture.Set("a", 1, desired("3"), fixture.Reports(3, 1)), fixture.Set("b", 0)}, nil, []string{"pool-a to 2"},
		},
		"the same with another strategy": {
			fixture.Deployment(3, fixture.Recreate), sets{fixture.Set("a", 1, desired("3"), fixture.Reports(3, 1)), fixture.Set("b", 0)}, nil, []string{"pool-a to 3"},
		},

		"rolling: surge and removable machines": {fixture.Deployment(5, one, fixture.OfClass("b")), sets{fixture.Set("a", 5)}, nil, []string{"create 1", "pool-a to 4"}},
		"rolling: no surge":                     {fixture.Deployment(5, fixture.Rolling("0", "2"), fixture.OfClass("b")), sets{fixture.Set("a", 5)}, nil, []string{"create 0", "pool-a to 3"}},
		"rolling: none unavailable":             {fixture.Deployment(5, fixture.Rolling("2", "0"), fixture.OfClass("b")), sets{fixture.Set("a", 5)}, nil, []string{"create 2"}},
		"rolling: all at once":                  {fixture.Deployment(5, fixture.Rolling("100%", "100%"), fixture.OfClass("b")), sets{fixture.Set("a", 5)}, nil, []string{"create 5", "pool-a to 0"}},
		"rolling: new ones are awaited":         {fixture.Deployment(5, fixture.Rolling("2", "0"), fixture.OfClass("b")), sets{fixture.Set("a", 5), fixture.Set("b", 2, fixture.Reports(2, 0))}, nil, nil},
		"rolling: new ones are available":       {fixture.Deployment(5, fixture.Rolling("2", "0"), fixture.OfClass("b")), sets{fixture.Set("a", 5), fixture.Set("b", 2)}, nil, []string{"pool-a to 3"}},
		"rolling: machines being deleted count": {fixture.Deployment(5, fixture.Rolling("2", "0"), fixture.OfClass("b")), sets{fixture.Set("a", 3, fixture.Reports(5, 3)), fixture.Set("b", 2)}, nil, nil},
		"rolling: they are gone":                {fixture.Deployment(5, fixture.Rolling("2", "0"), fixture.OfClass("b")), sets{fixture.Set("a", 3), fixture.Set("b", 2)}, nil, []string{"pool-b to 4"}},
		"rolling: the last one":                 {fixture.Deployment(5, one, fixture.OfClass("b")), sets{fixture.Set("a", 1), fixture.Set("b", 5)}, nil, []string{"pool-a to 0"}},
		"rolling: a set has not reported":       {fixture.Deployment(5, one, fixture.OfClass("b")), sets{fixture.Set("a", 5, fixture.Unsettled)}, nil, nil},
		"rolling: an old set failed and may have unknown machines": {
			fixture.Deployment(3, fixture.Rolling("1", "3"), fixture.OfClass("b")), sets{fixture.Set("a", 1, fixture.Reports(0, 0), fixture.Unsettled, refused)}, nil, []string{"pool-a to 0"},
		},
		"rolling: the new set has not reported": {fixture.Deployment(5, one, fixture.OfClass("b")), sets{fixture.Set("a", 5), fixture.Set("b", 1, fixture.Unsettled)}, nil, nil},
		"rolling: the new set is refused its machine": {
			fixture.Deployment(5, one, fixture.OfClass("b")), sets{fixture.Set("a", 5), fixture.Set("b", 1, fixture.Reports(0, 0), fixture.Unsettled, refused)}, nil, []string{"pool-a to 4"},
		},
		"rolling: unavailable machines of all old sets are removed first": {
			fixture.Deployment(5, fixture.Rolling("0", "3"), fixture.OfClass("c")), sets{fixture.Set("a", 3), fixture.Set("b", 2, fixture.Reports(2, 0)), fixture.Set("c", 0)}, nil,
			[]string{"pool-a to 2", "pool-b to 0"},
		},
		"rolling: the oldest set is scaled down first": {
			fixture.Deployment(6, fixture.Rolling("0", "1"), fixture.OfClass("c")), sets{fixture.Set("b", 3), fixture.Set("a", 3), fixture.Set("c", 0)}, nil, []string{"pool-a to 2"},
		},
		"rolling: too few are available, so only unavailable machines are removed": {
			fixture.Deployment(5, one, fixture.OfClass("b")), sets{fixture.Set("a", 5, fixture.Reports(5, 2)), fixture.Set("b", 1, fixture.Reports(1, 0))}, nil, []string{"pool-a to 4"},
		},
		"rolling: no new machine becomes available: the old ones stay": {
			fixture.Deployment(5, one, fixture.OfClass("b")), sets{fixture.Set("a", 4), fixture.Set("b", 2, fixture.Reports(2, 0))}, nil, nil,
		},
		"rolling: scaled down on the way": {
			fixture.Deployment(2, one, fixture.OfClass("b")), sets{fixture.Set("a", 3), fixture.Set("b", 3)}, nil, []string{"pool-a to 1", "pool-b to 2"},
		},
		"rolling: scaled up on the way": {
			fixture.Deployment(10, one, fixture.OfClass("b")), sets{fixture.Set("a", 3), fixture.Set("b", 3)}, nil, []string{"pool-b to 8"},
		},
		"rolling: the current set was deleted by a user": {
			fixture.Deployment(3, one), sets{fixture.Set("a", 3, fixture.Leaving)}, nil, []string{"create 1"},
		},
		"rolling: preserved machines do not count as unavailable": {
			fixture.Deployment(5, fixture.Rolling("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 5, fixture.Reports(5, 4), fixture.PreservedFailed(1)), fixture.Set("b", 0)}, nil, []string{"pool-a to 4"},
		},
		"rolling: preserved machines are removed last": {
			fixture.Deployment(5, fixture.Rolling("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 1, fixture.Reports(1, 0), fixture.PreservedFailed(1)), fixture.Set("b", 4)}, nil, []string{"pool-a to 0"},
		},
		"rolling: preserved machines stay until new ones are available": {
			fixture.Deployment(5, fixture.Rolling("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 1, fixture.Reports(1, 0), fixture.PreservedFailed(1)), fixture.Set("b", 4, fixture.Reports(4, 3))}, nil, nil,
		},

		"recreate: old ones first":     {fixture.Deployment(3, fixture.Recreate, fixture.OfClass("b")), sets{fixture.Set("a", 3)}, nil, []string{"pool-a to 0"}},
		"recreate: all of them":        {fixture.Deployment(3, fixture.Recreate, fixture.OfClass("c")), sets{fixture.Set("a", 1), fixture.Set("b", 2)}, nil, []string{"pool-a to 0", "pool-b to 0"}},
		"recreate: they are leaving":   {fixture.Deployment(3, fixture.Recreate, fixture.OfClass("b")), sets{fixture.Set("a", 0, fixture.Reports(2, 0))}, nil, nil},
		"recreate: not reported":       {fixture.Deployment(3, fixture.Recreate, fixture.OfClass("b")), sets{fixture.Set("a", 0, fixture.Unsettled)}, nil, nil},
		"recreate: they are gone":      {fixture.Deployment(3, fixture.Recreate, fixture.OfClass("b")), sets{fixture.Set("a", 0)}, nil, []string{"create 3"}},
		"recreate: an old set is back": {fixture.Deployment(3, fixture.Recreate), sets{fixture.Set("a", 0), fixture.Set("b", 0)}, nil, []string{"pool-a to 3"}},
		"recreate: scaled":             {fixture.Deployment(5, fixture.Recreate), sets{fixture.Set("a", 3)}, nil, []string{"pool-a to 5"}},

		"in place: new":                                  {fixture.Deployment(3, fixture.InPlace("0", "1")), nil, nil, []string{"create 3"}},
		"in place: scaled":                               {fixture.Deployment(5, fixture.InPlace("0", "1")), sets{fixture.Set("a", 3)}, nil, []string{"pool-a to 5"}},
		"in place: the template changed":                 {fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 3)}, nil, nil},
		"in place: changed, then scaled up":              {fixture.Deployment(5, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 3)}, nil, []string{"pool-a to 5"}},
		"in place: changed, then scaled down":            {fixture.Deployment(1, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 3), fixture.Set("b", 0)}, nil, []string{"pool-a to 1"}},
		"in place: MCM has begun, then scaled up":        {fixture.Deployment(5, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 2), fixture.Set("b", 1)}, nil, []string{"pool-b to 3"}},
		"in place: MCM has begun, then scaled down":      {fixture.Deployment(1, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 2), fixture.Set("b", 1)}, nil, []string{"pool-a to 0"}},
		"in place: the set is deleted":                   {fixture.Deployment(3, fixture.InPlace("0", "1")), sets{fixture.Set("a", 2, fixture.Leaving)}, nil, []string{"create 1"}},
		"in place: MCM has begun":                        {fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 2), fixture.Set("b", 1)}, nil, nil},
		"in place: changed while there were no machines": {fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 0)}, nil, []string{"create 3"}},

		"paused: no rollout begins":    {fixture.Deployment(3, fixture.Paused, fixture.OfClass("b")), sets{fixture.Set("a", 3)}, nil, nil},
		"paused: not even a first set": {fixture.Deployment(3, fixture.Paused), nil, nil, nil},
		"paused: a rollout stops":      {fixture.Deployment(3, fixture.Paused, one, fixture.OfClass("b")), sets{fixture.Set("a", 2), fixture.Set("b", 2)}, nil, nil},
		"paused: scaled":               {fixture.Deployment(5, fixture.Paused), sets{fixture.Set("a", 3)}, nil, []string{"pool-a to 5"}},
		"paused: scaled down":          {fixture.Deployment(1, fixture.Paused, fixture.OfClass("b")), sets{fixture.Set("a", 3), fixture.Set("b", 0)}, nil, []string{"pool-a to 1"}},
		"paused: scaled from zero":     {fixture.Deployment(2, fixture.Paused, fixture.OfClass("b")), sets{fixture.Set("a", 0), fixture.Set("b", 0)}, nil, []string{"pool-b to 2"}},
		"paused: scaled from zero, template changed": {
			fixture.Deployment(3, fixture.Paused, fixture.OfClass("d")), sets{fixture.Set("a", 0), fixture.Set("b", 0), fixture.Set("c", 0, fixture.Leaving)}, nil, []string{"pool-b to 3"},
		},
		"paused: still zero": {fixture.Deployment(0, fixture.Paused, fixture.OfClass("b")), sets{fixture.Set("a", 0)}, nil, nil},
		"paused: scaled up, machines of a deleted set remain": {
			fixture.Deployment(3, fixture.Paused, fixture.OfClass("b")), sets{fixture.Set("a", 0), fixture.Set("b", 0, fixture.Leaving, fixture.Reports(3, 0))}, nil, nil,
		},
		"paused: machines that the rollout took are leaving": {
			fixture.Deployment(5, fixture.Paused, one, fixture.OfClass("b")), sets{fixture.Set("a", 0, fixture.Reports(2, 0)), fixture.Set("b", 3)}, nil, []string{"pool-b to 4"},
		},
		"paused: the number of machines is unknown": {fixture.Deployment(5, fixture.Paused, one, fixture.OfClass("b")), sets{fixture.Set("a", 0, fixture.Unsettled), fixture.Set("b", 3)}, nil, nil},
		"paused: only an old set is in use, and the rollout took machines from it": {
			fixture.Deployment(2, fixture.Paused, fixture.Rolling("0", "1"), fixture.OfClass("c")), sets{fixture.Set("a", 1, desired("2"), fixture.Reports(2, 1)), fixture.Set("b", 0)}, nil, nil,
		},
		"paused: scaled up, two old sets are in use": {
			fixture.Deployment(8, fixture.Paused, one, fixture.OfClass("c")), sets{fixture.Set("a", 3, desired("4")), fixture.Set("b", 1, desired("4"))}, nil,
			[]string{"pool-a to 6", "pool-b to 2"},
		},
		"paused: scaled up, the current set has no machines": {
			fixture.Deployment(6, fixture.Paused, one, fixture.OfClass("c")), sets{fixture.Set("a", 2, desired("4")), fixture.Set("b", 2, desired("4")), fixture.Set("c", 0)}, nil,
			[]string{"pool-b to 3", "pool-a to 3"},
		},
		"paused: scaled up, machines being deleted count": {
			fixture.Deployment(8, fixture.Paused, one, fixture.OfClass("c")), sets{fixture.Set("a", 3, desired("4"), fixture.Reports(5, 3)), fixture.Set("b", 1, desired("4"))}, nil,
			[]string{"pool-a to 5", "pool-b to 2"},
		},
		"paused: scaled up, they are gone": {
			fixture.Deployment(8, fixture.Paused, one, fixture.OfClass("c")), sets{fixture.Set("a", 5, desired("7")), fixture.Set("b", 2, desired("7"))}, nil, []string{"pool-a to 6"},
		},
		"paused: not scaled": {
			fixture.Deployment(8, fixture.Paused, one, fixture.OfClass("c")), sets{fixture.Set("a", 5, desired("8")), fixture.Set("b", 2, desired("8"))}, nil, nil,
		},
		"paused: scaled down, two old sets are in use": {
			fixture.Deployment(4, fixture.Paused, one, fixture.OfClass("c")), sets{fixture.Set("a", 4, fixture.ScaledFor(8, 9)), fixture.Set("b", 4, fixture.ScaledFor(8, 9))}, nil,
			[]string{"pool-a to 2", "pool-b to 2"},
		},
		"paused: scaled to zero in a rollout": {
			fixture.Deployment(0, fixture.Paused, one, fixture.OfClass("b")), sets{fixture.Set("a", 3, desired("4")), fixture.Set("b", 1, desired("4"))}, nil, []string{"pool-a to 0", "pool-b to 0"},
		},
		"paused: scaled up in a rollout, only the new set grows": {
			fixture.Deployment(8, fixture.Paused, one, fixture.OfClass("b")), sets{fixture.Set("a", 3, desired("4")), fixture.Set("b", 1, desired("4"))}, nil, []string{"pool-b to 6"},
		},
		"paused: scaled with the strategy Recreate": {
			fixture.Deployment(8, fixture.Paused, fixture.Recreate, fixture.OfClass("c")), sets{fixture.Set("a", 2, desired("4")), fixture.Set("b", 2, desired("4"))}, nil,
			[]string{"pool-b to 4", "pool-a to 4"},
		},
		"paused: scaled, template changed": {fixture.Deployment(5, fixture.Paused, fixture.OfClass("b")), sets{fixture.Set("a", 3)}, nil, []string{"pool-a to 5"}},

		"a set without an owner is adopted before anything else": {fixture.Deployment(3), nil, sets{fixture.Set("a", 3)}, []string{"adopt pool-a"}},
		"a set that does not match is released":                  {fixture.Deployment(3), sets{fixture.Set("a", 3), fixture.Set("b", 3, other)}, nil, []string{"release pool-b"}},
		"unless it is being deleted":                             {fixture.Deployment(3), sets{fixture.Set("a", 3), fixture.Set("b", 0, other, fixture.Leaving)}, nil, nil},
	} {
		t.Run(reason, func(t *testing.T) {
			f := NewFacts(test.deployment, test.sets, fixture.Noon)
			f.Orphans = test.orphans
			if diff := cmp.Diff(test.want, brief(t, Plan(New(f)))); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestPlan_Reasons(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(9, fixture.Rolling("0", "7"), fixture.OfClass("b")), sets{fixture.Set("a", 9, fixture.Reports(9, 3)), fixture.Set("b", 0)}, fixture.Noon)
	operations := planReplicas(New(f))
	if len(operations) != 1 {
		t.Fatalf("got %+v", operations)
	}
	const want = "6 of its machines are unavailable, and 1 machine can be removed (3 available, at least 2 required)"
	if operations[0].Reason != want {
		t.Errorf("got %q, want %q", operations[0].Reason, want)
	}
}

// TestPlan_ReasonNamesExcess checks that the reason for a size that users did not set names the excess replicas.
func TestPlan_ReasonNamesExcess(t *testing.T) {
	t.Parallel()
	for excess, want := range map[string]string{"": "3 replicas desired", "2": "3 replicas desired, plus 2 in excess"} {
		d := fixture.Deployment(3, annotated(v1alpha1.AnnotationKeyExcessReplicas, excess))
		plan := Plan(New(NewFacts(d, sets{fixture.Set("a", 9)}, fixture.Noon)))
		if len(plan) != 1 || plan[0].Reason != want {
			t.Errorf("%q excess replicas: the plan is %+v, want only the reason %q", excess, plan, want)
		}
	}
}

// TestPlan_ScaledSetsGetOperationalAnnotations checks that an old set that is scaled gets the annotations of its
// deployment that control how Machines are created and deleted, and keeps its own value if the deployment has none.
func TestPlan_ScaledSetsGetOperationalAnnotations(t *testing.T) {
	t.Parallel()
	const timeout = v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout
	d := fixture.Deployment(5, fixture.Rolling("0", "1"), fixture.OfClass("b"), annotated(timeout, "1h"))
	old := fixture.Set("a", 5, func(set *v1alpha1.MachineSet) {
		set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = fixture.Early
	})
	for _, op := range Plan(New(NewFacts(d, sets{old, fixture.Set("b", 0)}, fixture.Noon))) {
		if op.Action != Scale || op.Set != old {
			continue
		}
		is := op.Next.Annotations
		if is[timeout] != "1h" || is[v1alpha1.AnnotationKeyLastReplicaChange] != fixture.Early {
			t.Errorf("the set gets the annotations %v", is)
		}
		return
	}
	t.Error("the old set is not scaled")
}

// TestPlan_NamedMachineLeavesReserve checks that an old set that is scaled down keeps its reserve if a Machine that
// runs Pods is deleted by name. Otherwise, it loses Machines of the reserve first.
func TestPlan_NamedMachineLeavesReserve(t *testing.T) {
	t.Parallel()
	excess := func(n string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) { set.Annotations[v1alpha1.AnnotationKeyExcessReplicas] = n }
	}
	d := fixture.Deployment(2, fixture.OfClass("b"), annotated(v1alpha1.AnnotationKeyExcessReplicas, "2"))
	old := fixture.Set("a", 5, fixture.WithUID, excess("2"))
	f := NewFacts(d, sets{old, fixture.Set("b", 1, excess("1"))}, fixture.Noon)
	leaving := fixture.Running(old, "m")
	leaving.DeletionTimestamp = &metav1.Time{Time: fixture.Noon}
	for name, test := range map[string]struct {
		machine *v1alpha1.Machine
		want    int32
	}{
		"it runs": {fixture.Running(old, "m"), 2}, "it is being deleted": {leaving, 1}, "it is gone": {nil, 1},
	} {
		f.Named = []Named{{"m", fixture.Later, test.machine}}
		if got := planReserve(New(f), []Operation{scaleTo(old, 4, "")})[old]; got != test.want {
			t.Errorf("%s: the old set has %d machines in reserve, want %d", name, got, test.want)
		}
	}
}

func TestSelects(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(1)
	for reason, test := range map[string]struct {
		labels, template map[string]string
		want             bool
	}{
		"both match":              {map[string]string{"name": fixture.Pool, "more": "x"}, map[string]string{"name": fixture.Pool}, true},
		"only the set matches":    {map[string]string{"name": fixture.Pool}, map[string]string{"name": "other"}, false},
		"only its machines match": {nil, map[string]string{"name": fixture.Pool}, false},
	} {
		set := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}}
		set.Spec.Template.Labels = test.template
		if got := Selects(deployment)(set); got != test.want {
			t.Errorf("%s: got %t", reason, got)
		}
	}
	deployment.Spec.Selector = nil
	if Selects(deployment)(fixture.Set("a", 1)) {
		t.Error("no selector selects a set")
	}
}
