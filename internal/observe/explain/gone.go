package explain

import (
	"slices"
	"strings"
)

// gone explains why there is no Machine of the name any more.
func (e *explainer) gone() {
	if !e.traced() {
		e.report.Why = nil
		e.answer(NotFound, "does not exist, and nothing tells that it ever did", nil)
		e.advise("Events are kept for an hour: look in the log of the manager, or in the API server's audit log, if it went before")
		e.similar(e.Owners.Names, e.Key.Name, "machines", e.Key.Namespace)
		return
	}
	if deleted := e.last("Machine", []string{"Deleted"}, e.mine); deleted != nil {
		e.report.Since = timeOf(deleted)
	}
	e.replaced()
	e.answer(Gone, "is gone", e.report.Replaced)
}

// traced reports whether anything speaks of the Machine.
func (e *explainer) traced() bool {
	for i := range e.Events {
		event := &e.Events[i]
		if event.InvolvedObject.Kind == "Machine" && event.InvolvedObject.Name == e.Key.Name || names(event.Message, e.Key.Name) {
			return true
		}
	}
	for _, summary := range e.summaries() {
		if summary.Name == e.Key.Name {
			return true
		}
	}
	return false
}

// similar names objects that may have been meant.
func (e *writer) similar(names []string, name, kind, namespace string) {
	const most = 5
	var near []string
	for _, other := range names {
		if strings.Contains(other, name) || strings.HasPrefix(other, poolName(name)) {
			near = append(near, other)
		}
	}
	slices.Sort(near)
	if len(near) > 0 {
		e.advise("Did you mean %s?", strings.Join(near[:min(most, len(near))], ", "))
	}
	if len(names) == 0 {
		e.advise("There are no %s in namespace %s at all: is it the right one (--namespace)?", kind, namespace)
	}
}

// poolName is a Machine's name without what its set has generated.
func poolName(machine string) string {
	if at := strings.LastIndexByte(machine, '-'); at > 0 {
		return machine[:at+1]
	}
	return machine
}
