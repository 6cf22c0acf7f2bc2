package rollout

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func isPreserved(m *v1alpha1.Machine) {
	m.Status.CurrentStatus.PreserveExpiryTime = ptr.To(metav1.NewTime(noon.Add(time.Hour)))
}

// TestStatus_PreservedMachinesAreExtra checks that more machines of the current template than desired do
// not keep a rollout from being complete if all of the extra ones are preserved.
func TestStatus_PreservedMachinesAreExtra(t *testing.T) {
	additional := func(g *given) { g.set("a").Status.Replicas = 4 }
	others := func(g *given) {
		for _, machine := range g.machines {
			isPreserved(machine)
		}
	}
	for want, given := range map[Outcome]change{Complete: others, Progressing: func(*given) {}} {
		status := StatusOf(give(counts(4, 3, 4), additional, given, has("a", 1, v1alpha1.MachineFailed, isPreserved)).facts(), noon)
		if status.Outcome != want || (status.Preserved == 1) != (want == Complete) {
			t.Errorf("outcome %s, want %s; %d preserved", status.Outcome, want, status.Preserved)
		}
	}
}

// TestStatus_CountsMachinesOfCurrentTemplate checks that machines are not counted as updated while the status
// still describes an earlier template.
func TestStatus_CountsMachinesOfCurrentTemplate(t *testing.T) {
	other := declared(func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = "b" })
	for reason, so := range map[string]change{
		"not looked at": declared(func(d *v1alpha1.MachineDeployment) { d.Generation = 3 }),
		"refused":       progress(v1alpha1.ConditionFalse, "InvalidSpec", "spec.replicas: must not be negative"),
		"selects all":   progress(v1alpha1.ConditionFalse, "SelectingAll", "spec.selector: the empty selector selects all machines"),
	} {
		t.Run(reason, func(t *testing.T) {
			if s := StatusOf(give(other, so).facts(), noon); s.Updated != 0 || s.Available != 3 || s.Exist != 3 {
				t.Errorf("%d updated, %d available, %d exist", s.Updated, s.Available, s.Exist)
			}
		})
	}
}

// TestStatus_ShownMachineSets checks that the current set is first, whatever its revision, and that a set
// is shown if machines are desired but do not exist yet.
func TestStatus_ShownMachineSets(t *testing.T) {
	var names []string
	for _, set := range StatusOf(give(hasSet("old", 2, 2, 0), hasSet("idle", 3, 0, 0)).facts(), noon).Sets {
		names = append(names, set.Name)
	}
	if !slices.Equal(names, []string{"pool-a", "pool-old"}) {
		t.Errorf("shown: %q", names)
	}
}

// TestStatus_DeadlineStopsWhenRolloutIsComplete checks that later changes of the number of machines have
// no deadline.
func TestStatus_DeadlineStopsWhenRolloutIsComplete(t *testing.T) {
	s := StatusOf(give(due(600), progress(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonComplete, "done")).facts(), noon)
	if s.Limit != 10*time.Minute || !s.Deadline.IsZero() {
		t.Errorf("limit %s, deadline %s", s.Limit, s.Deadline)
	}
}

// TestStatus_EnoughAvailableIsNotAProblem checks that the Available condition, which most
// deployments have during a rollout, is not reported as a problem.
func TestStatus_EnoughAvailableIsNotAProblem(t *testing.T) {
	enough := hasCondition(v1alpha1.MachineDeploymentAvailable, v1alpha1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.")
	for _, wait := range StatusOf(give(rolls, enough).facts(), noon).Waits {
		if strings.Contains(wait.Text, "minimum availability") {
			t.Errorf("it waits for %q", wait.Text)
		}
	}
}

// TestFacts_KeepOnlyOwnedObjects checks that sets and machines of other deployments in the namespace are
// ignored.
func TestFacts_KeepOnlyOwnedObjects(t *testing.T) {
	g, other := give(hasSet("old", 0, 0, 0)), give()
	other.deployment.UID, other.sets = "other", nil
	hasSet("theirs", 1, 3, 3)(other)
	other.machines = nil
	has("theirs", 3, v1alpha1.MachineRunning)(other)
	f := FactsOf(g.deployment, values(append(other.sets, g.sets...)), values(append(other.machines, g.machines...)))
	var names []string
	for _, set := range f.Sets {
		names = append(names, set.Name)
	}
	if !slices.Equal(names, []string{"pool-old", "pool-a"}) || len(f.Machines) != 3 || len(f.Of(f.Sets[1])) != 3 {
		t.Errorf("sets %q, %d machines", names, len(f.Machines))
	}
}
