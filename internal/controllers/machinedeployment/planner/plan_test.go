package planner

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// brief writes operations without their reasons.
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
			// TestRefreshed is about those.
		default:
			lines = append(lines, fmt.Sprintf("%s %s", op.Action, op.Set.Name))
		}
	}
	return lines
}

func TestPlan(t *testing.T) {
	t.Parallel()
	one := rolling("1", "1")
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
		strays     sets
		want       []string
	}{
		"new":                     {newDeployment(3), nil, nil, []string{"create 3"}},
		"new, none wanted":        {newDeployment(0), nil, nil, []string{"create 0"}},
		"complete":                {newDeployment(3), sets{setOf("a", 3)}, nil, nil},
		"complete, with history":  {newDeployment(3, class("b")), sets{setOf("a", 0), setOf("b", 3)}, nil, nil},
		"scaled up: at once":      {newDeployment(30), sets{setOf("a", 3)}, nil, []string{"pool-a to 30"}},
		"scaled up, not observed": {newDeployment(30), sets{setOf("a", 3, unsettled)}, nil, []string{"pool-a to 30"}},
		"scaled down: at once":    {newDeployment(1), sets{setOf("a", 30)}, nil, []string{"pool-a to 1"}},
		"scaled to zero and back while machines leave": {
			newDeployment(3), sets{setOf("a", 0, desired("0"), reports(3, 0))}, nil, []string{"pool-a to 3"},
		},
		"grown again in the bounds of a rollout, after it was an old set": {
			newDeployment(3), sets{setOf("a", 1, desired("3"), reports(3, 1)), setOf("b", 0)}, nil, []string{"pool-a to 2"},
		},
		"the same with another strategy": {
			newDeployment(3, recreate), sets{setOf("a", 1, desired("3"), reports(3, 1)), setOf("b", 0)}, nil, []string{"pool-a to 3"},
		},

		"rolling: surge and what can be spared": {newDeployment(5, one, class("b")), sets{setOf("a", 5)}, nil, []string{"create 1", "pool-a to 4"}},
		"rolling: no surge":                     {newDeployment(5, rolling("0", "2"), class("b")), sets{setOf("a", 5)}, nil, []string{"create 0", "pool-a to 3"}},
		"rolling: none unavailable":             {newDeployment(5, rolling("2", "0"), class("b")), sets{setOf("a", 5)}, nil, []string{"create 2"}},
		"rolling: all at once":                  {newDeployment(5, rolling("100%", "100%"), class("b")), sets{setOf("a", 5)}, nil, []string{"create 5", "pool-a to 0"}},
		"rolling: new ones are awaited":         {newDeployment(5, rolling("2", "0"), class("b")), sets{setOf("a", 5), setOf("b", 2, reports(2, 0))}, nil, nil},
		"rolling: new ones are there":           {newDeployment(5, rolling("2", "0"), class("b")), sets{setOf("a", 5), setOf("b", 2)}, nil, []string{"pool-a to 3"}},
		"rolling: leaving ones take up room":    {newDeployment(5, rolling("2", "0"), class("b")), sets{setOf("a", 3, reports(5, 3)), setOf("b", 2)}, nil, nil},
		"rolling: they are gone":                {newDeployment(5, rolling("2", "0"), class("b")), sets{setOf("a", 3), setOf("b", 2)}, nil, []string{"pool-b to 4"}},
		"rolling: the last one":                 {newDeployment(5, one, class("b")), sets{setOf("a", 1), setOf("b", 5)}, nil, []string{"pool-a to 0"}},
		"rolling: a set has not reported":       {newDeployment(5, one, class("b")), sets{setOf("a", 5, unsettled)}, nil, nil},
		"rolling: an old set failed, and may have machines that it does not know": {
			newDeployment(3, rolling("1", "3"), class("b")), sets{setOf("a", 1, reports(0, 0), unsettled, refused)}, nil, []string{"pool-a to 0"},
		},
		"rolling: the new set has not reported": {newDeployment(5, one, class("b")), sets{setOf("a", 5), setOf("b", 1, unsettled)}, nil, nil},
		"rolling: the new set is refused its machine": {
			newDeployment(5, one, class("b")), sets{setOf("a", 5), setOf("b", 1, reports(0, 0), unsettled, refused)}, nil, []string{"pool-a to 4"},
		},
		"rolling: unavailable ones of all old sets go first": {
			newDeployment(5, rolling("0", "3"), class("c")), sets{setOf("a", 3), setOf("b", 2, reports(2, 0)), setOf("c", 0)}, nil,
			[]string{"pool-a to 2", "pool-b to 0"},
		},
		"rolling: the oldest set goes first": {
			newDeployment(6, rolling("0", "1"), class("c")), sets{setOf("b", 3), setOf("a", 3), setOf("c", 0)}, nil, []string{"pool-a to 2"},
		},
		"rolling: too few are available, so only what is of no use goes": {
			newDeployment(5, one, class("b")), sets{setOf("a", 5, reports(5, 2)), setOf("b", 1, reports(1, 0))}, nil, []string{"pool-a to 4"},
		},
		"rolling: nothing new comes up: the old stay": {
			newDeployment(5, one, class("b")), sets{setOf("a", 4), setOf("b", 2, reports(2, 0))}, nil, nil,
		},
		"rolling: scaled down on the way": {
			newDeployment(2, one, class("b")), sets{setOf("a", 3), setOf("b", 3)}, nil, []string{"pool-a to 1", "pool-b to 2"},
		},
		"rolling: scaled up on the way": {
			newDeployment(10, one, class("b")), sets{setOf("a", 3), setOf("b", 3)}, nil, []string{"pool-b to 8"},
		},
		"rolling: the current set was deleted by a user": {
			newDeployment(3, one), sets{setOf("a", 3, leaving)}, nil, []string{"create 1"},
		},
		"rolling: preserved machines are not what is unavailable": {
			newDeployment(5, rolling("0", "1"), class("b")), sets{setOf("a", 5, reports(5, 4), preserved(1)), setOf("b", 0)}, nil, []string{"pool-a to 4"},
		},
		"rolling: preserved machines go last": {
			newDeployment(5, rolling("0", "1"), class("b")), sets{setOf("a", 1, reports(1, 0), preserved(1)), setOf("b", 4)}, nil, []string{"pool-a to 0"},
		},
		"rolling: preserved machines stay while new ones come up": {
			newDeployment(5, rolling("0", "1"), class("b")), sets{setOf("a", 1, reports(1, 0), preserved(1)), setOf("b", 4, reports(4, 3))}, nil, nil,
		},

		"recreate: old ones first":     {newDeployment(3, recreate, class("b")), sets{setOf("a", 3)}, nil, []string{"pool-a to 0"}},
		"recreate: all of them":        {newDeployment(3, recreate, class("c")), sets{setOf("a", 1), setOf("b", 2)}, nil, []string{"pool-a to 0", "pool-b to 0"}},
		"recreate: they are leaving":   {newDeployment(3, recreate, class("b")), sets{setOf("a", 0, reports(2, 0))}, nil, nil},
		"recreate: not reported":       {newDeployment(3, recreate, class("b")), sets{setOf("a", 0, unsettled)}, nil, nil},
		"recreate: they are gone":      {newDeployment(3, recreate, class("b")), sets{setOf("a", 0)}, nil, []string{"create 3"}},
		"recreate: an old set is back": {newDeployment(3, recreate), sets{setOf("a", 0), setOf("b", 0)}, nil, []string{"pool-a to 3"}},
		"recreate: scaled":             {newDeployment(5, recreate), sets{setOf("a", 3)}, nil, []string{"pool-a to 5"}},

		"in place: new":                                  {newDeployment(3, inPlace("0", "1")), nil, nil, []string{"create 3"}},
		"in place: scaled":                               {newDeployment(5, inPlace("0", "1")), sets{setOf("a", 3)}, nil, []string{"pool-a to 5"}},
		"in place: the template changed":                 {newDeployment(3, inPlace("0", "1"), class("b")), sets{setOf("a", 3)}, nil, nil},
		"in place: changed, then scaled up":              {newDeployment(5, inPlace("0", "1"), class("b")), sets{setOf("a", 3)}, nil, []string{"pool-a to 5"}},
		"in place: changed, then scaled down":            {newDeployment(1, inPlace("0", "1"), class("b")), sets{setOf("a", 3), setOf("b", 0)}, nil, []string{"pool-a to 1"}},
		"in place: MCM has begun, then scaled up":        {newDeployment(5, inPlace("0", "1"), class("b")), sets{setOf("a", 2), setOf("b", 1)}, nil, []string{"pool-b to 3"}},
		"in place: MCM has begun, then scaled down":      {newDeployment(1, inPlace("0", "1"), class("b")), sets{setOf("a", 2), setOf("b", 1)}, nil, []string{"pool-a to 0"}},
		"in place: the set is deleted":                   {newDeployment(3, inPlace("0", "1")), sets{setOf("a", 2, leaving)}, nil, []string{"create 1"}},
		"in place: MCM has begun":                        {newDeployment(3, inPlace("0", "1"), class("b")), sets{setOf("a", 2), setOf("b", 1)}, nil, nil},
		"in place: changed while there were no machines": {newDeployment(3, inPlace("0", "1"), class("b")), sets{setOf("a", 0)}, nil, []string{"create 3"}},

		"paused: no rollout begins":    {newDeployment(3, paused, class("b")), sets{setOf("a", 3)}, nil, nil},
		"paused: not even a first set": {newDeployment(3, paused), nil, nil, nil},
		"paused: a rollout stops":      {newDeployment(3, paused, one, class("b")), sets{setOf("a", 2), setOf("b", 2)}, nil, nil},
		"paused: scaled":               {newDeployment(5, paused), sets{setOf("a", 3)}, nil, []string{"pool-a to 5"}},
		"paused: scaled down":          {newDeployment(1, paused, class("b")), sets{setOf("a", 3), setOf("b", 0)}, nil, []string{"pool-a to 1"}},
		"paused: scaled from zero":     {newDeployment(2, paused, class("b")), sets{setOf("a", 0), setOf("b", 0)}, nil, []string{"pool-b to 2"}},
		"paused: scaled from zero, template changed": {
			newDeployment(3, paused, class("d")), sets{setOf("a", 0), setOf("b", 0), setOf("c", 0, leaving)}, nil, []string{"pool-b to 3"},
		},
		"paused: still zero": {newDeployment(0, paused, class("b")), sets{setOf("a", 0)}, nil, nil},
		"paused: scaled up, machines of the set that was deleted are left": {
			newDeployment(3, paused, class("b")), sets{setOf("a", 0), setOf("b", 0, leaving, reports(3, 0))}, nil, nil,
		},
		"paused: machines that the rollout took are leaving": {
			newDeployment(5, paused, one, class("b")), sets{setOf("a", 0, reports(2, 0)), setOf("b", 3)}, nil, []string{"pool-b to 4"},
		},
		"paused: how many, nobody knows": {newDeployment(5, paused, one, class("b")), sets{setOf("a", 0, unsettled), setOf("b", 3)}, nil, nil},
		"paused: only an old set is in use, and the rollout took machines from it": {
			newDeployment(2, paused, rolling("0", "1"), class("c")), sets{setOf("a", 1, desired("2"), reports(2, 1)), setOf("b", 0)}, nil, nil,
		},
		"paused: scaled up, two old sets are in use": {
			newDeployment(8, paused, one, class("c")), sets{setOf("a", 3, desired("4")), setOf("b", 1, desired("4"))}, nil,
			[]string{"pool-a to 6", "pool-b to 2"},
		},
		"paused: scaled up, the current set has no machines": {
			newDeployment(6, paused, one, class("c")), sets{setOf("a", 2, desired("4")), setOf("b", 2, desired("4")), setOf("c", 0)}, nil,
			[]string{"pool-b to 3", "pool-a to 3"},
		},
		"paused: scaled up, leaving machines take up room": {
			newDeployment(8, paused, one, class("c")), sets{setOf("a", 3, desired("4"), reports(5, 3)), setOf("b", 1, desired("4"))}, nil,
			[]string{"pool-a to 5", "pool-b to 2"},
		},
		"paused: scaled up, they are gone": {
			newDeployment(8, paused, one, class("c")), sets{setOf("a", 5, desired("7")), setOf("b", 2, desired("7"))}, nil, []string{"pool-a to 6"},
		},
		"paused: nobody scaled": {
			newDeployment(8, paused, one, class("c")), sets{setOf("a", 5, desired("8")), setOf("b", 2, desired("8"))}, nil, nil,
		},
		"paused: scaled down, two old sets are in use": {
			newDeployment(4, paused, one, class("c")), sets{setOf("a", 4, scaledFor(8, 9)), setOf("b", 4, scaledFor(8, 9))}, nil,
			[]string{"pool-a to 2", "pool-b to 2"},
		},
		"paused: scaled to zero in a rollout": {
			newDeployment(0, paused, one, class("b")), sets{setOf("a", 3, desired("4")), setOf("b", 1, desired("4"))}, nil, []string{"pool-a to 0", "pool-b to 0"},
		},
		"paused: scaled up in a rollout, of which only the new set grows": {
			newDeployment(8, paused, one, class("b")), sets{setOf("a", 3, desired("4")), setOf("b", 1, desired("4"))}, nil, []string{"pool-b to 6"},
		},
		"paused: scaled with the strategy Recreate": {
			newDeployment(8, paused, recreate, class("c")), sets{setOf("a", 2, desired("4")), setOf("b", 2, desired("4"))}, nil,
			[]string{"pool-b to 4", "pool-a to 4"},
		},
		"paused: scaled, template changed": {newDeployment(5, paused, class("b")), sets{setOf("a", 3)}, nil, []string{"pool-a to 5"}},

		"a stray is adopted before anything else": {newDeployment(3), nil, sets{setOf("a", 3)}, []string{"adopt pool-a"}},
		"a set that does not match is released":   {newDeployment(3), sets{setOf("a", 3), setOf("b", 3, other)}, nil, []string{"release pool-b"}},
		"unless it is being deleted":              {newDeployment(3), sets{setOf("a", 3), setOf("b", 0, other, leaving)}, nil, nil},
	} {
		t.Run(reason, func(t *testing.T) {
			f := NewFacts(test.deployment, test.sets, noon)
			f.Orphans = test.strays
			if diff := cmp.Diff(test.want, brief(t, Plan(f))); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestPlanSaysWhy(t *testing.T) {
	t.Parallel()
	f := NewFacts(newDeployment(9, rolling("0", "7"), class("b")), sets{setOf("a", 9, reports(9, 3)), setOf("b", 0)}, noon)
	operations := planReplicas(f)
	if len(operations) != 1 {
		t.Fatalf("got %+v", operations)
	}
	const want = "6 of its machines are unavailable, and 1 can be spared, since 3 of all are available and 2 have to be"
	if operations[0].Reason != want {
		t.Errorf("got %q, want %q", operations[0].Reason, want)
	}
}

func TestSelects(t *testing.T) {
	t.Parallel()
	deployment := newDeployment(1)
	for reason, test := range map[string]struct {
		labels, template map[string]string
		want             bool
	}{
		"both match":             {map[string]string{"name": pool, "more": "x"}, map[string]string{"name": pool}, true},
		"its machines would not": {map[string]string{"name": pool}, map[string]string{"name": "other"}, false},
		"it does not":            {nil, map[string]string{"name": pool}, false},
	} {
		set := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}}
		set.Spec.Template.Labels = test.template
		if got := Selects(deployment)(set); got != test.want {
			t.Errorf("%s: got %t", reason, got)
		}
	}
	deployment.Spec.Selector = nil
	if Selects(deployment)(setOf("a", 1)) {
		t.Error("no selector selects a set")
	}
}
