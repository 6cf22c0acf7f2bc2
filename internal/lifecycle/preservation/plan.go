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
	// Machine is the Machine with its new phase.
	Machine *v1alpha1.Machine
	// Node is the Machine's node, or nil if it has none.
	Node *corev1.Node
	// Hidden reports that the node cannot be read, so that its existence and state are unknown.
	Hidden bool
	// Timeout is how long a Machine is preserved.
	Timeout time.Duration
	Now     time.Time
}

// Action is the action of a Plan.
type Action string

const (
	// None changes neither the node nor the expiry.
	None Action = ""
	// Preserve begins or continues a preservation.
	Preserve Action = "preserve"
	// Stop removes a preservation.
	Stop Action = "stop"
)

// Plan describes the changes that a preservation requires.
type Plan struct {
	Action Action
	// Value is the effective annotation value of Machine and node.
	Value string
	// Own and LastApplied are the new values of the Machine's annotations. If empty, the annotation is removed.
	Own, LastApplied string
	// RemoveAnnotation removes the annotation of the node.
	RemoveAnnotation bool
	// Expiry is the Machine's new expiry, or nil for none.
	Expiry *metav1.Time
	// Invalid is a clause about an annotation with an invalid value. The clause begins with a noun without its
	// article. It is empty if there is no such annotation.
	Invalid string
}

// Concerns reports whether Decide is needed. Most Machines have never been preserved.
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
	_, requested := f.Node.Annotations[v1alpha1.AnnotationKeyPreserve]
	return requested
}

// Decide returns the plan for a Machine. The rules are MCM's, with two exceptions. If the annotation of the
// node is invalid, its last valid value applies, so that every preservation ends with its expiry. And a Failed
// Machine of a set keeps a past expiry until the set deletes it, so that the set does not preserve it again.
func Decide(f Facts) Plan {
	p := requested(f)
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
		p.Expiry = &metav1.Time{Time: f.Now.Add(f.Timeout).Truncate(time.Second)} // the resolution of the API
	}
	return p
}

// stop stops a preservation if there is one that was not already stopped.
func (p Plan) stop(f Facts, over, removeAnnotation bool) Plan {
	if f.Hidden {
		return p
	}
	if removeAnnotation {
		p.Own, p.LastApplied, p.RemoveAnnotation = "", "", hasNodeAnnotation(f)
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

// hasNodeAnnotation reports whether the node has the annotation other than from its node template. The template
// would add it again.
func hasNodeAnnotation(f Facts) bool {
	if f.Node == nil {
		return false
	}
	_, requested := f.Node.Annotations[v1alpha1.AnnotationKeyPreserve]
	_, template := f.Machine.Spec.NodeTemplateSpec.Annotations[v1alpha1.AnnotationKeyPreserve]
	return requested && !template
}

// requested returns what Machine and node request. The node's annotation overrides and replaces the Machine's,
// even if it was removed while no controller was running.
func requested(f Facts) Plan {
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
	requested := f.Node.Annotations[v1alpha1.AnnotationKeyPreserve]
	switch {
	case requested == "" && last == "":
		return ofMachine(own, "")
	case requested == "" || Valid(requested):
		return Plan{LastApplied: requested, Value: requested}
	case last == "":
		p := ofMachine(own, "")
		p.Invalid = invalid("node "+f.Node.Name, requested)
		return p
	}
	return Plan{LastApplied: last, Value: known(last), Invalid: invalid("node "+f.Node.Name, requested)}
}

func ofMachine(own, last string) Plan {
	p := Plan{Own: own, LastApplied: last, Value: known(own)}
	if own != "" && p.Value == "" {
		p.Invalid = invalid("the machine", own)
	}
	return p
}

// known returns a valid value, or an empty string for an invalid one.
func known(value string) string {
	if Valid(value) {
		return value
	}
	return ""
}

func invalid(whose, value string) string {
	return fmt.Sprintf("annotation %s of %s is %.64q, which is not one of %s and is ignored", v1alpha1.AnnotationKeyPreserve, whose, value, strings.Join(Values, ", "))
}
