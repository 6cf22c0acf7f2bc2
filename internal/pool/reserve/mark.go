package reserve

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Mark is how the nodes of a reserve are kept free of Pods.
type Mark string

const (
	// None is the mark of Machines that are not in a reserve.
	None Mark = ""
	// NoSchedule prevents new Pods from being scheduled.
	NoSchedule Mark = "NoSchedule"
	// NoExecute also evicts running Pods.
	NoExecute Mark = "NoExecute"
)

// MarkOf returns the mark of a Machine, according to its spec.
func MarkOf(spec *v1alpha1.MachineSpec) Mark {
	mark := None
	for _, taint := range spec.NodeTemplateSpec.Spec.Taints {
		switch {
		case taint.Key != v1alpha1.TaintKeyExcess:
		case taint.Effect == corev1.TaintEffectNoExecute:
			return NoExecute
		default:
			mark = NoSchedule
		}
	}
	return mark
}

// In reports whether a Machine is in a reserve, according to its spec.
func In(spec *v1alpha1.MachineSpec) bool { return MarkOf(spec) != None }

// Rank returns a lower number for Machines in a reserve. They are deleted first because no Pods run there.
func Rank(machine *v1alpha1.Machine) int {
	if In(&machine.Spec) {
		return 0
	}
	return 1
}

// MarkFor returns the mark that a Machine of a set should have. A Machine that will be gone soon keeps its
// mark.
func (m Members) MarkFor(set *v1alpha1.MachineSet, machine *v1alpha1.Machine) Mark {
	switch {
	case !counted(machine):
		return MarkOf(&machine.Spec)
	case m[machine.UID]:
		return MarkIn(set)
	}
	return None
}

// MarkIn returns the mark of the Machines in a set's reserve.
func MarkIn(set *v1alpha1.MachineSet) Mark {
	if set.Annotations[v1alpha1.AnnotationKeyExcessNoExecute] == yes {
		return NoExecute
	}
	return NoSchedule
}

// Marked returns a copy of a template's spec for a Machine with a mark. For None, it returns the template
// itself.
func Marked(template *v1alpha1.MachineSpec, mark Mark) *v1alpha1.MachineSpec {
	if mark == None {
		return template
	}
	marked := template.DeepCopy()
	node := &marked.NodeTemplateSpec
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule}
	if mark == NoExecute {
		effects = append(effects, corev1.TaintEffectNoExecute)
	}
	for _, effect := range effects {
		taint := corev1.Taint{Key: v1alpha1.TaintKeyExcess, Value: yes, Effect: effect}
		if !slices.ContainsFunc(node.Spec.Taints, func(is corev1.Taint) bool { return is.MatchTaint(&taint) }) {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, yes)
	return marked
}
