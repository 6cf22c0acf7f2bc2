package machineset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// byReason are the names of the Machines of operations by the reason of those.
func byReason(operations []operation) map[string][]string {
	names := map[string][]string{}
	for _, op := range operations {
		names[op.reason] = append(names[op.reason], op.machine.Name)
	}
	return names
}

// longestEvent is how long the text of an event may be. Of many Machines only some are named
// in it, and a provider's message may be cut.
const longestEvent = 1024

// perEvent splits names into those of one event each. Machines that failed are all named, in
// as few events as can hold them beside the reason: when they are gone, nothing else tells
// why. Of others, one event names some.
func perEvent(names []string, cause string) [][]string {
	const longest = longestEvent / 2
	if cause != v1alpha1.CauseMachineFailed {
		return [][]string{names}
	}
	var groups [][]string
	length := 0 // of the names of the last group
	for _, name := range names {
		length += len(name) + len(", ")
		if last := len(groups) - 1; last >= 0 && length <= longest {
			groups[last] = append(groups[last], name)
			continue
		}
		groups, length = append(groups, []string{name}), len(name)
	}
	return groups
}

// listed are the Machines that an event names: all that failed, and some of others.
func listed(names []string, cause string) []string {
	const most = 5
	if cause == v1alpha1.CauseMachineFailed {
		return names
	}
	return names[:min(most, len(names))]
}

// sayEach explains deletions of Machines, those with one reason together.
func (c *Controller) sayEach(ctx context.Context, set *v1alpha1.MachineSet, reason, verb string, done []operation) {
	names, causes := byReason(done), map[string]string{}
	for _, op := range done {
		causes[op.reason] = op.cause
	}
	for _, why := range slices.Sorted(maps.Keys(names)) {
		for _, some := range perEvent(names[why], causes[why]) {
			c.say(ctx, set, reason, verb, some, causes[why], why)
		}
	}
}

// say explains an operation in one event and one log line.
func (c *Controller) say(ctx context.Context, set *v1alpha1.MachineSet, reason, verb string, names []string, cause, why string) {
	some := listed(names, cause)
	list := strings.Join(some, ", ")
	if more := len(names) - len(some); more > 0 {
		list = fmt.Sprintf("%s and %d more", list, more)
	}
	text := fmt.Sprintf("%s %s (%s): %s", verb, messages.Machines(len(names)), list, why)
	text = strings.ToValidUTF8(text[:min(len(text), longestEvent)], "")
	annotations := map[string]string{v1alpha1.EventAnnotationObjects: strings.Join(some, ",")}
	if cause != "" {
		annotations[v1alpha1.EventAnnotationCause] = cause
	}
	c.Events.AnnotatedEventf(set, annotations, corev1.EventTypeNormal, reason, "%s", text)
	ctrl.LoggerFrom(ctx).Info(verb+" machines", "count", len(names), "machines", list, "why", why)
}
