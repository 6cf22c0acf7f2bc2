package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Capacity is what is known of the capacity of classes. It is implemented by capacity.Memory.
type Capacity interface {
	For(machine *v1alpha1.Machine, class *v1alpha1.MachineClass, others []*v1alpha1.MachineClass) instance.Capacity
	Claim(class *v1alpha1.MachineClass) bool
	Next(classes []*v1alpha1.MachineClass) time.Duration
	Returned(class *v1alpha1.MachineClass) bool
	Untouched(machine *v1alpha1.Machine, class *v1alpha1.MachineClass)
	Forget(machine types.NamespacedName)
}

// capacity returns what the engine has to know of the capacity for the Machine; nil if it has no choice.
func (a adapter) capacity() instance.Capacity {
	if a.c.Capacity == nil || a.inputs.Class == nil {
		return nil
	}
	return a.c.Capacity.For(a.s.machine, a.inputs.Class, a.choices.Others)
}

// fallBack gives the Machine another class, if that follows from the failure. Nothing of the
// creation is left then, so the patch that changes the class lets go of the place where it began.
func (c *Controller) fallBack(ctx context.Context, a adapter, result *instance.Failed) (flow.Result, bool) {
	if result.Failure.Method != instance.MethodCreate || result.Failure.Code != codes.ResourceExhausted {
		return flow.Continue(), false
	}
	a.s.warnOfClass(a.choices.Problem)
	failed := a.s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed // and is replaced
	switch result.Fallback {
	case instance.NoFallback:
		return flow.Continue(), false
	case instance.FallsBackLater:
		a.s.fallsBackLater(a.inputs.Class.Name)
		return flow.Wait(result.Retry, "class "+a.inputs.Class.Name+" to have capacity"), true
	}
	for _, other := range a.choices.Others {
		if !failed && c.Capacity.Claim(other) {
			return c.giveClass(ctx, a, other, result.Failure), true
		}
	}
	if next := c.Capacity.Next(a.choices.Others); next > 0 {
		result.Retry = min(result.Retry, next)
	}
	return flow.Continue(), false
}

func (c *Controller) giveClass(ctx context.Context, a adapter, class *v1alpha1.MachineClass, failure *instance.Failure) flow.Result {
	s, was := a.s, a.s.machine.Spec.Class.Name
	changed := s.machine.DeepCopy()
	changed.Spec.Class.Name = class.Name
	location := c.Location(ctx, changed)
	err := c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		scarcity.Give(machine, class.Name, v1alpha1.CauseNoCapacity)
		delete(machine.Annotations, driver.AnnotationLocation)
		setLocation(machine, location)
	})
	if err != nil {
		return flow.Fail(err)
	}
	c.Capacity.Untouched(s.machine, class)
	s.fellBack(was, class.Name, failure.Err)
	return flow.Wait(0, "a VM of class "+class.Name)
}

// fallsBackLater records that the class has no capacity. Autoscalers do not read a code as long as another
// class is left.
func (s *scope) fallsBackLater(class string) {
	s.operation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing,
		fmt.Sprintf("%s: class %s has no capacity left, another one is taken unless that changes soon", descriptionCreating, class), "")
}

// fellBack says that the Machine has another class. What was said of the former one is not true any more.
func (s *scope) fellBack(from, to string, why error) {
	text := fmt.Sprintf("The VM is made with class %s, as %s has no capacity left: %v", to, from, why)
	s.events.Add(corev1.EventTypeNormal, reasonFellBack, passevents.Cause{Name: v1alpha1.CauseNoCapacity}, text)
	s.machine.Status.LastKnownState = ""
	if s.machine.Status.LastOperation.Description != "" {
		s.operation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing,
			fmt.Sprintf("%s with class %s, as %s has no capacity left", descriptionCreating, to, from), "")
	}
}

// warnOfClass says, once, why a class cannot be taken; nothing if it is empty.
func (s *scope) warnOfClass(problem string) {
	if problem != "" {
		why := passevents.Cause{Name: v1alpha1.CauseUnfitClass}
		s.events.WarnOnce(reasonUnfitClass, passevents.Event{Reason: reasonUnfitClass, Cause: why, Message: problem})
	}
}

// sayReturned says, once, that a class has capacity again.
func (c *Controller) sayReturned(a adapter) {
	if c.Capacity != nil && c.Capacity.Returned(a.inputs.Class) {
		a.s.events.Add(corev1.EventTypeNormal, reasonCapacityBack, passevents.Cause{Name: v1alpha1.CauseCapacityBack},
			fmt.Sprintf("Class %s has capacity again", a.inputs.Class.Name))
	}
}
