package drain

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// index contains the Machines whose drains wait for an object, by the name of the object. So the cost of an event does not
// depend on the number of Pods in other drains. While many nodes are drained, thousands of events occur.
type index map[string]map[types.NamespacedName]bool

// move replaces the names under which a Machine is indexed.
func (i index) move(machine types.NamespacedName, from, to []string) {
	for _, name := range from {
		delete(i[name], machine)
		if len(i[name]) == 0 {
			delete(i, name)
		}
	}
	for _, name := range to {
		if i[name] == nil {
			i[name] = map[types.NamespacedName]bool{}
		}
		i[name][machine] = true
	}
}

func (i index) machines(name string) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(i[name]), compareKeys)
}

// reindex updates the indexes after a change of a drain's Pods. It ignores drains that have been forgotten.
func (d *Drainer) reindex(l *drainState) {
	if d.states[l.machine] != l {
		return
	}
	now := l.known()
	d.awaiting.move(l.machine, l.indexed.volumes, now.volumes)
	d.refused.move(l.machine, l.indexed.namespaces, now.namespaces)
	l.indexed = now
}

// drop removes a drain.
func (d *Drainer) drop(machine types.NamespacedName) {
	if l := d.states[machine]; l != nil {
		d.awaiting.move(machine, l.indexed.volumes, nil)
		d.refused.move(machine, l.indexed.namespaces, nil)
		delete(d.states, machine)
	}
}
