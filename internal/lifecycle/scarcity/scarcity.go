// Package scarcity says which classes a Machine may be made with, and in which order.
//
// A MachineDeployment lists classes to fall back to while that of its template has no capacity left. Its
// sets have the list in an annotation, and each Machine its choices. All of it is pure; package
// capacity remembers what has no capacity.
package scarcity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Listed returns the names of the classes that a deployment falls back to, by field or by annotation.
func Listed(deployment *v1alpha1.MachineDeployment) []string {
	if listed := deployment.Spec.FallbackClasses; len(listed) > 0 {
		return listed
	}
	return names(deployment.Annotations[v1alpha1.AnnotationKeyFallbackClasses])
}

// most is how many names of a list count: those that a deployment may fall back to, and its own class. Sets and
// Machines can be written by hand, with as many as fit into an annotation.
const most = 17

// names returns the first names in a list that is separated by commas, without one twice.
func names(text string) []string {
	if text == "" {
		return nil // nearly always
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

// Assign writes into a set which classes its deployment falls back to, and how it spreads Machines over
// zones. Without a list, the set has no annotation about it.
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

// MaxSkew returns how many more Machines a zone may have than the emptiest one, by the annotation of a
// deployment or set, and whether there is such a limit.
func MaxSkew(object metav1.Object) (int, bool) {
	skew, err := strconv.ParseInt(object.GetAnnotations()[v1alpha1.AnnotationKeyZoneMaxSkew], 10, 32)
	return int(skew), err == nil && skew > 0
}

// OfSet returns the names of the classes that a set's Machines may be made with, the first choice first,
// which is that of the template.
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

// OfMachine returns the same for a Machine.
func OfMachine(machine *v1alpha1.Machine) []string {
	choices := names(machine.Annotations[v1alpha1.AnnotationKeyClassChoices])
	if len(choices) == 0 || machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		return []string{machine.Spec.Class.Name}
	}
	return choices
}

// Text is the annotation with their choices that a set's Machines have; empty if there is but one.
func Text(set *v1alpha1.MachineSet) string {
	choices := OfSet(set)
	if len(choices) == 1 {
		return ""
	}
	return strings.Join(choices, ",")
}

// Outdated reports whether a Machine has other choices than its set, which matters until it has a VM.
func Outdated(set *v1alpha1.MachineSet, machine *v1alpha1.Machine) bool {
	return machine.Spec.ProviderID == "" && machine.Annotations[v1alpha1.AnnotationKeyClassChoices] != Text(set)
}

// TakeOver writes the choices of a set into a Machine that has no VM yet.
func TakeOver(set *v1alpha1.MachineSet, machine *v1alpha1.Machine) {
	switch text := Text(set); {
	case machine.Spec.ProviderID != "":
	case text == "":
		delete(machine.Annotations, v1alpha1.AnnotationKeyClassChoices)
	default:
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyClassChoices, text)
	}
}

// Give gives a Machine one of its choices, and notes why it is not the first one.
func Give(machine *v1alpha1.Machine, class, why string) {
	machine.Spec.Class.Name = class
	if OfMachine(machine)[0] == class {
		delete(machine.Annotations, v1alpha1.AnnotationKeyClassReason)
		return
	}
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyClassReason, why)
}

// Rank is the place of a Machine's class among its choices: 0 is the first one.
func Rank(machine *v1alpha1.Machine) int {
	if machine.Annotations[v1alpha1.AnnotationKeyClassChoices] == "" {
		return 0 // nearly always
	}
	return max(0, slices.Index(OfMachine(machine), machine.Spec.Class.Name))
}

// Unfit says why Machines of a class cannot fall back to another one; empty if they can.
func Unfit(class, other *v1alpha1.MachineClass) string {
	switch {
	case other.Provider != class.Provider:
		return fmt.Sprintf("MachineClass %q is of the provider %q, and MachineClass %q is of %q", other.Name, other.Provider, class.Name, class.Provider)
	case !other.DeletionTimestamp.IsZero():
		return fmt.Sprintf("MachineClass %q is being deleted", other.Name)
	}
	return ""
}

// Zone returns the zone that a class says its machines are in; empty if it does not say.
func Zone(class *v1alpha1.MachineClass) string {
	if class == nil || class.NodeTemplate == nil {
		return ""
	}
	return class.NodeTemplate.Zone
}
