package machine

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// fallbacks contains the classes that a Machine without a VM may use instead of its own.
type fallbacks struct {
	// classes lists the usable classes, in order of preference.
	classes []*v1alpha1.MachineClass
	// problem is why one of the other classes cannot be used; empty if all can.
	problem string
}

// versions identifies the current versions of the classes. It is empty if there are no classes.
func (f fallbacks) versions() string {
	text := ""
	for _, class := range f.classes {
		text += fmt.Sprintf("%s %s %d\n", class.Name, class.UID, class.Generation)
	}
	return text
}

// fallbacks returns the classes that a Machine may use instead of its own class.
func (r inputReader) fallbacks(ctx context.Context, machine *v1alpha1.Machine, class *v1alpha1.MachineClass) (fallbacks, error) {
	found := fallbacks{}
	for _, name := range scarcity.OfMachine(machine) {
		if name == class.Name {
			continue
		}
		other := machine.DeepCopy()
		other.Spec.Class.Name = name
		in, problem, err := r.ofMachine(ctx, other)
		if err != nil {
			return fallbacks{}, err
		}
		if in.class != nil {
			problem = cmp.Or(scarcity.Unfit(class, in.class), problem, in.invalid())
		}
		if problem == "" {
			found.classes = append(found.classes, in.class)
		} else if found.problem == "" {
			found.problem = fmt.Sprintf("Machines cannot fall back to class %s: %s", name, problem)
		}
	}
	return found, nil
}

// capacity returns what the engine needs to know about capacity. It is nil if Machines cannot fall back.
func (a adapter) capacity() instance.Capacity {
	if a.Capacity == nil || a.in.class == nil {
		return nil
	}
	return a.Capacity.For(a.s.machine, a.in.class, a.fallbacks.classes)
}

// fallBack gives the Machine another class if the failure requires it. In that case the creation has left
// nothing behind, so the patch that changes the class also removes the location.
func (a adapter) fallBack(ctx context.Context, result *instance.Failed) (flow.Result, bool) {
	if result.Failure.Method != instance.MethodCreate || result.Failure.Code != codes.ResourceExhausted {
		return flow.Continue(), false
	}
	a.s.warnOfClass(a.fallbacks.problem)
	failed := a.s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed // and will be replaced
	switch result.Fallback {
	case instance.NoFallback:
		return flow.Continue(), false
	case instance.FallsBackLater:
		a.s.fallsBackLater(a.in.class.Name)
		return flow.Wait(result.Retry, "class "+a.in.class.Name+" to have capacity"), true
	}
	for _, other := range a.fallbacks.classes {
		if !failed && a.Capacity.Claim(other) {
			return a.changeClass(ctx, other, result.Failure), true
		}
	}
	if next := a.Capacity.Next(a.fallbacks.classes); next > 0 {
		result.Retry = min(result.Retry, next)
	}
	return flow.Continue(), false
}

func (a adapter) changeClass(ctx context.Context, class *v1alpha1.MachineClass, failure *instance.Failure) flow.Result {
	s, before := a.s, a.s.machine.Spec.Class.Name
	changed := s.machine.DeepCopy()
	changed.Spec.Class.Name = class.Name
	location := a.location(ctx, changed)
	err := s.patch(ctx, func(machine *v1alpha1.Machine) {
		scarcity.Give(machine, class.Name, v1alpha1.CauseNoCapacity)
		delete(machine.Annotations, driver.AnnotationLocation)
		setLocation(machine, location)
	})
	if err != nil {
		return flow.Fail(err)
	}
	a.Capacity.Untouched(s.machine, class)
	s.fellBack(before, class.Name, failure.Err)
	return flow.Wait(0, "a VM of class "+class.Name)
}

// announceCapacity sends one event when a class has capacity again.
func (a adapter) announceCapacity() {
	if a.Capacity != nil && a.Capacity.Returned(a.in.class) {
		a.s.events.add(corev1.EventTypeNormal, reasonCapacityBack, cause{name: v1alpha1.CauseCapacityBack},
			fmt.Sprintf("Class %s has capacity again", a.in.class.Name))
	}
}

// fallsBackLater records that the class has no capacity. It sets no error code, since autoscalers would treat
// that as a failure although another class can be used.
func (s *scope) fallsBackLater(class string) {
	s.setOperation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing,
		fmt.Sprintf("%s: class %s has no capacity; another class is used unless that changes soon", descriptionCreating, class), "")
}

// fellBack records that the Machine has another class, and clears what was recorded about the previous one.
func (s *scope) fellBack(from, to string, why error) {
	text := fmt.Sprintf("Creating the VM with class %s because class %s has no capacity: %v", to, from, why)
	s.events.add(corev1.EventTypeNormal, reasonFellBack, cause{name: v1alpha1.CauseNoCapacity}, text)
	s.machine.Status.LastKnownState = ""
	if s.machine.Status.LastOperation.Description != "" {
		s.setOperation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing,
			fmt.Sprintf("%s with class %s because class %s has no capacity", descriptionCreating, to, from), "")
	}
}

// warnOfClass warns once that a fallback class cannot be used. It ignores an empty problem.
func (s *scope) warnOfClass(problem string) {
	if problem != "" {
		s.events.warnOnce(reasonUnfitClass, pendingEvent{reason: reasonUnfitClass, cause: cause{name: v1alpha1.CauseUnfitClass}, message: problem})
	}
}
