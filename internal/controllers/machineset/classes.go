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
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// Capacity is what is known of the capacity of classes, see package capacity.
type Capacity interface {
	// Claim reports whether a class may be asked for a Machine now.
	Claim(class *v1alpha1.MachineClass) bool
	// Out reports whether a class is known to have no capacity.
	Out(class *v1alpha1.MachineClass) bool
	// Untouched notes that nothing was asked of the class of a new Machine yet.
	Untouched(machine *v1alpha1.Machine, class *v1alpha1.MachineClass)
}

// classes are those that the new Machines of a set may have, the first choice first; none if there is but
// one.
type classes struct {
	choices []scarcity.Choice
	skew    int
	spread  bool
	// outages are the zones of choices that are out.
	outages budget.Outages
}

// classesOf returns the classes of a set's new Machines that can be taken. If the first choice is
// missing, nothing is known of the others: the Machines say so.
func (c *Controller) classesOf(ctx context.Context, f scale.Facts) (classes, error) {
	names := scarcity.OfSet(f.Set)
	if len(names) == 1 {
		return classes{}, nil
	}
	of := classes{}
	of.skew, of.spread = scarcity.MaxSkew(f.Set)
	for _, name := range names {
		class := &v1alpha1.MachineClass{}
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: f.Set.Namespace, Name: name}, class)
		switch {
		case apierrors.IsNotFound(err) && len(of.choices) == 0:
			return classes{}, nil
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return classes{}, fmt.Errorf("reading machine class %s: %w", name, err)
		}
		if len(of.choices) == 0 || scarcity.Unfit(of.choices[0].Class, class) == "" {
			of.choices = append(of.choices, scarcity.Choice{Class: class})
		}
	}
	of.count(f.Owned)
	of.findOut(f, c.OutageMemory)
	return of, nil
}

// findOut finds the zones in which all Machines are unhealthy, or were, if they are to be replaced elsewhere.
func (of *classes) findOut(f scale.Facts, memory time.Duration) {
	policy := budget.Of(f.Set)
	if policy == nil || policy.ZoneOutage != v1alpha1.ZoneOutageReplace {
		return
	}
	zones := map[string]string{}
	for _, choice := range of.choices {
		if zone := scarcity.Zone(choice.Class); zone != "" {
			zones[choice.Class.Name] = zone
		}
	}
	pool := budget.Pool{Now: f.Now, Zone: func(machine *v1alpha1.Machine) string { return zones[machine.Spec.Class.Name] }}
	for _, machine := range f.Owned {
		pool.Members = append(pool.Members, budget.Member{Machine: machine})
	}
	of.outages = pool.Outages(slices.Sorted(maps.Values(zones)), budget.OutagesOf(f.Set), memory)
	for i, choice := range of.choices {
		_, of.choices[i].Out = of.outages[scarcity.Zone(choice.Class)]
	}
}

// changeOutages notes in a set which zones are out, before Machines are deleted: when the last one is gone,
// nothing else says it.
func (c *Controller) changeOutages(ctx context.Context, f scale.Facts, done *outcome) error {
	known := budget.OutagesOf(f.Set)
	if !f.Current || !f.Set.DeletionTimestamp.IsZero() || len(known) == 0 && !slices.ContainsFunc(f.Owned, budget.Unhealthy) {
		return nil
	}
	of, err := c.classesOf(ctx, f)
	if err != nil || of.outages.Equal(known) {
		return err
	}
	before := done.set.DeepCopy()
	of.outages.Annotate(done.set)
	return c.patchSet(ctx, done.set, before)
}

// count counts Machines in their zones.
func (of classes) count(machines []*v1alpha1.Machine) {
	if !of.spread {
		return
	}
	byName := map[string]*v1alpha1.MachineClass{}
	for _, choice := range of.choices {
		byName[choice.Class.Name] = choice.Class
	}
	for _, machine := range machines {
		if class := byName[machine.Spec.Class.Name]; class != nil && counts.Active(machine) {
			scarcity.Placed(of.choices, class)
		}
	}
}

// next returns the class of the next Machine, and why it is not the first choice.
func (of classes) next(known Capacity) (class *v1alpha1.MachineClass, why string) {
	ordered := scarcity.Order(of.choices, of.skew, of.spread)
	first := slices.IndexFunc(ordered, func(choice scarcity.Choice) bool { return known == nil || known.Claim(choice.Class) })
	class = ordered[max(0, first)].Class
	scarcity.Placed(of.choices, class)
	switch preferred := of.choices[0].Class; {
	case class == preferred:
	case of.choices[0].Out:
		why = v1alpha1.CauseZoneOutage
	case known != nil && known.Out(preferred):
		why = v1alpha1.CauseNoCapacity
	default:
		why = v1alpha1.CauseZoneSpread
	}
	return class, why
}

// newMachines returns the next Machines of a set, of which the last ones are in excess of what is for pods.
func (c *Controller) newMachines(ctx context.Context, set *v1alpha1.MachineSet, of classes, size, excess int) []*v1alpha1.Machine {
	machines, locations := make([]*v1alpha1.Machine, size), map[string]string{}
	for i := range machines {
		machine := newMachine(set)
		if len(of.choices) > 0 {
			class, why := of.next(c.Capacity)
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

// untouched notes that nothing was asked of the class of a new Machine yet.
func (c *Controller) untouched(ctx context.Context, machine *v1alpha1.Machine) {
	if c.Capacity == nil || machine.Annotations[v1alpha1.AnnotationKeyClassChoices] == "" {
		return
	}
	class := &v1alpha1.MachineClass{}
	if c.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Class.Name}, class) == nil {
		c.Capacity.Untouched(machine, class)
	}
}

// withClass says in an operation why Machines are created with another class than the first choice.
func withClass(op scale.Operation, set *v1alpha1.MachineSet, machine *v1alpha1.Machine) scale.Operation {
	first, class := set.Spec.Template.Spec.Class.Name, machine.Spec.Class.Name
	switch why := machine.Annotations[v1alpha1.AnnotationKeyClassReason]; why {
	case v1alpha1.CauseNoCapacity:
		op.Cause, op.Reason = why, fmt.Sprintf("%s, with class %s, as %s has no capacity left", op.Reason, class, first)
	case v1alpha1.CauseZoneOutage:
		op.Cause, op.Reason = why, fmt.Sprintf("%s, with class %s, as all machines in the zone of %s were unhealthy", op.Reason, class, first)
	case v1alpha1.CauseZoneSpread:
		op.Cause, op.Reason = why, fmt.Sprintf("%s, with class %s, as its zone has fewer machines than that of %s", op.Reason, class, first)
	}
	return op
}
