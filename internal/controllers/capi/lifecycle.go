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
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/controllers/capi/translate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// lifecycle returns the steps from a MillwrightMachine's creation to a node.
func (c *Controller) lifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AwaitOwner", Run: c.awaitOwner},
		{Name: "LeaveOtherInstallation", Run: c.leaveOtherInstallation},
		{Name: "EndIfFailed", Run: c.endIfFailed},
		{Name: "AwaitCluster", Run: c.awaitCluster},
		{Name: "RespectPause", Run: c.respectPause},
		{Name: "Mark", Run: c.mark},
		{Name: "CheckProviderID", Run: c.checkProviderID},
		{Name: "AwaitClusterInfrastructure", Run: c.awaitClusterInfrastructure},
		{Name: "AwaitBootstrapData", Run: c.awaitBootstrapData},
		{Name: "EndIfUnwanted", Run: c.endIfUnwanted},
		{Name: "Gather", Run: c.gather},
		{Name: "HoldSecrets", Run: c.holdSecrets},
		{Name: "BeginCreation", Run: c.beginCreation},
		{Name: "EnsureInstance", Run: c.ensureInstance},
		{Name: "CheckInstance", Run: c.checkInstance},
		{Name: "AwaitNode", Run: c.awaitNode},
	}
}

// awaitOwner finds the Machine. Before there is one, nothing is done at all: the object may
// be one that Cluster API is about to own, or never will.
func (c *Controller) awaitOwner(ctx context.Context, s *scope) flow.Result {
	found, err := c.findOwner(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case !found:
		return flow.Stop("no Machine owns it")
	}
	return flow.Continue()
}

// endIfFailed leaves alone what is declared to be beyond help. Cluster API replaces it.
func (c *Controller) endIfFailed(ctx context.Context, s *scope) flow.Result {
	if s.machine.Status.FailureReason == nil && s.machine.Status.FailureMessage == nil {
		return flow.Continue()
	}
	if err := c.findCluster(ctx, s); err != nil {
		return flow.Fail(err)
	}
	if !core.Moved(s.machine) {
		s.markPaused(core.Paused(s.cluster, s.machine))
	}
	return flow.Stop("it has failed for good")
}

func (c *Controller) awaitCluster(ctx context.Context, s *scope) flow.Result {
	if err := c.findCluster(ctx, s); err != nil {
		return flow.Fail(err)
	}
	if s.cluster == nil {
		return s.await(infrav1.ReasonWaitingForCluster, "The Cluster of the Machine does not exist")
	}
	return flow.Continue()
}

func (c *Controller) respectPause(_ context.Context, s *scope) flow.Result {
	if core.Moved(s.machine) {
		return flow.Stop("it has been moved to another cluster")
	}
	if s.markPaused(core.Paused(s.cluster, s.machine)) {
		return flow.Stop("it is paused")
	}
	return flow.Continue()
}

// mark adds the finalizer, and has the object say that it is of a control plane, as providers
// of control planes do: without one, only the Machine says so.
func (c *Controller) mark(ctx context.Context, s *scope) flow.Result {
	news := controllerutil.AddFinalizer(s.machine, infrav1.Finalizer)
	if _, marked := s.machine.Labels[core.LabelControlPlane]; s.owner.ControlPlane() && !marked {
		metav1.SetMetaDataLabel(&s.machine.ObjectMeta, core.LabelControlPlane, "")
		news = true
	}
	if !news {
		return flow.Continue()
	}
	return flow.Fail(c.persistSpec(ctx, s))
}

// checkProviderID refuses to work with an ID that is not the VM's any more, and restores
// one that was cleared.
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

// checkOwner refuses an ID that was given beforehand and is another object's.
func (c *Controller) checkOwner(ctx context.Context, s *scope) flow.Result {
	ours := adapter{c, s}.Owner()
	other, err := c.instances().Owners.Conflicting(ctx, ours, ours.ProviderID)
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

// endIfUnwanted makes no VM for a Machine that is being deleted: that may be held by hooks
// for as long as they like. The VM of a creation that was begun is found when it is deleted.
func (c *Controller) endIfUnwanted(_ context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) || s.machine.Spec.ProviderID != "" || s.owner.DeletionTimestamp.IsZero() {
		return flow.Continue()
	}
	return s.await(infrav1.ReasonDeleting, "Machine "+s.owner.Name+" is being deleted, so no VM is made for it")
}

// slowRetry is when a pass comes again that waits for something which brings no event.
const slowRetry = 30 * time.Second

// gather collects what the driver gets. What is missing is nobody's end: it may come.
func (c *Controller) gather(ctx context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) {
		return flow.Continue()
	}
	if domain := s.owner.Spec.FailureDomain; domain != "" && !marks.Begun(s.machine) {
		s.machine.Spec.FailureDomain = domain
	}
	missed, err := c.collect(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case missed.message != "":
		s.restoreFailureDomain()
		s.refuse(missed.reason, missed.message)
		return flow.Wait(slowRetry, missed.message)
	case s.class != nil && !held(s.class):
		s.restoreFailureDomain()
		return awaitHeldClass(s)
	}
	return flow.Continue()
}

// restoreFailureDomain sets the failure domain back to what it was: before a creation is begun the Machine
// may yet name another one, or none.
func (s *scope) restoreFailureDomain() { s.machine.Spec.FailureDomain = s.stored.Spec.FailureDomain }

// awaitHeldClass waits for our finalizer on the class: without it the class could vanish
// while a VM is made from it.
func awaitHeldClass(s *scope) flow.Result {
	if !s.class.DeletionTimestamp.IsZero() {
		return s.refuse(infrav1.ReasonMachineClassMissing, fmt.Sprintf("MachineClass %q of spec.machineClassRef is being deleted", s.class.Name))
	}
	return flow.Wait(0, "the class to be held by our finalizer")
}

// beginCreation leaves a mark before the driver is asked for the first time. Without it
// nobody could tell, at deletion, whether there may be a VM.
func (c *Controller) beginCreation(ctx context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) {
		return flow.Continue()
	}
	s.creating()
	if _, marked := s.machine.Annotations[infrav1.AnnotationCreationBegun]; marked {
		return flow.Continue()
	}
	metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, infrav1.AnnotationCreationBegun, s.now.UTC().Format(time.RFC3339))
	metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, infrav1.AnnotationCreationSpec, marks.Digest(s.objects.Class))
	if c.Installation != "" {
		metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, infrav1.AnnotationInstallation, c.Installation)
	}
	if err := c.persistSpec(ctx, s); err != nil {
		return flow.Fail(err)
	}
	s.objects.Machine.Generation = s.machine.Generation
	return flow.Continue()
}

// prepare makes the Secret with which a VM is created: with the bootstrap data as its user
// data, unchanged.
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
		return translate.WithUserData(secret, data.Data), nil
	}
}

// awaitNode says whether the VM became a node. That it did not is for Cluster API to act
// upon, if for anybody.
func (c *Controller) awaitNode(_ context.Context, s *scope) flow.Result {
	if s.owner.HasNode() {
		s.joined()
		return flow.Continue()
	}
	since := s.waitingForNodeSince()
	if c.begun.After(since) {
		since = c.begun
	}
	left := since.Add(c.JoinTimeout).Sub(s.now)
	s.notJoined(left <= 0, c.JoinTimeout)
	return flow.Wait(max(left, 0), "the VM to become a node")
}
