package budget

import (
	"encoding/json"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// Outages are the zones in which new Machines of a set are not to be made, where Machines that are not healthy
// are replaced, by when that was seen. A set has them in an annotation: the Machines themselves may be gone
// before their successors are made.
type Outages map[string]metav1.Time

// OutagesOf returns the outages in the annotation of a set; none if it cannot be read.
func OutagesOf(set metav1.Object) Outages {
	text := set.GetAnnotations()[v1alpha1.AnnotationKeyZonesOut]
	if text == "" || len(text) > longestText {
		return nil
	}
	var outages Outages
	if json.Unmarshal([]byte(text), &outages) != nil {
		return nil
	}
	return outages
}

// Equal reports whether others are the same, seen at the same times.
func (o Outages) Equal(others Outages) bool {
	return maps.EqualFunc(o, others, func(a, b metav1.Time) bool { return a.Equal(&b) })
}

// Annotate writes the outages into the annotation of a set.
func (o Outages) Annotate(set metav1.Object) {
	annotations := maps.Clone(set.GetAnnotations())
	delete(annotations, v1alpha1.AnnotationKeyZonesOut)
	if text, err := json.Marshal(o); err == nil && len(o) > 0 {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[v1alpha1.AnnotationKeyZonesOut] = string(text)
	}
	set.SetAnnotations(annotations)
}

// Outages returns which ones of some zones are out. A zone is out if two or more of its Machines are unhealthy, also
// those that are being deleted, and none is healthy or may become so. A zone that was known to be out stays so as
// long as it has an unhealthy Machine, and for a time after the last one.
func (p Pool) Outages(zones []string, known Outages, memory time.Duration) Outages {
	outages := Outages{}
	for _, zone := range zones {
		unhealthy, others := p.unhealthy(zone)
		at, was := known[zone]
		age := p.Now.Sub(at.Time)
		was = was && age > -memory // a time in the future is not one
		switch {
		case others:
		case was && (unhealthy > 0 && age < memory/2 || unhealthy == 0 && age < memory):
			outages[zone] = at
		case unhealthy >= fewest, was && unhealthy > 0:
			outages[zone] = metav1.NewTime(p.Now.Truncate(time.Second)) // as it is written
		}
	}
	return outages
}

// unhealthy returns how many Machines of a zone are unhealthy, and whether another one is healthy or may become so.
// Those that are being deleted count if their nodes were not healthy.
func (p Pool) unhealthy(zone string) (count int, others bool) {
	for _, member := range p.Members {
		switch machine := member.Machine; {
		case p.zone(machine) != zone:
		case machine.DeletionTimestamp.IsZero() && !Unhealthy(machine):
			others = true
		case machine.DeletionTimestamp.IsZero() || !noderef.Healthy(machine.Status.Conditions, noderef.BadConditions(machine, noderef.DefaultBadConditions)):
			count++
		}
	}
	return count, others
}
