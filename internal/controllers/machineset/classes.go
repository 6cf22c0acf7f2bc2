package machineset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// classes contains the classes that new Machines of a set may have, in order of preference. It is empty if there
// is only one.
type classes struct {
	choices []scarcity.Choice
	skew    int
	spread  bool
	// outages contains the zones of the choices that have an outage.
	outages budget.Outages
}

// classesOf returns the usable classes for new Machines of a set. It returns none if the first choice does not
// exist; the new Machines then report that.
func (c *Controller) classesOf(ctx context.Context, f scale.Facts) (classes, error) {
	names := scarcity.OfSet(f.Set)
	if len(names) == 1 {
		return classes{}, nil
	}
	found := classes{}
	found.skew, found.spread = scarcity.MaxSkew(f.Set)
	for _, name := range names {
		class := &v1alpha1.MachineClass{}
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: f.Set.Namespace, Name: name}, class)
		switch {
		case apierrors.IsNotFound(err) && len(found.choices) == 0:
			return classes{}, nil
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return classes{}, fmt.Errorf("reading machine class %s: %w", name, err)
		}
		if len(found.choices) == 0 || scarcity.Unfit(found.choices[0].Class, class) == "" {
			found.choices = append(found.choices, scarcity.Choice{Class: class})
		}
	}
	found.count(f.Owned)
	found.findOutages(f, c.OutageMemory)
	return found, nil
}

// findOutages finds the zones in which all Machines are or were unhealthy, if the policy of the set is to replace
// them in other zones.
func (cs *classes) findOutages(f scale.Facts, memory time.Duration) {
	policy := budget.Of(f.Set)
	if policy == nil || policy.ZoneOutage != v1alpha1.ZoneOutageReplace {
		return
	}
	zones := map[string]string{}
	for _, choice := range cs.choices {
		if zone := scarcity.Zone(choice.Class); zone != "" {
			zones[choice.Class.Name] = zone
		}
	}
	pool := budget.Pool{Now: f.Now, Zone: func(machine *v1alpha1.Machine) string { return zones[machine.Spec.Class.Name] }}
	for _, machine := range f.Owned {
		pool.Members = append(pool.Members, budget.Member{Machine: machine})
	}
	cs.outages = pool.Outages(slices.Sorted(maps.Values(zones)), budget.OutagesOf(f.Set), memory)
	for i, choice := range cs.choices {
		_, cs.choices[i].Out = cs.outages[scarcity.Zone(choice.Class)]
	}
}

// changeOutages records in a set which zones have an outage. It does so before Machines are deleted, since
// afterwards nothing else shows the outage.
func (c *Controller) changeOutages(ctx context.Context, f scale.Facts, done *outcome) error {
	known := budget.OutagesOf(f.Set)
	if !f.Current || !f.Set.DeletionTimestamp.IsZero() || len(known) == 0 && !slices.ContainsFunc(f.Owned, budget.Unhealthy) {
		return nil
	}
	found, err := c.classesOf(ctx, f)
	if err != nil || found.outages.Equal(known) {
		return err
	}
	before := done.set.DeepCopy()
	found.outages.Annotate(done.set)
	return c.patchSet(ctx, done.set, before)
}

// count counts the Machines in each zone.
func (cs classes) count(machines []*v1alpha1.Machine) {
	if !cs.spread {
		return
	}
	byName := map[string]*v1alpha1.MachineClass{}
	for _, choice := range cs.choices {
		byName[choice.Class.Name] = choice.Class
	}
	for _, machine := range machines {
		if class := byName[machine.Spec.Class.Name]; class != nil && counts.Active(machine) {
			scarcity.Placed(cs.choices, class)
		}
	}
}

// next returns the class of the next Machine, and the cause if it is not the first choice.
func (cs classes) next(known *capacity.Memory) (class *v1alpha1.MachineClass, why string) {
	ordered := scarcity.Order(cs.choices, cs.skew, cs.spread)
	first := slices.IndexFunc(ordered, func(choice scarcity.Choice) bool { return known == nil || known.Claim(choice.Class) })
	class = ordered[max(0, first)].Class
	scarcity.Placed(cs.choices, class)
	switch preferred := cs.choices[0].Class; {
	case class == preferred:
	case cs.choices[0].Out:
		why = v1alpha1.CauseZoneOutage
	case known != nil && known.Out(preferred):
		why = v1alpha1.CauseNoCapacity
	default:
		why = v1alpha1.CauseZoneSpread
	}
	return class, why
}

// newMachines returns the next Machines of a set. The last ones, as many as excess, are marked as reserve.
func (c *Controller) newMachines(ctx context.Context, set *v1alpha1.MachineSet, from classes, size, excess int) []*v1alpha1.Machine {
	machines, locations := make([]*v1alpha1.Machine, size), map[string]string{}
	for i := range machines {
		machine := newMachine(set)
		if len(from.choices) > 0 {
			class, why := from.next(c.Capacity)
			scarcity.TakeOver(set, machine)
			scarcity.Give(machine, class.Name, why)
		}
		name := machine.Spec.Class.Name
		if _, known := locations[name]; !known && c.Location != nil {
			locations[name] = c.Location(ctx, machine)
		}
		setLocation(machine, locations[name])
		if i >= size-excess {
			machine.Spec = *reserve.Marked(&machine.Spec, reserve.MarkIn(set))
		}
		machines[i] = machine
	}
	return machines
}

// untouched records that no VM of a new Machine has been requested with its class yet.
func (c *Controller) untouched(ctx context.Context, machine *v1alpha1.Machine) {
	if c.Capacity == nil || machine.Annotations[v1alpha1.AnnotationKeyClassChoices] == "" {
		return
	}
	class := &v1alpha1.MachineClass{}
	if c.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Class.Name}, class) == nil {
		c.Capacity.Untouched(machine, class)
	}
}

// withClass adds to an operation's reason why Machines are created with another class than the first choice.
func withClass(op scale.Operation, set *v1alpha1.MachineSet, machine *v1alpha1.Machine) scale.Operation {
	first, class := set.Spec.Template.Spec.Class.Name, machine.Spec.Class.Name
	switch why := machine.Annotations[v1alpha1.AnnotationKeyClassReason]; why {
	case v1alpha1.CauseNoCapacity:
		op.Cause, op.Reason = why, fmt.Sprintf("%s, with class %s because class %s has no capacity", op.Reason, class, first)
	case v1alpha1.CauseZoneOutage:
		op.Cause, op.Reason = why, fmt.Sprintf("%s, with class %s because all machines in the zone of class %s were unhealthy", op.Reason, class, first)
	case v1alpha1.CauseZoneSpread:
		op.Cause, op.Reason = why, fmt.Sprintf("%s, with class %s because its zone has fewer machines than that of class %s", op.Reason, class, first)
	}
	return op
}
