package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// otherClass says why the Machine has another class than its first choice; empty if it has that.
func (e *explainer) otherClass() string {
	first, class := scarcity.OfMachine(e.Machine)[0], e.Machine.Spec.Class.Name
	if first == class {
		return ""
	}
	switch e.Machine.Annotations[v1alpha1.AnnotationKeyClassReason] {
	case v1alpha1.CauseNoCapacity:
		return fmt.Sprintf(", with class %s: class %s, its first choice, had no capacity left when it was made", class, first)
	case v1alpha1.CauseZoneSpread:
		return fmt.Sprintf(", with class %s: its zone had fewer machines than that of class %s, its first choice", class, first)
	}
	return ""
}

// fallingBack reports whether the Machine waits for a class that has no capacity, or has just got another
// one.
func (e *explainer) fallingBack() bool {
	return e.last.Type == v1alpha1.MachineOperationCreate && e.last.State == v1alpha1.MachineStateProcessing &&
		e.says != "" && len(scarcity.OfMachine(e.Machine)) > 1
}

// ofClasses reports whether an event is about the classes of a Machine, and not about how far it is.
func ofClasses(event *corev1.Event) bool {
	return slices.Contains([]string{v1alpha1.CauseNoCapacity, v1alpha1.CauseCapacityBack, v1alpha1.CauseUnfitClass}, report.CauseOf(event))
}
