package orphans

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// split returns the VMs of a driver's list, and those that have no provider ID or no name, sorted: they would be
// deleted by the name of a Machine, which may have another VM.
func split(class Class, listed map[string]string) (instances []instance, unnamed []string) {
	for _, id := range slices.Sorted(maps.Keys(listed)) {
		switch name := listed[id]; {
		case id == "":
			unnamed = append(unnamed, fmt.Sprintf("one of the name %.100q without a provider ID", name))
		case name == "":
			unnamed = append(unnamed, fmt.Sprintf("%.100q without a name", id))
		default:
			instances = append(instances, instance{providerID: id, namespace: class.Class.Namespace, machine: name})
		}
	}
	return instances, unnamed
}

// sayUnnamed says of which VMs nobody takes care, once until they are others.
func (c *Collector) sayUnnamed(class Class, unnamed []string) {
	if len(unnamed) == 0 {
		delete(c.saidUnnamed, class.Key)
		return
	}
	const most = 5
	number, shown := len(unnamed), unnamed[:min(most, len(unnamed))]
	if more := number - most; more > 0 {
		shown = append(slices.Clone(shown), fmt.Sprintf("and %d more", more))
	}
	text := fmt.Sprintf("the driver lists VMs that cannot be told apart, so that they stay where nobody owns them: %d, namely %s", number, strings.Join(shown, ", "))
	if c.saidUnnamed[class.Key] == text {
		return
	}
	c.saidUnnamed[class.Key] = text
	c.Log.Info("The driver lists VMs without a provider ID or a name", "class", class.Class.Name, "number", number)
	c.Events.Event(class.Object, corev1.EventTypeWarning, reasonUnnamed, text)
}
