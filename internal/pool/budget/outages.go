package budget

import (
	"encoding/json"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// Outages are the zones with an outage, each with the time when it was seen. A set creates no Machines there to
// replace unhealthy ones. A set stores its outages in an annotation, because the Machines themselves may be
// gone before their successors are created.
type Outages map[string]metav1.Time

// OutagesOf returns the outages in a set's annotation. It returns nil if the annotation cannot be parsed.
func OutagesOf(set metav1.Object) Outages {
	text := set.GetAnnotations()[v1alpha1.AnnotationKeyZonesOut]
	var outages Outages
	if len(text) > longestText || json.Unmarshal([]byte(text), &outages) != nil {
		return nil
	}
	return outages
}

// Equal reports whether both have the same outages, seen at the same times.
func (o Outages) Equal(others Outages) bool {
	return maps.EqualFunc(o, others, func(a, b metav1.Time) bool { return a.Equal(&b) })
}

// Annotate writes the outages to a set's annotation.
func (o Outages) Annotate(set metav1.Object) {
	annotations := maps.Clone(set.GetAnnotations())
	delete(annotations, v1alpha1.AnnotationKeyZonesOut)
	if len(o) > 0 {
		text, _ := json.Marshal(o) // cannot fail: strings and times
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[v1alpha1.AnnotationKeyZonesOut] = string(text)
	}
	set.SetAnnotations(annotations)
}

// Outages returns which of the given zones have an outage. A zone has an outage if two or more of its Machines
// are unhealthy, including Machines that are being deleted, and no Machine is healthy or may become healthy. A
// known outage continues while the zone has an unhealthy Machine, and for a time after the last one.
func (p Pool) Outages(zones []string, known Outages, memory time.Duration) Outages {
	outages := Outages{}
	for _, zone := range zones {
		unhealthy, others := p.unhealthy(zone)
		at, was := known[zone]
		age := p.Now.Sub(at.Time)
		was = was && age > -memory // times in the future are ignored
		switch {
		case others:
		case was && (age < memory/2 || unhealthy == 0 && age < memory):
			outages[zone] = at
		case unhealthy >= minUnhealthy, was && unhealthy > 0:
			outages[zone] = metav1.NewTime(p.Now.Truncate(time.Second)) // the resolution of the annotation
		}
	}
	return outages
}

// healthyNode reports whether the node of a Machine was healthy when its conditions were copied to the Machine.
func healthyNode(machine *v1alpha1.Machine) bool {
	conditions := machine.Status.Conditions
	return noderef.Reported(conditions) && noderef.Healthy(conditions, noderef.BadConditions(machine, noderef.DefaultBadConditions))
}

// unhealthy returns how many Machines of a zone are unhealthy, and whether any other Machine is healthy or may
// become healthy. Machines that are being deleted count if their nodes were unhealthy.
func (p Pool) unhealthy(zone string) (count int, others bool) {
	for _, member := range p.Members {
		switch machine := member.Machine; {
		case p.zone(machine) != zone:
		case machine.DeletionTimestamp.IsZero() && !Unhealthy(machine):
			others = true
		case machine.DeletionTimestamp.IsZero() || !healthyNode(machine):
			count++
		}
	}
	return count, others
}
