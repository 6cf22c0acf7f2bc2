package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
)

func TestStatusCounts(t *testing.T) {
	t.Parallel()
	some := func(set *v1alpha1.MachineSet) {
		set.Status = v1alpha1.MachineSetStatus{Replicas: 4, ReadyReplicas: 2, AvailableReplicas: 3, PreservedFailedReplicas: 1}
	}
	for reason, test := range map[string]struct {
		sets sets
		want v1alpha1.MachineDeploymentStatus
	}{
		"no sets": {},
		"only the current": {sets{setOf("b", 5, some)}, v1alpha1.MachineDeploymentStatus{
			Replicas: 4, UpdatedReplicas: 4, ReadyReplicas: 2, AvailableReplicas: 3, PreservedFailedReplicas: 1, UnavailableReplicas: 2,
		}},
		"an old one too": {sets{setOf("a", 1, some), setOf("b", 5, some)}, v1alpha1.MachineDeploymentStatus{
			Replicas: 8, UpdatedReplicas: 4, ReadyReplicas: 4, AvailableReplicas: 6, PreservedFailedReplicas: 2, UnavailableReplicas: 0,
		}},
		"only an old one": {sets{setOf("a", 9, some)}, v1alpha1.MachineDeploymentStatus{
			Replicas: 4, ReadyReplicas: 2, AvailableReplicas: 3, PreservedFailedReplicas: 1, UnavailableReplicas: 6,
		}},
	} {
		t.Run(reason, func(t *testing.T) {
			deployment := newDeployment(5, class("b"))
			deployment.Generation = 7
			test.want.ObservedGeneration, test.want.Selector = 7, "name=pool"
			got := nextStatus(planner.NewFacts(deployment, test.sets, noon), nil)
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(v1alpha1.MachineDeploymentStatus{}, "Conditions")); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	const (
		available = "Available=True MinimumReplicasAvailable"
		too       = "Available=False MinimumReplicasUnavailable"
	)
	was := func(reason, message string) change {
		return func(d *v1alpha1.MachineDeployment) {
			d.Status.Conditions = []v1alpha1.MachineDeploymentCondition{{Type: v1alpha1.MachineDeploymentProgressing, Status: "True", Reason: reason, Message: message}}
		}
	}
	wasComplete := func(d *v1alpha1.MachineDeployment) {
		was("NewMachineSetAvailable", `MachineSet "pool-a" has successfully progressed.`)(d)
		recorded("1")(d) // that of pool-a
	}
	failing := func(reason string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: "True", Reason: reason}}
		}
	}
	for reason, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		sets       sets
		failure    error
		want       []string
	}{
		"complete":                    {newDeployment(3), sets{setOf("a", 3)}, nil, []string{available, "Progressing=True NewMachineSetAvailable"}},
		"complete at zero":            {newDeployment(0), sets{setOf("a", 0)}, nil, []string{available, "Progressing=True NewMachineSetAvailable"}},
		"coming up":                   {newDeployment(3), sets{setOf("a", 3, reports(3, 1))}, nil, []string{too, "Progressing=True MachineSetUpdated"}},
		"coming up, enough available": {newDeployment(3), sets{setOf("a", 3, reports(3, 2))}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"old machines are there":      {newDeployment(3, class("b")), sets{setOf("a", 1), setOf("b", 3)}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"old machines are leaving":    {newDeployment(3, class("b")), sets{setOf("a", 0, reports(1, 0)), setOf("b", 3)}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"not scaled yet":              {newDeployment(3), sets{setOf("a", 2)}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"no set yet":                  {newDeployment(3, recreate, class("b")), sets{setOf("a", 0, reports(2, 0))}, nil, []string{too, "Progressing=True MachineSetUpdated"}},

		"complete before: scaling is no rollout":        {newDeployment(5, wasComplete), sets{setOf("a", 3)}, nil, []string{"Progressing=True NewMachineSetAvailable", too}},
		"complete before: nor is a machine that failed": {newDeployment(5, wasComplete), sets{setOf("a", 5, reports(5, 4))}, nil, []string{"Progressing=True NewMachineSetAvailable", available}},
		"complete before, with another template":        {newDeployment(5, wasComplete, class("b")), sets{setOf("a", 0), setOf("b", 5, reports(5, 4), ofRevision("2"))}, nil, []string{"Progressing=True MachineSetUpdated", available}},
		"complete before, and a rollout has begun":      {newDeployment(5, wasComplete), sets{setOf("b", 5), setOf("a", 1, reports(1, 0))}, nil, []string{"Progressing=True MachineSetUpdated", available}},

		"preserved machines need not be available": {newDeployment(3, rolling("1", "0")), sets{setOf("a", 3, reports(3, 2), preserved(1))}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"recreate allows none to be missing":       {newDeployment(3, recreate), sets{setOf("a", 3, reports(3, 2))}, nil, []string{too, "Progressing=True MachineSetUpdated"}},

		"paused":                  {newDeployment(3, paused, wasComplete), sets{setOf("a", 3)}, nil, []string{"Progressing=Unknown DeploymentPaused", available}},
		"resumed, and complete":   {newDeployment(3, was("DeploymentPaused", "")), sets{setOf("a", 3)}, nil, []string{"Progressing=True NewMachineSetAvailable", available}},
		"in place":                {newDeployment(3, inPlace("0", "1"), class("b")), sets{setOf("a", 3)}, nil, []string{available, "Progressing=False NotSupported"}},
		"in place, MCM has begun": {newDeployment(3, inPlace("0", "1"), class("b")), sets{setOf("a", 2), setOf("b", 1)}, nil, []string{available, "Progressing=False NotSupported"}},
		"in place, complete":      {newDeployment(3, inPlace("0", "1")), sets{setOf("a", 3), setOf("b", 0)}, nil, []string{available, "Progressing=True NewMachineSetAvailable"}},

		"a set cannot be created": {newDeployment(3), nil, fmt.Errorf("%w: no", planner.ErrCreate), []string{too, "Progressing=False MachineSetCreateError"}},
		"a set cannot be scaled":  {newDeployment(3), sets{setOf("a", 2)}, errors.New("no"), []string{available, "Progressing=False MachineSetUpdateError"}},
		"a name is taken":         {newDeployment(3), nil, planner.ErrNameTaken, []string{too, "Progressing=True MachineSetUpdated"}},

		"the current set fails": {newDeployment(3, class("b")), sets{setOf("a", 3, failing("FailedDelete")), setOf("b", 1, failing("FailedCreate"))}, nil, []string{available, "Progressing=True MachineSetUpdated", "ReplicaFailure=True FailedCreate"}},
		"an old set fails":      {newDeployment(3, class("b")), sets{setOf("a", 3, failing("FailedDelete")), setOf("b", 1)}, nil, []string{available, "Progressing=True MachineSetUpdated", "ReplicaFailure=True FailedDelete"}},
	} {
		t.Run(reason, func(t *testing.T) {
			var got []string
			for _, c := range nextStatus(planner.NewFacts(test.deployment, test.sets, noon), test.failure).Conditions {
				got = append(got, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
				if c.Message == "" && c.Type != v1alpha1.MachineDeploymentReplicaFailure {
					t.Errorf("%s says nothing", c.Type)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestACreatedSetIsSaidToBeCreated(t *testing.T) {
	t.Parallel()
	o := planner.Outcome{Created: setOf("a", 3, reports(0, 0))}
	for _, c := range Next(planner.NewFacts(newDeployment(3), nil, noon), o).Conditions {
		if c.Type == v1alpha1.MachineDeploymentProgressing && c.Reason != "NewMachineSetCreated" {
			t.Errorf("got %+v", c)
		}
	}
}

// TestConditionsKeepTheirTimes: the transition is that of the status; a condition that
// says the same is left alone.
func TestConditionsKeepTheirTimes(t *testing.T) {
	t.Parallel()
	deployment := newDeployment(3, rolling("1", "0"), recorded("1"))
	status := func(minute int, set *v1alpha1.MachineSet) map[string][2]int {
		f := planner.NewFacts(deployment, sets{set}, noon.Add(time.Duration(minute)*time.Minute))
		deployment.Status = nextStatus(f, nil)
		times := map[string][2]int{}
		for _, c := range deployment.Status.Conditions {
			times[string(c.Type)] = [2]int{int(c.LastTransitionTime.Sub(noon).Minutes()), int(c.LastUpdateTime.Sub(noon).Minutes())}
		}
		return times
	}
	failing := func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: "True"}}
	}
	for minute, step := range []struct {
		set  *v1alpha1.MachineSet
		want map[string][2]int
	}{
		{setOf("a", 3, reports(3, 1)), map[string][2]int{"Available": {0, 0}, "Progressing": {0, 0}}},
		{setOf("a", 3, reports(3, 2)), map[string][2]int{"Available": {0, 0}, "Progressing": {0, 1}}}, // the deadline counts from here
		{setOf("a", 3), map[string][2]int{"Available": {2, 2}, "Progressing": {0, 2}}},
		{setOf("a", 3, failing), map[string][2]int{"Available": {2, 2}, "Progressing": {0, 2}, "ReplicaFailure": {3, 3}}},
		{setOf("a", 3, failing), map[string][2]int{"Available": {2, 2}, "Progressing": {0, 2}, "ReplicaFailure": {3, 3}}},
		{setOf("a", 3), map[string][2]int{"Available": {2, 2}, "Progressing": {0, 2}}},
		{setOf("a", 3, reports(3, 1)), map[string][2]int{"Available": {6, 6}, "Progressing": {0, 2}}},
	} {
		if diff := cmp.Diff(step.want, status(minute, step.set)); diff != "" {
			t.Errorf("minute %d: want - got +\n%s", minute, diff)
		}
	}
}

func TestFailedMachines(t *testing.T) {
	t.Parallel()
	named := func(names ...string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			var failed []v1alpha1.MachineSummary
			for _, name := range names {
				failed = append(failed, v1alpha1.MachineSummary{Name: name, OwnerRef: set.Name, LastOperation: v1alpha1.LastOperation{Description: "no"}})
			}
			set.Status.FailedMachines = &failed
		}
	}
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("m%02d", i))
	}
	list := func(sets ...*v1alpha1.MachineSet) []*v1alpha1.MachineSummary {
		return nextStatus(planner.NewFacts(newDeployment(3, class("b")), sets, noon), nil).FailedMachines
	}
	if got := list(setOf("a", 1), setOf("b", 2)); got != nil {
		t.Errorf("none failed, but %v", got)
	}
	got := list(setOf("b", 2, named("y")), setOf("a", 1, named("x", "z")))
	var names []string
	for _, m := range got {
		names = append(names, m.OwnerRef+"/"+m.Name)
	}
	if diff := cmp.Diff("pool-a/x pool-a/z pool-b/y", strings.Join(names, " ")); diff != "" {
		t.Error(diff)
	}
	current := setOf("b", 2, named("y", "z"))
	got = list(setOf("a", 1, named(many...)), current)
	if len(got) != 100 || got[99].LastOperation.Description != "no (and at least 2 more failed machines)" {
		t.Errorf("%d are listed, the last says %q", len(got), got[len(got)-1].LastOperation.Description)
	}
}

func TestStatusAfterAFailure(t *testing.T) {
	t.Parallel()
	deployment := newDeployment(3)
	deployment.Generation, deployment.Status.ObservedGeneration = 5, 4
	got := nextStatus(planner.NewFacts(deployment, nil, noon), planner.ErrNameTaken)
	if got.ObservedGeneration != 4 || ptr.Deref(got.CollisionCount, 0) != 1 {
		t.Errorf("got %+v", got)
	}
	deployment.Status.CollisionCount = got.CollisionCount
	if next := nextStatus(planner.NewFacts(deployment, nil, noon), planner.ErrNameTaken); *next.CollisionCount != 2 || *got.CollisionCount != 1 {
		t.Errorf("collisions: %d, before %d", *next.CollisionCount, *got.CollisionCount)
	}
	if next := nextStatus(planner.NewFacts(deployment, nil, noon), errors.New("other")); *next.CollisionCount != 1 {
		t.Errorf("collisions: %d after another failure", *next.CollisionCount)
	}
}
