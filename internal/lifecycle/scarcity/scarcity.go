// Package scarcity decides which classes a Machine may be created with, and in which order.
//
// A MachineDeployment lists fallback classes for the time when the class of its template has no capacity. Its
// sets have the list in an annotation, and each Machine has its choices in an annotation. The package is pure.
// Package capacity remembers which classes have no capacity.
package scarcity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Listed returns the names of a deployment's fallback classes, from its field or its annotation.
func Listed(deployment *v1alpha1.MachineDeployment) []string {
	if listed := deployment.Spec.FallbackClasses; len(listed) > 0 {
		return listed
	}
	return names(deployment.Annotations[v1alpha1.AnnotationKeyFallbackClasses])
}

// most is the maximum number of names that are read from a list: the fallback classes that a deployment may
// have, and its own class. Users can write longer annotations on sets and Machines.
const most = 17

// names returns the first names in a comma-separated list, without duplicates.
func names(text string) []string {
	if text == "" {
		return nil // the common case
	}
	var all []string
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
		if len(all) == most {
			break
		}
	}
	return all
}

// Assign writes to a set the fallback classes of its deployment, and how Machines are spread over zones. If
// there are no fallback classes, it removes the annotations.
func Assign(set *v1alpha1.MachineSet, deployment *v1alpha1.MachineDeployment) {
	listed := Listed(deployment)
	annotate := func(key, value string, is bool) {
		if is {
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, key, value)
		} else {
			delete(set.Annotations, key)
		}
	}
	skew, spread := MaxSkew(deployment)
	annotate(v1alpha1.AnnotationKeyFallbackClasses, strings.Join(listed, ","), len(listed) > 0)
	annotate(v1alpha1.AnnotationKeyZoneMaxSkew, strconv.Itoa(skew), len(listed) > 0 && spread)
}

// MaxSkew returns how many more Machines a zone may have than the zone with the fewest, from the annotation of
// a deployment or set. It also returns whether there is such a limit.
func MaxSkew(object metav1.Object) (int, bool) {
	skew, err := strconv.ParseInt(object.GetAnnotations()[v1alpha1.AnnotationKeyZoneMaxSkew], 10, 32)
	return int(skew), err == nil && skew > 0
}

// OfSet returns the names of the classes that a set's Machines may be created with, in order of preference. The
// first is the class of the template.
func OfSet(set *v1alpha1.MachineSet) []string {
	class := set.Spec.Template.Spec.Class
	choices := []string{class.Name}
	if class.Kind != v1alpha1.MachineClassKind {
		return choices
	}
	for _, name := range names(set.Annotations[v1alpha1.AnnotationKeyFallbackClasses]) {
		if !slices.Contains(choices, name) {
			choices = append(choices, name)
		}
	}
	return choices
}

// OfMachine returns the names of the classes that a Machine may be created with, in order of preference.
func OfMachine(machine *v1alpha1.Machine) []string {
	choices := names(machine.Annotations[v1alpha1.AnnotationKeyClassChoices])
	if len(choices) == 0 || machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		return []string{machine.Spec.Class.Name}
	}
	return choices
}

// Text returns the annotation value with the class choices for a set's Machines. It is empty if there is only
// one choice.
func Text(set *v1alpha1.MachineSet) string {
	choices := OfSet(set)
	if len(choices) == 1 {
		return ""
	}
	return strings.Join(choices, ",")
}

// Outdated reports whether a Machine without a VM has other choices than its set. With a VM, they no longer
// matter.
func Outdated(set *v1alpha1.MachineSet, machine *v1alpha1.Machine) bool {
	return machine.Spec.ProviderID == "" && machine.Annotations[v1alpha1.AnnotationKeyClassChoices] != Text(set)
}

// TakeOver writes the choices of a set to a Machine that has no VM yet.
func TakeOver(set *v1alpha1.MachineSet, machine *v1alpha1.Machine) {
	switch text := Text(set); {
	case machine.Spec.ProviderID != "":
	case text == "":
		delete(machine.Annotations, v1alpha1.AnnotationKeyClassChoices)
	default:
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyClassChoices, text)
	}
}

// Give assigns one of its choices to a Machine. If it is not the first choice, Give records why.
func Give(machine *v1alpha1.Machine, class, why string) {
	machine.Spec.Class.Name = class
	if OfMachine(machine)[0] == class {
		delete(machine.Annotations, v1alpha1.AnnotationKeyClassReason)
		return
	}
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyClassReason, why)
}

// Rank returns the index of a Machine's class among its choices, where 0 is the first choice.
func Rank(machine *v1alpha1.Machine) int {
	if machine.Annotations[v1alpha1.AnnotationKeyClassChoices] == "" {
		return 0 // the common case
	}
	return max(0, slices.Index(OfMachine(machine), machine.Spec.Class.Name))
}

// Unfit returns why Machines of a class cannot fall back to another class, or an empty string if they can.
func Unfit(class, other *v1alpha1.MachineClass) string {
	switch {
	case other.Provider != class.Provider:
		return fmt.Sprintf("MachineClass %q has provider %q, but MachineClass %q has provider %q", other.Name, other.Provider, class.Name, class.Provider)
	case !other.DeletionTimestamp.IsZero():
		return fmt.Sprintf("MachineClass %q is being deleted", other.Name)
	}
	return ""
}

// Zone returns the zone of a class's machines according to its node template. It is empty if the zone is
// unknown.
func Zone(class *v1alpha1.MachineClass) string {
	if class == nil || class.NodeTemplate == nil {
		return ""
	}
	return class.NodeTemplate.Zone
}
