package preservation

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Facts are the input of a Plan.
type Facts struct {
	// Machine has the phase that it is to have.
	Machine *v1alpha1.Machine
	// Node is the Machine's; nil if there is none.
	Node *corev1.Node
	// Hidden reports that nobody knows whether there is a node, or how it is.
	Hidden bool
	// Timeout is how long a Machine is preserved.
	Timeout time.Duration
	Now     time.Time
}

// Action is what a Plan does.
type Action string

const (
	// None leaves the node and the expiry as they are.
	None Action = ""
	// Preserve begins or continues a preservation.
	Preserve Action = "preserve"
	// Stop ends a preservation.
	Stop Action = "stop"
)

// Plan is what a preservation changes.
type Plan struct {
	Action Action
	// Value is what counts of the annotations of Machine and node.
	Value string
	// Own and LastApplied are the Machine's annotations afterwards; empty is none.
	Own, LastApplied string
	// Unwish removes the annotation of the node.
	Unwish bool
	// Expiry is the Machine's expiry afterwards; nil is none.
	Expiry *metav1.Time
	// Invalid is a clause about an annotation with an invalid value, without the article that it begins
	// with; empty if there is none.
	Invalid string
}

// Concerns reports whether there is anything to decide: most Machines have never been preserved.
func Concerns(f Facts) bool {
	annotations := f.Machine.Annotations
	_, own := annotations[v1alpha1.AnnotationKeyPreserve]
	_, last := annotations[v1alpha1.AnnotationKeyLastAppliedPreserve]
	if own || last || f.Machine.Status.CurrentStatus.PreserveExpiryTime != nil {
		return true
	}
	if f.Node == nil {
		return false
	}
	_, wished := f.Node.Annotations[v1alpha1.AnnotationKeyPreserve]
	return wished
}

// Decide returns what to do about a Machine. The rules are MCM's, but for two. An invalid annotation of
// the node counts as its last valid one, and not as nothing to do, so that the expiry ends every
// preservation. And a Failed Machine of a set keeps an expiry that has passed, until the set deletes it,
// so that the set does not preserve it again.
func Decide(f Facts) Plan {
	p := wish(f)
	p.Expiry = f.Machine.Status.CurrentStatus.PreserveExpiryTime
	over := p.Expiry != nil && !f.Now.Before(p.Expiry.Time)
	switch {
	case p.Value == "" || p.Value == Never:
		return p.stop(f, over, false)
	case over:
		return p.stop(f, over, true)
	case p.Value == WhenFailed && !failed(f.Machine):
		return p.stop(f, over, false)
	case p.Value == AutoPreserved && !failed(f.Machine):
		return p.stop(f, over, true)
	}
	p.Action = Preserve
	if p.Expiry == nil {
		p.Expiry = &metav1.Time{Time: f.Now.Add(f.Timeout).Truncate(time.Second)} // as it is stored
	}
	return p
}

// stop ends a preservation if there is one, unless that was done.
func (p Plan) stop(f Facts, over, unwish bool) Plan {
	if f.Hidden {
		return p
	}
	if unwish {
		p.Own, p.LastApplied, p.Unwish = "", "", wishedBySomebody(f)
	}
	ended := over && failed(f.Machine) && metav1.GetControllerOfNoCopy(f.Machine) != nil
	if p.Expiry == nil || ended && Stopped(f.Node) {
		return p
	}
	p.Action = Stop
	if !ended {
		p.Expiry = nil
	}
	return p
}

// wishedBySomebody reports whether the node has the annotation, and not from the node template, which
// would bring it back.
func wishedBySomebody(f Facts) bool {
	if f.Node == nil {
		return false
	}
	_, wished := f.Node.Annotations[v1alpha1.AnnotationKeyPreserve]
	_, template := f.Machine.Spec.NodeTemplateSpec.Annotations[v1alpha1.AnnotationKeyPreserve]
	return wished && !template
}

// wish returns what Machine and node ask for. The node's annotation outranks the Machine's, which it
// then replaces, also if it was removed while nobody looked.
func wish(f Facts) Plan {
	own := f.Machine.Annotations[v1alpha1.AnnotationKeyPreserve]
	last := f.Machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve]
	switch {
	case f.Hidden && last != "":
		return Plan{Own: own, LastApplied: last, Value: known(last)}
	case f.Hidden:
		return ofMachine(own, last)
	case f.Node == nil:
		return ofMachine(own, "")
	}
	wished := f.Node.Annotations[v1alpha1.AnnotationKeyPreserve]
	switch {
	case wished == "" && last == "":
		return ofMachine(own, "")
	case wished == "" || Valid(wished):
		return Plan{LastApplied: wished, Value: wished}
	case last == "":
		p := ofMachine(own, "")
		p.Invalid = invalid("node "+f.Node.Name, wished)
		return p
	}
	return Plan{LastApplied: last, Value: known(last), Invalid: invalid("node "+f.Node.Name, wished)}
}

func ofMachine(own, last string) Plan {
	p := Plan{Own: own, LastApplied: last, Value: known(own)}
	if own != "" && p.Value == "" {
		p.Invalid = invalid("the machine", own)
	}
	return p
}

// known returns a valid value, and nothing for others.
func known(value string) string {
	if Valid(value) {
		return value
	}
	return ""
}

func invalid(whose, value string) string {
	return fmt.Sprintf("annotation %s of %s is %.64q, which is none of %s: it is ignored", v1alpha1.AnnotationKeyPreserve, whose, value, strings.Join(Values, ", "))
}
