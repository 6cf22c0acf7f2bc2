package drain

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Report says how far a drain is.
type Report struct {
	// Done tells that there is nothing left to do. A forced drain that is done is no
	// success: attachments of the node have to be deleted before its VM.
	Done bool
	// Force says why the drain is forced; NotForced if it is not.
	Force Force
	// NodeGone tells that the Node does not exist, so that nothing can be awaited.
	NodeGone bool
	// Started is what this pass began: evictions, and deletions with their reasons.
	Started []Action
	// Waiting is what is awaited, sorted by pod.
	Waiting []Waiting
	// Failed is what goes wrong, sorted by pod. It is tried again.
	Failed []Failure
	// Left names the pods that were still there when a forced drain was done.
	Left []types.NamespacedName
	// Unawaited says of volumes why their detachment is not awaited, in sentences that
	// are sorted. Volumes that need no waiting are not among them.
	Unawaited []string
	// Wait is when to look again at the latest; zero if only an event brings anything new.
	Wait time.Duration
}

// Action is a request that a pass has started.
type Action struct {
	Pod types.NamespacedName
	// Forced tells that the pod is deleted without regard to budgets and grace.
	Forced bool
	// Reason says why it is forced; empty for an eviction.
	Reason string
}

// Cause is what is awaited.
type Cause string

// The causes.
const (
	// ForAnswer is an API server that has not answered yet.
	ForAnswer Cause = "answer"
	// ForPod is a pod that has to end.
	ForPod Cause = "pod"
	// ForBudget is a PodDisruptionBudget that allows no eviction now; Object names it as
	// "namespace/name", or is empty if it is not known yet.
	ForBudget Cause = "budget"
	// ForIdentity is a provider that has to say how it calls the pod's volumes.
	ForIdentity Cause = "identity"
	// ForTurn is another pod with volumes that leaves first.
	ForTurn Cause = "turn"
	// ForDetach is a volume, named by Object, that has to be detached from the node.
	ForDetach Cause = "detach"
	// ForReattach is a volume, named by Object, that has to be attached to another node.
	ForReattach Cause = "reattach"
)

// Waiting is one thing that is awaited.
type Waiting struct {
	For Cause
	// Pod is the one concerned. It may be gone already.
	Pod types.NamespacedName
	// Object names what is awaited beside the pod, as For says.
	Object string
	// Since is when the wait began; zero for ForAnswer, ForTurn and ForIdentity.
	Since time.Time
	// Next is when the wait ends or something is tried again; zero if an event decides.
	Next time.Time
}

// String says what is awaited, in the same words at every pass.
func (w Waiting) String() string {
	switch w.For {
	case ForAnswer:
		return fmt.Sprintf("the API server to answer about pod %s", w.Pod)
	case ForBudget:
		if w.Object == "" {
			return fmt.Sprintf("a pod disruption budget to allow the eviction of pod %s", w.Pod)
		}
		return fmt.Sprintf("pod disruption budget %s to allow the eviction of pod %s", w.Object, w.Pod)
	case ForIdentity:
		return fmt.Sprintf("the provider to identify the volumes of pod %s", w.Pod)
	case ForTurn:
		return fmt.Sprintf("the turn of pod %s", w.Pod)
	case ForDetach:
		return fmt.Sprintf("volume %s of pod %s to be detached", w.Object, w.Pod)
	case ForReattach:
		return fmt.Sprintf("volume %s of pod %s to be attached to another node", w.Object, w.Pod)
	default:
		return fmt.Sprintf("pod %s to end", w.Pod)
	}
}

// Failure is something that goes wrong with a pod.
type Failure struct {
	Pod types.NamespacedName
	// Text is a sentence without its full stop. That of a misconfigured budget is the one
	// which Gardener looks for.
	Text string
	// Since is when the pod's first request failed, or when its time to end was over.
	Since time.Time
}

// Forced says, in one line, which pods this pass began to delete without regard to budgets,
// and why each; empty if none.
func (r Report) Forced() string {
	var texts []string
	for _, action := range r.Started {
		if action.Forced {
			texts = append(texts, fmt.Sprintf("%s (%s)", action.Pod, action.Reason))
		}
	}
	return inShort(texts, ", ")
}

// Problem is what goes wrong, in one line and in the same words at every pass; empty if
// nothing does.
func (r Report) Problem() string {
	var texts []string
	for _, failure := range r.Failed {
		texts = append(texts, failure.Text)
	}
	return inShort(texts, "; ")
}

// Summary is what is awaited, in one line; empty if nothing is. Pods that wait for their
// turn are counted only.
func (r Report) Summary() string {
	var texts []string
	turns := 0
	for _, w := range r.Waiting {
		if w.For == ForTurn {
			turns++
			continue
		}
		texts = append(texts, w.String())
	}
	summary := inShort(texts, ", ")
	if turns > 0 {
		summary += fmt.Sprintf(", then %d more with volumes", turns)
	}
	return strings.TrimPrefix(summary, ", then ")
}

// inShort joins the first texts, and says how many more there are.
func inShort(texts []string, separator string) string {
	const most = 5
	if len(texts) <= most {
		return strings.Join(texts, separator)
	}
	return strings.Join(texts[:most], separator) + fmt.Sprintf("%sand %d more", separator, len(texts)-most)
}
