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
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// longestEvent is how many bytes the message of an event may have.
const longestEvent = 1024

// perEvent splits the names of Machines into those of one event each. Failed Machines are all named,
// in as few events as hold them beside the reason: once they are gone, nothing else says why. Of
// others, one event names some.
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

// reportEach reports operations with the same reason together.
func (c *Controller) reportEach(ctx context.Context, set *v1alpha1.MachineSet, reason, verb string, done []planner.Operation) {
	names, ops := map[string][]string{}, map[string]planner.Operation{}
	for _, op := range done {
		names[op.Reason], ops[op.Reason] = append(names[op.Reason], op.Machine.Name), op
	}
	for _, why := range slices.Sorted(maps.Keys(names)) {
		for _, some := range perEvent(names[why], ops[why].Cause) {
			c.report(ctx, set, reason, verb, some, ops[why])
		}
	}
}

// report reports an operation in one event, annotated with the cause, and one log line.
func (c *Controller) report(ctx context.Context, set *v1alpha1.MachineSet, reason, verb string, names []string, op planner.Operation) {
	some := names[:min(5, len(names))]
	if op.Cause == v1alpha1.CauseMachineFailed {
		some = names
	}
	list := strings.Join(some, ", ")
	if more := len(names) - len(some); more > 0 {
		list = fmt.Sprintf("%s and %d more", list, more)
	}
	text := fmt.Sprintf("%s %s (%s): %s", verb, messages.Machines(len(names)), list, op.Reason)
	text = strings.ToValidUTF8(text[:min(len(text), longestEvent)], "")
	annotations := map[string]string{v1alpha1.EventAnnotationObjects: strings.Join(some, ",")}
	if op.Cause != "" {
		annotations[v1alpha1.EventAnnotationCause] = op.Cause
	}
	c.Events.AnnotatedEventf(set, annotations, corev1.EventTypeNormal, reason, "%s", text)
	ctrl.LoggerFrom(ctx).Info(verb+" machines", "count", len(names), "machines", list, "why", op.Reason)
}
