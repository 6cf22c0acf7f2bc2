package scale

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
)

// targets returns the action and the Machine of each operation.
func targets(operations []Operation) []string {
	var all []string
	for _, op := range operations {
		all = append(all, string(op.Action)+" "+op.Machine.Name)
	}
	return all
}

func TestAutoPreserve_DeletedMachineFreesItsPlace(t *testing.T) {
	t.Parallel()
	failed, auto := phase(v1alpha1.MachineFailed), annotated(v1alpha1.AnnotationKeyPreserve, preservation.AutoPreserved)
	set := newSet(1, func(set *v1alpha1.MachineSet) { set.Spec.AutoPreserveFailedMachineMax = 1 })
	kept := []*v1alpha1.Machine{machine("a", failed, auto, deleting), machine("b", failed)}
	got, _ := autoPreserve(Facts{Set: set, PreservationsCurrent: true, Now: noon}, kept, 0)
	if diff := cmp.Diff([]string{"preserve b"}, targets(got)); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// A Machine that is being deleted is not part of the surplus, also if it was just moved to the set.
func TestScaleDown_DeletedMachineThatMovedDoesNotReduceSurplus(t *testing.T) {
	t.Parallel()
	moved := labelled(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful)
	f := Facts{Set: newSet(1), Parent: newParent(1, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, ""), Now: noon}
	kept := []*v1alpha1.Machine{machine("a", moved, deleting), machine("b"), machine("c")}
	got := scaleDown(f, kept, 1)
	if diff := cmp.Diff([]string{"delete b"}, targets(got)); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
	if want := "1 surplus machine, 1 desired"; len(got) > 0 && got[0].Reason != want {
		t.Errorf("reason %q, want %q", got[0].Reason, want)
	}
}

func TestPlan_FreezesSetWithTooManyMachines(t *testing.T) {
	t.Parallel()
	for _, op := range Plan(Facts{Set: newSet(0), Owned: machines(9), Current: true, Now: noon, Overshoot: &Overshoot{Up: 2, Down: 1}}) {
		if op.Action == Freeze {
			return
		}
	}
	t.Error("the set is not frozen")
}

func TestWhyUpdate_DependsOnMarks(t *testing.T) {
	t.Parallel()
	none, noSchedule, noExecute := reserve.None, reserve.NoSchedule, reserve.NoExecute
	for name, test := range map[string]struct {
		is, mark reserve.Mark
		want     string
	}{
		"same mark, no reserve": {none, none, "the machine set has a different a, b"},
		"same mark, in reserve": {noExecute, noExecute, "the machine set has a different a, b"},
		"leaves the reserve":    {noSchedule, none, "it is needed for pods and is no longer in excess"},
		"joins the reserve":     {none, noExecute, "it is in excess of the desired replicas"},
		"another mark":          {noSchedule, noExecute, "the taints of excess machines changed"},
	} {
		m := machine("m", func(m *v1alpha1.Machine) { m.Spec = *reserve.Marked(&m.Spec, test.is) })
		if got := whyUpdate(Outdated{Machine: m, Differences: []string{"a", "b"}, Mark: test.mark}); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestSurge_DependsOnStrategy(t *testing.T) {
	t.Parallel()
	const rolling, inPlace = v1alpha1.RollingUpdateMachineDeploymentStrategyType, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
	bounds := func(surge int32) v1alpha1.UpdateConfiguration {
		return v1alpha1.UpdateConfiguration{MaxSurge: ptr.To(intstr.FromInt32(surge))}
	}
	two := &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: bounds(2)}
	three := &v1alpha1.InPlaceUpdateMachineDeployment{UpdateConfiguration: bounds(3)}
	for name, test := range map[string]struct {
		strategy v1alpha1.MachineDeploymentStrategy
		want     int
	}{
		"rolling":                         {v1alpha1.MachineDeploymentStrategy{Type: rolling, RollingUpdate: two, InPlaceUpdate: three}, 2},
		"rolling, default":                {v1alpha1.MachineDeploymentStrategy{Type: rolling}, 1},
		"rolling, only in-place settings": {v1alpha1.MachineDeploymentStrategy{Type: rolling, InPlaceUpdate: three}, 1},
		"in place":                        {v1alpha1.MachineDeploymentStrategy{Type: inPlace, RollingUpdate: two, InPlaceUpdate: three}, 3},
		"in place, default":               {v1alpha1.MachineDeploymentStrategy{Type: inPlace}, 1},
		"in place, only rolling settings": {v1alpha1.MachineDeploymentStrategy{Type: inPlace, RollingUpdate: two}, 1},
		"Recreate":                        {v1alpha1.MachineDeploymentStrategy{Type: v1alpha1.RecreateMachineDeploymentStrategyType, RollingUpdate: two, InPlaceUpdate: three}, 0},
		"negative":                        {v1alpha1.MachineDeploymentStrategy{Type: rolling, RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: bounds(-1)}}, 0},
	} {
		deployment := newParent(10, rolling, "")
		deployment.Spec.Strategy = test.strategy
		if got := surge(deployment); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
