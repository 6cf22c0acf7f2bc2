package reserve

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Mark is how the nodes of a reserve are kept free.
type Mark string

const (
	// None is the mark of Machines that are for pods.
	None Mark = ""
	// NoSchedule keeps new pods away.
	NoSchedule Mark = "NoSchedule"
	// NoExecute also evicts the pods that are there.
	NoExecute Mark = "NoExecute"
)

// MarkOf returns the mark of a Machine by its spec.
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

// In reports whether a Machine is in a reserve, by its spec.
func In(spec *v1alpha1.MachineSpec) bool { return MarkOf(spec) != None }

// Rank is lower for Machines in a reserve, which give way first: no Pods run there.
func Rank(machine *v1alpha1.Machine) int {
	if In(&machine.Spec) {
		return 0
	}
	return 1
}

// MarkFor returns the mark that a Machine of a set is to have. One that is gone soon keeps its mark.
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

// Marked returns the spec of a template as it is for a Machine with a mark. Without one, it is the
// template itself.
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
