package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/controllers/machine/inplace"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

func (c *Controller) lifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "EnsureInstance", Run: c.ensureInstance},
		{Name: "UpdateInstance", Run: c.updateInstance},
		{Name: "AwaitNode", Run: c.awaitNode},
		{Name: "FollowNode", Run: c.followNode},
		{Name: "AwaitRegistration", Run: c.awaitRegistration},
		{Name: "SetCapacity", Run: c.setCapacity},
		{Name: "AdoptNode", Run: c.adoptNode},
		{Name: "RevokeToken", Run: c.revokeTokenOfJoined},
		{Name: "UpdateInPlace", Run: c.updateInPlace},
		{Name: "AssessHealth", Run: c.assessHealth},
	}
}

func (c *Controller) addFinalizer(ctx context.Context, s *scope) flow.Result {
	if controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerMCM) && !controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerLegacy) {
		return flow.Continue()
	}
	location := ""
	if driver.Location(s.machine) == "" && s.machine.Spec.ProviderID == "" {
		location = c.Location(ctx, s.machine)
	}
	return flow.Fail(c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		controllerutil.AddFinalizer(machine, v1alpha1.FinalizerMCM)
		controllerutil.RemoveFinalizer(machine, v1alpha1.FinalizerLegacy)
		setLocation(machine, location)
	}))
}

const defaultPriority = "3"

func (c *Controller) patchMachine(ctx context.Context, s *scope, change func(*v1alpha1.Machine)) error {
	changed := s.stored.DeepCopy()
	change(changed)
	if equality.Semantic.DeepEqual(s.stored, changed) {
		return nil
	}
	if err := c.written.Patch(ctx, c.Client, changed, s.stored); err != nil {
		return fmt.Errorf("patching machine %s: %w", s.machine.Name, err)
	}
	s.machine.ObjectMeta, s.machine.Spec = *changed.ObjectMeta.DeepCopy(), *changed.Spec.DeepCopy()
	s.stored = changed
	return nil
}

func (c *Controller) recordIdentity(ctx context.Context, s *scope, found instance.Instance, location string) error {
	if c.Target == nil {
		s.machine.Status.Addresses = mergeAddresses(s.machine.Status.Addresses, found)
	}
	return c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		machine.Spec.ProviderID = found.ProviderID
		if c.Target != nil {
			metav1.SetMetaDataLabel(&machine.ObjectMeta, v1alpha1.NodeLabelKey, found.NodeName)
		}
		if machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, defaultPriority)
		}
		if found.FailureDomain != "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyFailureDomain, found.FailureDomain)
		}
		setLocation(machine, location)
	})
}

// recordNode stores the node's name and the location unless they are empty, and the provider ID if the
// Machine has none.
func (c *Controller) recordNode(ctx context.Context, s *scope, found instance.Instance, location string) error {
	return c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		if machine.Spec.ProviderID == "" {
			machine.Spec.ProviderID = found.ProviderID
		}
		if found.NodeName != "" {
			metav1.SetMetaDataLabel(&machine.ObjectMeta, v1alpha1.NodeLabelKey, found.NodeName)
		}
		if found.FailureDomain != "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyFailureDomain, found.FailureDomain)
		}
		setLocation(machine, location)
	})
}

const criticalComponents = "critical components on the node"

const replacementRetry = 5 * time.Second

func (c *Controller) assessHealth(ctx context.Context, s *scope) flow.Result {
	s.noteConditions()
	phase := s.machine.Status.CurrentStatus.Phase
	if inplace.UpdatePhase(phase) {
		return c.awaitRecovery(ctx, s, "a node whose update failed")
	}
	if !noderef.Healthy(s.node.Status.Conditions, noderef.BadConditions(s.machine, c.NodeConditions)) {
		return c.unhealthy(ctx, s, phase)
	}
	if phase == v1alpha1.MachineFailed && inplace.Failed(s.node) {
		return flow.Wait(0, "the replacement of a node whose update failed")
	}
	if !noderef.CriticalComponentsReady(s.node) {
		switch phase {
		case v1alpha1.MachinePending:
			return c.awaitJoin(ctx, s, criticalComponents)
		case v1alpha1.MachineFailed: // perhaps for lack of them
			return flow.Wait(0, criticalComponents)
		}
	}
	if phase == v1alpha1.MachineRunning {
		return flow.Continue()
	}
	c.replacements.Release(s.key())
	if err := c.recordJoin(ctx, s); err != nil {
		return flow.Fail(err)
	}
	s.joined()
	return flow.Continue()
}

// recordJoin notes how long a new Machine took to join, for programs that choose timeouts. The status has its
// own request, which leaves annotations as they are, so that others may be spared another one.
func (c *Controller) recordJoin(ctx context.Context, s *scope) error {
	took, first := s.joinDuration()
	_, asked := s.machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]
	_, known := s.machine.Annotations[v1alpha1.AnnotationKeyMachineJoinDuration]
	if !first || known || !asked && !c.RecordJoins {
		return nil
	}
	return c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachineJoinDuration, took.String())
	})
}

func (c *Controller) unhealthy(ctx context.Context, s *scope, phase v1alpha1.MachinePhase) flow.Result {
	switch phase {
	case v1alpha1.MachinePending:
		return c.awaitJoin(ctx, s, "the node to be ready")
	case v1alpha1.MachineRunning, v1alpha1.MachineInPlaceUpdateSuccessful: // in MCM the latter has no time limit
		s.unknown(v1alpha1.CauseNodeUnhealthy,
			fmt.Sprintf("Machine %s is unhealthy - changing MachinePhase to Unknown. Node conditions: %s", s.machine.Name, describe(s.machine.Status.Conditions)))
	}
	return c.awaitRecovery(ctx, s, "the node to be healthy")
}

func (c *Controller) awaitJoin(ctx context.Context, s *scope, what string) flow.Result {
	left := c.creationTimeLeft(ctx, s)
	if !left.Over() {
		return flow.Wait(left.Wait, what)
	}
	usable, err := c.usable(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case usable:
		return flow.Wait(expectations.StaleCache, "the cache to show that the node has joined")
	}
	s.neverJoined(timeouts.Creation(s.machine, c.CreationTimeout).Duration)
	return flow.Wait(0, what)
}

func (c *Controller) awaitRecovery(ctx context.Context, s *scope, what string) flow.Result {
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineInPlaceUpdating {
		return c.awaitUpdate(ctx, s)
	}
	if !budget.MayTimeOut(s.machine.Status.CurrentStatus.Phase) || timeouts.HealthDisabled(s.machine) {
		return flow.Wait(0, what)
	}
	left := c.outages.Countdown(ctx, s.phaseBegan(), timeouts.Health(s.machine, c.Health.Timeout))
	if !left.Over() {
		return flow.Wait(left.Wait, what)
	}
	return c.giveUp(ctx, s, what)
}

// usable reads from the API server whether the node is healthy, as caches may lag and a replacement
// cannot be undone.
func (c *Controller) usable(ctx context.Context, s *scope) (bool, error) {
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	if c.Target == nil || name == "" || s.nodeOfOther {
		return false, nil
	}
	live, err := c.askForNode(ctx, name)
	if live == nil {
		return false, err
	}
	if inplace.UpdatePhase(s.machine.Status.CurrentStatus.Phase) { // not the node's health decides
		return inplace.Succeeded(live), nil
	}
	pending := s.machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending
	return noderef.Healthy(live.Status.Conditions, noderef.BadConditions(s.machine, c.NodeConditions)) && (!pending || noderef.CriticalComponentsReady(live)), nil
}

// askForNode reads a node from the API server; nil if there is none.
func (c *Controller) askForNode(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, outage.AnswerTimeout)
	defer cancel()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	if err := c.Target.Client().Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("asking for node %s before it is given up: %w", name, err)
	}
	live := &corev1.Node{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, live); err != nil {
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return live, nil
}
