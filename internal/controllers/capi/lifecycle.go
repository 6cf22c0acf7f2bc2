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

// lifecycle returns the steps from a MillwrightMachine's creation to a node.
func (c *Controller) lifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AwaitOwner", Run: c.awaitOwner},
		{Name: "LeaveOtherInstallation", Run: c.leaveOtherInstallation},
		{Name: "EndIfFailed", Run: c.endIfFailed},
		{Name: "AwaitCluster", Run: c.awaitCluster},
		{Name: "RespectPause", Run: c.respectPause},
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "CheckProviderID", Run: c.checkProviderID},
		{Name: "AwaitClusterInfrastructure", Run: c.awaitClusterInfrastructure},
		{Name: "AwaitBootstrapData", Run: c.awaitBootstrapData},
		{Name: "EndIfUnwanted", Run: c.endIfUnwanted},
		{Name: "ReadInputs", Run: c.awaitInputs},
		{Name: "HoldSecrets", Run: c.holdSecrets},
		{Name: "BeginCreation", Run: c.beginCreation},
		{Name: "EnsureInstance", Run: c.ensureInstance},
		{Name: "UpdateInstance", Run: c.updateInstance},
		{Name: "CheckInstance", Run: c.checkInstance},
		{Name: "AwaitNode", Run: c.awaitNode},
	}
}

// awaitOwner finds the Machine. Without one nothing is written: Cluster API may be about to adopt the
// object, or it never will.
func (c *Controller) awaitOwner(ctx context.Context, s *scope) flow.Result {
	if result := c.findOwners(ctx, s); result.Ends() {
		return result
	}
	if s.owner == nil {
		return flow.Stop("no Machine owns it")
	}
	return flow.Continue()
}

// endIfFailed leaves an object alone that has failed for good. Cluster API replaces it.
func (c *Controller) endIfFailed(_ context.Context, s *scope) flow.Result {
	if s.machine.Status.FailureReason == nil && s.machine.Status.FailureMessage == nil {
		return flow.Continue()
	}
	if !core.Moved(s.machine) {
		s.setPaused(core.Paused(s.cluster, s.machine))
	}
	return flow.Stop("it has failed for good")
}

func (c *Controller) awaitCluster(_ context.Context, s *scope) flow.Result {
	if s.cluster == nil {
		return s.await(infrav1.ReasonWaitingForCluster, "The Cluster of the Machine does not exist")
	}
	return flow.Continue()
}

func (c *Controller) respectPause(_ context.Context, s *scope) flow.Result {
	if core.Moved(s.machine) {
		return flow.Stop("it has been moved to another cluster")
	}
	paused := core.Paused(s.cluster, s.machine)
	s.setPaused(paused)
	if paused {
		return flow.Stop("it is paused")
	}
	return flow.Continue()
}

// addFinalizer adds the finalizer, and the label of control plane machines. Providers of control planes
// set that label; without such a provider only the Machine has it.
func (c *Controller) addFinalizer(ctx context.Context, s *scope) flow.Result {
	controllerutil.AddFinalizer(s.machine, infrav1.Finalizer)
	if s.owner.ControlPlane() && !metav1.HasLabel(s.machine.ObjectMeta, core.LabelControlPlane) {
		metav1.SetMetaDataLabel(&s.machine.ObjectMeta, core.LabelControlPlane, "")
	}
	return flow.Fail(c.persistSpec(ctx, s))
}

// checkProviderID refuses a provider ID that was changed, and restores one that was removed.
func (c *Controller) checkProviderID(ctx context.Context, s *scope) flow.Result {
	spec, status := &s.machine.Spec, &s.machine.Status
	switch {
	case status.ProviderID == "":
		return c.checkOwner(ctx, s)
	case spec.ProviderID == "":
		spec.ProviderID = status.ProviderID
	case spec.ProviderID != status.ProviderID:
		return s.refuse(infrav1.ReasonProviderIDChanged,
			fmt.Sprintf("spec.providerID was changed to %s, but the VM is %s; set it back", spec.ProviderID, status.ProviderID))
	}
	if status.Ready && s.notReadyFor(infrav1.ReasonProviderIDChanged) {
		s.provisioned()
	}
	return flow.Continue()
}

// checkOwner refuses a provider ID that a user set and that belongs to another object.
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
	return s.await(infrav1.ReasonWaitingForBootstrapData, "Machine "+s.owner.Name+" names no bootstrap data yet")
}

// endIfUnwanted creates no VM for a Machine that is being deleted: hooks may hold that Machine for any
// time. The VM of a creation that had begun is found when the object is deleted.
func (c *Controller) endIfUnwanted(_ context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) || s.machine.Spec.ProviderID != "" || s.owner.DeletionTimestamp.IsZero() {
		return flow.Continue()
	}
	return s.await(infrav1.ReasonDeleting, "Machine "+s.owner.Name+" is being deleted, so no VM is made for it")
}

// slowRetry is the time to the next reconcile if it waits for something that brings no event.
const slowRetry = 30 * time.Second

// awaitInputs reads the inputs of the driver. Before the creation has begun, the Machine may still change
// its failure domain, so that is stored together with the first mark.
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
	case missing == nil && (class == nil || held(class)):
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
	return flow.Wait(0, "the finalizer on the class, which could be deleted otherwise")
}

// holdSecrets adds the finalizer to the Secrets before the first call to the driver.
func (c *Controller) holdSecrets(ctx context.Context, s *scope) flow.Result {
	credentials := s.inputs.Credentials
	unheld := credentials != nil && credentials.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(credentials, infrav1.SecretFinalizer)
	if marks.Established(s.machine) || marks.Begun(s.machine) && !unheld {
		return flow.Continue()
	}
	return flow.Fail(c.Secrets.SettleAll(ctx, s.machine, true))
}

// beginCreation marks the object before the first call to the driver. Without the mark, the deletion
// could not know whether there may be a VM.
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
	s.locate(c.Engine.LocationOf(s.inputs.Class, s.inputs.Secret)) // if it is known, it needs no write of its own
	if c.Installation != "" {
		metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, infrav1.AnnotationInstallation, c.Installation)
	}
	if err := c.persistSpec(ctx, s); err != nil {
		return flow.Fail(err)
	}
	s.inputs.Machine.Generation = s.machine.Generation
	return flow.Continue()
}

// ensureInstance looks for the VM, and creates it if there never was one.
func (c *Controller) ensureInstance(ctx context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) {
		return flow.Continue()
	}
	return c.instances.Ensure(ctx, adapter{c, s})
}

// prepare returns the Secret of a creation: with the unchanged bootstrap data as its user data.
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
			return nil, fmt.Errorf("bootstrap data: Secret %s has no data under %q", name, core.BootstrapData)
		}
		return inputs.WithUserData(secret, data.Data), nil
	}
}

// awaitNode reports whether the VM became a node. If it did not, replacing it is left to a
// MachineHealthCheck.
func (c *Controller) awaitNode(_ context.Context, s *scope) flow.Result {
	if s.owner.HasNode() {
		s.set(infrav1.ConditionNodeJoined, metav1.ConditionTrue, infrav1.ReasonJoined, "")
		return flow.Continue()
	}
	since := s.now
	if ready := s.ready(); ready != nil {
		since = ready.LastTransitionTime.Time
	}
	if c.begun.After(since) {
		since = c.begun
	}
	left := since.Add(c.JoinTimeout).Sub(s.now)
	s.notJoined(left <= 0, c.JoinTimeout)
	return flow.Wait(max(left, 0), "the VM to become a node")
}
