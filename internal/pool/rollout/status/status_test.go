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
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestStatus_Counts(t *testing.T) {
	t.Parallel()
	some := func(set *v1alpha1.MachineSet) {
		set.Status = v1alpha1.MachineSetStatus{Replicas: 4, ReadyReplicas: 2, AvailableReplicas: 3, PreservedFailedReplicas: 1}
	}
	for reason, test := range map[string]struct {
		sets sets
		want v1alpha1.MachineDeploymentStatus
	}{
		"no sets": {},
		"only the current": {sets{fixture.Set("b", 5, some)}, v1alpha1.MachineDeploymentStatus{
			Replicas: 4, UpdatedReplicas: 4, ReadyReplicas: 2, AvailableReplicas: 3, PreservedFailedReplicas: 1, UnavailableReplicas: 2,
		}},
		"an old one too": {sets{fixture.Set("a", 1, some), fixture.Set("b", 5, some)}, v1alpha1.MachineDeploymentStatus{
			Replicas: 8, UpdatedReplicas: 4, ReadyReplicas: 4, AvailableReplicas: 6, PreservedFailedReplicas: 2, UnavailableReplicas: 0,
		}},
		"only an old one": {sets{fixture.Set("a", 9, some)}, v1alpha1.MachineDeploymentStatus{
			Replicas: 4, ReadyReplicas: 2, AvailableReplicas: 3, PreservedFailedReplicas: 1, UnavailableReplicas: 6,
		}},
	} {
		t.Run(reason, func(t *testing.T) {
			deployment := fixture.Deployment(5, fixture.OfClass("b"))
			deployment.Generation = 7
			test.want.ObservedGeneration, test.want.Selector = 7, "name=pool"
			got := nextStatus(rollout.NewFacts(deployment, test.sets, fixture.Noon), nil)
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(v1alpha1.MachineDeploymentStatus{}, "Conditions")); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestStatus_Conditions(t *testing.T) {
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
		"complete":                    {fixture.Deployment(3), sets{fixture.Set("a", 3)}, nil, []string{available, "Progressing=True NewMachineSetAvailable"}},
		"complete at zero":            {fixture.Deployment(0), sets{fixture.Set("a", 0)}, nil, []string{available, "Progressing=True NewMachineSetAvailable"}},
		"coming up":                   {fixture.Deployment(3), sets{fixture.Set("a", 3, fixture.Reports(3, 1))}, nil, []string{too, "Progressing=True MachineSetUpdated"}},
		"coming up, enough available": {fixture.Deployment(3), sets{fixture.Set("a", 3, fixture.Reports(3, 2))}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"old machines are there":      {fixture.Deployment(3, fixture.OfClass("b")), sets{fixture.Set("a", 1), fixture.Set("b", 3)}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"old machines are leaving":    {fixture.Deployment(3, fixture.OfClass("b")), sets{fixture.Set("a", 0, fixture.Reports(1, 0)), fixture.Set("b", 3)}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"not scaled yet":              {fixture.Deployment(3), sets{fixture.Set("a", 2)}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"no set yet":                  {fixture.Deployment(3, fixture.Recreate, fixture.OfClass("b")), sets{fixture.Set("a", 0, fixture.Reports(2, 0))}, nil, []string{too, "Progressing=True MachineSetUpdated"}},

		"complete before: scaling does not start a rollout":          {fixture.Deployment(5, wasComplete), sets{fixture.Set("a", 3)}, nil, []string{"Progressing=True NewMachineSetAvailable", too}},
		"complete before: a failed machine does not start a rollout": {fixture.Deployment(5, wasComplete), sets{fixture.Set("a", 5, fixture.Reports(5, 4))}, nil, []string{"Progressing=True NewMachineSetAvailable", available}},
		"complete before, with another template":                     {fixture.Deployment(5, wasComplete, fixture.OfClass("b")), sets{fixture.Set("a", 0), fixture.Set("b", 5, fixture.Reports(5, 4), fixture.OfRevision("2"))}, nil, []string{"Progressing=True MachineSetUpdated", available}},
		"complete before, and a rollout has begun":                   {fixture.Deployment(5, wasComplete), sets{fixture.Set("b", 5), fixture.Set("a", 1, fixture.Reports(1, 0))}, nil, []string{"Progressing=True MachineSetUpdated", available}},

		"preserved machines need not be available": {fixture.Deployment(3, fixture.Rolling("1", "0")), sets{fixture.Set("a", 3, fixture.Reports(3, 2), fixture.PreservedFailed(1))}, nil, []string{available, "Progressing=True MachineSetUpdated"}},
		"recreate allows none to be missing":       {fixture.Deployment(3, fixture.Recreate), sets{fixture.Set("a", 3, fixture.Reports(3, 2))}, nil, []string{too, "Progressing=True MachineSetUpdated"}},

		"paused":                  {fixture.Deployment(3, fixture.Paused, wasComplete), sets{fixture.Set("a", 3)}, nil, []string{"Progressing=Unknown DeploymentPaused", available}},
		"resumed, and complete":   {fixture.Deployment(3, was("DeploymentPaused", "")), sets{fixture.Set("a", 3)}, nil, []string{"Progressing=True NewMachineSetAvailable", available}},
		"in place":                {fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 3)}, nil, []string{available, "Progressing=False NotSupported"}},
		"in place, MCM has begun": {fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.OfClass("b")), sets{fixture.Set("a", 2), fixture.Set("b", 1)}, nil, []string{available, "Progressing=False NotSupported"}},
		"in place, complete":      {fixture.Deployment(3, fixture.InPlace("0", "1")), sets{fixture.Set("a", 3), fixture.Set("b", 0)}, nil, []string{available, "Progressing=True NewMachineSetAvailable"}},

		"a set cannot be created": {fixture.Deployment(3), nil, fmt.Errorf("%w: no", rollout.ErrCreate), []string{too, "Progressing=False MachineSetCreateError"}},
		"a set cannot be scaled":  {fixture.Deployment(3), sets{fixture.Set("a", 2)}, errors.New("no"), []string{available, "Progressing=False MachineSetUpdateError"}},
		"a name is taken":         {fixture.Deployment(3), nil, rollout.ErrNameTaken, []string{too, "Progressing=True MachineSetUpdated"}},

		"the current set fails": {fixture.Deployment(3, fixture.OfClass("b")), sets{fixture.Set("a", 3, failing("FailedDelete")), fixture.Set("b", 1, failing("FailedCreate"))}, nil, []string{available, "Progressing=True MachineSetUpdated", "ReplicaFailure=True FailedCreate"}},
		"an old set fails":      {fixture.Deployment(3, fixture.OfClass("b")), sets{fixture.Set("a", 3, failing("FailedDelete")), fixture.Set("b", 1)}, nil, []string{available, "Progressing=True MachineSetUpdated", "ReplicaFailure=True FailedDelete"}},
	} {
		t.Run(reason, func(t *testing.T) {
			var got []string
			for _, c := range nextStatus(rollout.NewFacts(test.deployment, test.sets, fixture.Noon), test.failure).Conditions {
				got = append(got, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
				if c.Message == "" && c.Type != v1alpha1.MachineDeploymentReplicaFailure {
					t.Errorf("%s has no message", c.Type)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestConditions_CreatedSetIsReported(t *testing.T) {
	t.Parallel()
	o := rollout.Outcome{Created: fixture.Set("a", 3, fixture.Reports(0, 0))}
	for _, c := range Next(rollout.New(rollout.NewFacts(fixture.Deployment(3), nil, fixture.Noon)), o).Conditions {
		if c.Type == v1alpha1.MachineDeploymentProgressing && c.Reason != "NewMachineSetCreated" {
			t.Errorf("got %+v", c)
		}
	}
}

// TestConditions_KeepTransitionTimes checks that the transition time belongs to the status, and that an unchanged
// condition keeps its times.
func TestConditions_KeepTransitionTimes(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(3, fixture.Rolling("1", "0"), recorded("1"))
	status := func(minute int, set *v1alpha1.MachineSet) map[string][2]int {
		f := rollout.NewFacts(deployment, sets{set}, fixture.Noon.Add(time.Duration(minute)*time.Minute))
		deployment.Status = nextStatus(f, nil)
		times := map[string][2]int{}
		for _, c := range deployment.Status.Conditions {
			times[string(c.Type)] = [2]int{int(c.LastTransitionTime.Sub(fixture.Noon).Minutes()), int(c.LastUpdateTime.Sub(fixture.Noon).Minutes())}
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
		{fixture.Set("a", 3, fixture.Reports(3, 1)), map[string][2]int{"Available": {0, 0}, "Progressing": {0, 0}}},
		{fixture.Set("a", 3, fixture.Reports(3, 2)), map[string][2]int{"Available": {0, 0}, "Progressing": {0, 1}}}, // the deadline counts from here
		{fixture.Set("a", 3), map[string][2]int{"Available": {2, 2}, "Progressing": {0, 2}}},
		{fixture.Set("a", 3, failing), map[string][2]int{"Available": {2, 2}, "Progressing": {0, 2}, "ReplicaFailure": {3, 3}}},
		{fixture.Set("a", 3, failing), map[string][2]int{"Available": {2, 2}, "Progressing": {0, 2}, "ReplicaFailure": {3, 3}}},
		{fixture.Set("a", 3), map[string][2]int{"Available": {2, 2}, "Progressing": {0, 2}}},
		{fixture.Set("a", 3, fixture.Reports(3, 1)), map[string][2]int{"Available": {6, 6}, "Progressing": {0, 2}}},
	} {
		if diff := cmp.Diff(step.want, status(minute, step.set)); diff != "" {
			t.Errorf("minute %d: want - got +\n%s", minute, diff)
		}
	}
}

func TestStatus_FailedMachines(t *testing.T) {
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
		return nextStatus(rollout.NewFacts(fixture.Deployment(3, fixture.OfClass("b")), sets, fixture.Noon), nil).FailedMachines
	}
	if got := list(fixture.Set("a", 1), fixture.Set("b", 2)); got != nil {
		t.Errorf("none failed, got %v", got)
	}
	got := list(fixture.Set("b", 2, named("y")), fixture.Set("a", 1, named("x", "z")))
	var names []string
	for _, m := range got {
		names = append(names, m.OwnerRef+"/"+m.Name)
	}
	if diff := cmp.Diff("pool-a/x pool-a/z pool-b/y", strings.Join(names, " ")); diff != "" {
		t.Error(diff)
	}
	current := fixture.Set("b", 2, named("y", "z"))
	got = list(fixture.Set("a", 1, named(many...)), current)
	if len(got) != 100 || got[99].LastOperation.Description != "no (and at least 2 more failed machines)" {
		t.Errorf("%d are listed, the last description is %q", len(got), got[len(got)-1].LastOperation.Description)
	}
}

func TestStatus_AfterFailure(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(3)
	deployment.Generation, deployment.Status.ObservedGeneration = 5, 4
	got := nextStatus(rollout.NewFacts(deployment, nil, fixture.Noon), rollout.ErrNameTaken)
	if got.ObservedGeneration != 4 || ptr.Deref(got.CollisionCount, 0) != 1 {
		t.Errorf("got %+v", got)
	}
	deployment.Status.CollisionCount = got.CollisionCount
	if next := nextStatus(rollout.NewFacts(deployment, nil, fixture.Noon), rollout.ErrNameTaken); *next.CollisionCount != 2 || *got.CollisionCount != 1 {
		t.Errorf("collisions: %d, before %d", *next.CollisionCount, *got.CollisionCount)
	}
	if next := nextStatus(rollout.NewFacts(deployment, nil, fixture.Noon), errors.New("other")); *next.CollisionCount != 1 {
		t.Errorf("collisions: %d after another failure", *next.CollisionCount)
	}
}

// TestStatus_ObservedGenerationWaitsForReserve checks that the observed generation does not advance while a
// Machine cannot be marked, because a set was not scaled as requested.
func TestStatus_ObservedGenerationWaitsForReserve(t *testing.T) {
	t.Parallel()
	f := rollout.NewFacts(fixture.Deployment(3), sets{fixture.Set("a", 3)}, fixture.Noon)
	var o rollout.Outcome
	o.Unmarked = append(o.Unmarked, rollout.ErrMark)
	if got := Next(rollout.New(f), o).ObservedGeneration; got != 0 {
		t.Errorf("the observed generation is %d", got)
	}
}

// TestStatus_UnavailableIsNeverNegative checks that surplus machines, which exist for a while, do not make the
// number of unavailable replicas negative.
func TestStatus_UnavailableIsNeverNegative(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct {
		sets sets
		want int32
	}{
		"some are missing":         {sets{fixture.Set("a", 3, fixture.Reports(3, 1))}, 2},
		"some are too many":        {sets{fixture.Set("a", 1, fixture.Reports(4, 4))}, 0},
		"an old set has some left": {sets{fixture.Set("a", 3), fixture.Set("b", 0, fixture.Reports(2, 2))}, 0},
	} {
		if got := nextStatus(rollout.NewFacts(fixture.Deployment(3), test.sets, fixture.Noon), nil).UnavailableReplicas; got != test.want {
			t.Errorf("%s: %d unavailable, want %d", reason, got, test.want)
		}
	}
}
