package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// otherClass explains why the class of the Machine is not its first choice. It returns an empty string if it is.
func (e *explainer) otherClass() string {
	first, class := scarcity.OfMachine(e.Machine)[0], e.Machine.Spec.Class.Name
	if first == class {
		return ""
	}
	switch e.Machine.Annotations[v1alpha1.AnnotationKeyClassReason] {
	case v1alpha1.CauseNoCapacity:
		return fmt.Sprintf(", with class %s because its first choice, class %s, had no capacity when it was created", class, first)
	case v1alpha1.CauseZoneSpread:
		return fmt.Sprintf(", with class %s because its zone had fewer machines than the zone of its first choice, class %s", class, first)
	}
	return ""
}

// fallingBack reports whether the Machine is waiting for capacity in its class, or has just been given another
// class.
func (e *explainer) fallingBack() bool {
	return e.last.Type == v1alpha1.MachineOperationCreate && e.last.State == v1alpha1.MachineStateProcessing &&
		e.message != "" && len(scarcity.OfMachine(e.Machine)) > 1
}

// ofClasses reports whether an event is about the selection of a Machine's class rather than about progress.
func ofClasses(event *corev1.Event) bool {
	return slices.Contains([]string{v1alpha1.CauseNoCapacity, v1alpha1.CauseCapacityBack, v1alpha1.CauseUnfitClass}, report.CauseOf(event))
}
