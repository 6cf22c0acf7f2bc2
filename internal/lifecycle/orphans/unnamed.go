package orphans

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// split splits a driver's list into VMs and descriptions of VMs that have no provider ID or no name, both
// sorted. Without both, a VM would be deleted by the name of a Machine that may have another VM.
func split(class Class, listed map[string]string) (instances []instance, unnamed []string) {
	for _, id := range slices.Sorted(maps.Keys(listed)) {
		switch name := listed[id]; {
		case id == "":
			unnamed = append(unnamed, fmt.Sprintf("name %.100q without provider ID", name))
		case name == "":
			unnamed = append(unnamed, fmt.Sprintf("provider ID %.100q without name", id))
		default:
			instances = append(instances, instance{providerID: id, namespace: class.Class.Namespace, machine: name})
		}
	}
	return instances, unnamed
}

// reportUnnamed records an event about unnamed VMs whenever their list changes.
func (c *Collector) reportUnnamed(class Class, unnamed []string) {
	if len(unnamed) == 0 {
		delete(c.reportedUnnamed, class.Key)
		return
	}
	const most = 5
	number, shown := len(unnamed), unnamed[:min(most, len(unnamed))]
	if more := number - most; more > 0 {
		shown = append(slices.Clone(shown), fmt.Sprintf("and %d more", more))
	}
	text := fmt.Sprintf("the driver lists VMs without a name or provider ID, which are never removed as orphans: %d (%s)", number, strings.Join(shown, ", "))
	if c.reportedUnnamed[class.Key] == text {
		return
	}
	c.reportedUnnamed[class.Key] = text
	c.Log.Info("The driver lists VMs without a provider ID or a name", "class", class.Class.Name, "number", number)
	c.Events.Event(class.Object, corev1.EventTypeWarning, reasonUnnamed, text)
}
