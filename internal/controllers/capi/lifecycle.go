package capi

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// steps returns the steps for an object.
func (c *Controller) steps(machine *infrav1.MillwrightMachine) []flow.Step[*scope] {
	deleting := !machine.DeletionTimestamp.IsZero()
	switch {
	case !c.Drivers.Has(machine.Spec.Driver):
		return c.otherDriver(deleting)
	case deleting:
		return c.termination()
	}
	return c.lifecycle()
}

// lifecycle returns the steps from the creation of a MillwrightMachine until its VM is a node.
func (c *Controller) lifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AwaitOwner", Run: c.awaitOwner},
		{Name: "StopIfOtherInstallation", Run: c.stopIfOtherInstallation},
		{Name: "StopIfFailed", Run: c.stopIfFailed},
		{Name: "AwaitCluster", Run: c.awaitCluster},
		{Name: "RespectPause", Run: c.respectPause},
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "CheckProviderID", Run: c.checkProviderID},
		{Name: "AwaitClusterInfrastructure", Run: c.awaitClusterInfrastructure},
		{Name: "AwaitBootstrapData", Run: c.awaitBootstrapData},
		{Name: "StopIfOwnerDeleting", Run: c.stopIfOwnerDeleting},
		{Name: "ReadInputs", Run: c.awaitInputs},
		{Name: "ProtectSecrets", Run: c.protectSecrets},
		{Name: "BeginCreation", Run: c.beginCreation},
		{Name: "EnsureInstance", Run: c.ensureInstance},
		{Name: "UpdateInstance", Run: c.updateInstance},
		{Name: "CheckInstance", Run: c.checkInstance},
		{Name: "AwaitNode", Run: c.awaitNode},
	}
}

// awaitOwner finds the Machine. If there is none, nothing is written, because Cluster API may adopt the object later
// or never.
func (c *Controller) awaitOwner(ctx context.Context, s *scope) flow.Result {
	if result := c.findOwners(ctx, s); result.StopsPass() {
		return result
	}
	if s.owner == nil {
		return flow.Stop("no Machine owns the object")
	}
	return flow.Continue()
}

// stopIfFailed stops for an object that has failed permanently. Cluster API replaces it.
func (c *Controller) stopIfFailed(_ context.Context, s *scope) flow.Result {
	if s.machine.Status.FailureReason == nil && s.machine.Status.FailureMessage == nil {
		return flow.Continue()
	}
	if !core.Moved(s.machine) {
		s.setPaused(core.Paused(s.cluster, s.machine))
	}
	return flow.Stop("the object has failed permanently")
}

func (c *Controller) awaitCluster(_ context.Context, s *scope) flow.Result {
	if s.cluster == nil {
		return s.await(infrav1.ReasonWaitingForCluster, "The Cluster of the Machine does not exist")
	}
	return flow.Continue()
}

func (c *Controller) respectPause(_ context.Context, s *scope) flow.Result {
	if core.Moved(s.machine) {
		return flow.Stop("the object was moved to another cluster")
	}
	paused := core.Paused(s.cluster, s.machine)
	s.setPaused(paused)
	if paused {
		return flow.Stop("the object is paused")
	}
	return flow.Continue()
}

// addFinalizer adds the finalizer and, to control plane machines, their label. Control plane providers set that
// label; without such a provider, only the Machine has it.
func (c *Controller) addFinalizer(ctx context.Context, s *scope) flow.Result {
	controllerutil.AddFinalizer(s.machine, infrav1.Finalizer)
	if s.owner.ControlPlane() && !metav1.HasLabel(s.machine.ObjectMeta, core.LabelControlPlane) {
		metav1.SetMetaDataLabel(&s.machine.ObjectMeta, core.LabelControlPlane, "")
	}
	return flow.Fail(c.persistSpec(ctx, s))
}

// checkProviderID refuses a changed provider ID, and restores a removed one.
func (c *Controller) checkProviderID(ctx context.Context, s *scope) flow.Result {
	spec, status := &s.machine.Spec, &s.machine.Status
	switch {
	case status.ProviderID == "":
		return c.checkOwner(ctx, s)
	case spec.ProviderID == "":
		spec.ProviderID = status.ProviderID
	case spec.ProviderID != status.ProviderID:
		return s.refuse(infrav1.ReasonProviderIDChanged,
			fmt.Sprintf("spec.providerID was changed to %s, but the VM is %s; restore the original value", spec.ProviderID, status.ProviderID))
	}
	if status.Ready && s.notReadyFor(infrav1.ReasonProviderIDChanged) {
		s.provisioned()
	}
	return flow.Continue()
}

// checkOwner refuses a provider ID that a user has set if it belongs to another object.
func (c *Controller) checkOwner(ctx context.Context, s *scope) flow.Result {
	ours := adapter{c, s}.Owner()
	other, err := c.instances.Owners.Conflicting(ctx, ours, ours.ProviderID)
	if err != nil || other == nil {
		return flow.Fail(err)
	}
	return s.refuseOwned(ours.ProviderID, *other)
}

func (c *Controller) awaitClusterInfrastructure(_ context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) || s.cluster.HasInfrastructure() {
		return flow.Continue()
	}
	return s.await(infrav1.ReasonWaitingForClusterInfrastructure, "The infrastructure of Cluster "+s.cluster.Name+" is not ready")
}

func (c *Controller) awaitBootstrapData(_ context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) || s.owner.Spec.Bootstrap.DataSecretName != nil {
		return flow.Continue()
	}
	return s.await(infrav1.ReasonWaitingForBootstrapData, "Machine "+s.owner.Name+" has no bootstrap data yet")
}

// stopIfOwnerDeleting stops the creation of a VM if the Machine is being deleted. Hooks may delay that deletion for
// any time. If a creation has already begun, its VM is found when the object is deleted.
func (c *Controller) stopIfOwnerDeleting(_ context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) || s.machine.Spec.ProviderID != "" || s.owner.DeletionTimestamp.IsZero() {
		return flow.Continue()
	}
	return s.await(infrav1.ReasonDeleting, "Machine "+s.owner.Name+" is being deleted, so no VM is created for it")
}

// slowRetry is the time until the next reconcile pass if it waits for something that causes no event.
const slowRetry = 30 * time.Second

// awaitInputs reads the inputs of the driver. Before the creation has begun, the Machine may still change its failure
// domain, so the failure domain is stored together with the mark that the creation has begun.
func (c *Controller) awaitInputs(ctx context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) {
		return flow.Continue()
	}
	if domain := s.owner.Spec.FailureDomain; domain != "" && !marks.Begun(s.machine) {
		s.machine.Spec.FailureDomain = domain
	}
	missing, err := c.readInputs(ctx, s)
	class := s.inputs.MachineClass
	switch {
	case err != nil:
		return flow.Fail(err)
	case missing == nil && (class == nil || isProtected(class)):
		return flow.Continue()
	}
	s.machine.Spec.FailureDomain = s.stored.Spec.FailureDomain
	switch {
	case missing != nil:
		s.refuse(missing.Reason, missing.Message)
		return flow.Wait(slowRetry, missing.Message)
	case !class.DeletionTimestamp.IsZero():
		return s.refuse(infrav1.ReasonMachineClassMissing, fmt.Sprintf("MachineClass %q of spec.machineClassRef is being deleted", class.Name))
	}
	return flow.Wait(0, "the class has no finalizer yet")
}

// protectSecrets adds the finalizer to the Secrets before the first call to the driver.
func (c *Controller) protectSecrets(ctx context.Context, s *scope) flow.Result {
	credentials := s.inputs.Credentials
	unprotected := credentials != nil && credentials.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(credentials, infrav1.SecretFinalizer)
	if marks.Established(s.machine) || marks.Begun(s.machine) && !unprotected {
		return flow.Continue()
	}
	return flow.Fail(c.Secrets.SettleAll(ctx, s.machine, true))
}

// beginCreation marks the object before the first call to the driver. Without the mark, a deletion could not
// determine whether there may be a VM.
func (c *Controller) beginCreation(ctx context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) {
		return flow.Continue()
	}
	s.creating()
	if metav1.HasAnnotation(s.machine.ObjectMeta, infrav1.AnnotationCreationBegun) {
		return flow.Continue()
	}
	metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, infrav1.AnnotationCreationBegun, s.now.UTC().Format(time.RFC3339))
	metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, infrav1.AnnotationCreationSpec, marks.Digest(s.inputs.Class))
	s.locate(c.Engine.LocationOf(s.inputs.Class, s.inputs.Secret)) // a known location then needs no separate write
	if c.Installation != "" {
		metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, infrav1.AnnotationInstallation, c.Installation)
	}
	if err := c.persistSpec(ctx, s); err != nil {
		return flow.Fail(err)
	}
	s.inputs.Machine.Generation = s.machine.Generation
	return flow.Continue()
}

// ensureInstance searches for the VM, and creates it if it was never created.
func (c *Controller) ensureInstance(ctx context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) {
		return flow.Continue()
	}
	return c.instances.Ensure(ctx, adapter{c, s})
}

// prepare returns the Secret for a creation, with the unchanged bootstrap data as its user data.
func (c *Controller) prepare(namespace, name string, secret *corev1.Secret) func(context.Context) (*corev1.Secret, error) {
	return func(ctx context.Context) (*corev1.Secret, error) {
		data := &corev1.Secret{}
		err := c.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, data)
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("bootstrap data: Secret %s does not exist", name)
		case err != nil:
			return nil, fmt.Errorf("bootstrap data: reading Secret %s: %w", name, err)
		case len(data.Data[core.BootstrapData]) == 0:
			return nil, fmt.Errorf("bootstrap data: Secret %s has no data under key %q", name, core.BootstrapData)
		}
		return inputs.WithUserData(secret, data.Data), nil
	}
}

// awaitNode reports whether the VM became a node. If it does not, replacing it is the task of a MachineHealthCheck.
func (c *Controller) awaitNode(_ context.Context, s *scope) flow.Result {
	if s.owner.HasNode() {
		s.set(infrav1.ConditionNodeJoined, metav1.ConditionTrue, infrav1.ReasonJoined, "")
		return flow.Continue()
	}
	since := s.now
	if ready := s.ready(); ready != nil {
		since = ready.LastTransitionTime.Time
	}
	if c.startedAt.After(since) {
		since = c.startedAt
	}
	remaining := since.Add(c.JoinTimeout).Sub(s.now)
	s.notJoined(remaining <= 0, c.JoinTimeout)
	return flow.Wait(max(remaining, 0), "the VM is not a node yet")
}
