package conditions

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
)

// Reasons of the condition RestartNeeded.
const (
	ReasonSpecChanged = "SpecChanged"
	ReasonCannotGrow  = "VolumeCannotGrow"
)

// restartNeeded sets the condition of what the guest lacks, or removes it.
func restartNeeded(vm *v1alpha1.VirtualMachine, o Observation, conditions *[]metav1.Condition, set func(metav1.Condition)) {
	if !podstate.Alive(o.Pod) || !podspec.Outdated(vm, o.Pod) {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionRestartNeeded)
		return
	}
	if o.Report == nil {
		return // what the last process saw stays
	}
	lacks, err := podspec.Lacks(vm, o.Pod, o.Report, o.Settings)
	if err != nil || len(lacks) == 0 {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionRestartNeeded)
		return
	}
	condition := metav1.Condition{
		Type: v1alpha1.ConditionRestartNeeded, Status: metav1.ConditionTrue, Reason: ReasonSpecChanged,
		Message: "At its next start the virtual machine gets: " + strings.Join(lacks, ", ") + ".",
	}
	if wrong := Invalid(vm, o.Settings); wrong != nil {
		condition.Reason, condition.Message = wrong.Reason, "The virtual machine could not start again: "+wrong.Message
	} else if o.NoGrowth != nil {
		condition.Reason, condition.Message = o.NoGrowth.Reason, condition.Message+" "+o.NoGrowth.Message
	}
	condition.Message = podstate.Truncate(condition.Message)
	set(condition)
}
