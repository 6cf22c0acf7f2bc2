package virtualmachine

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// runSteps start a hypervisor for a VM and keep it while it is alive.
func (c *Controller) runSteps() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "ObservePods", Run: c.pods.observe},
		{Name: "Elect", Run: c.election.elect},
		{Name: "RecordPod", Run: c.pods.record},
		{Name: "LabelPods", Run: c.pods.label},
		{Name: "WatchLease", Run: c.leases.watch},
		{Name: "Fence", Run: c.fencing.fence},
		{Name: "Migrate", Run: c.migrations.advance},
		{Name: "RemoveOtherPods", Run: c.pods.removeOthers},
		{Name: "RemoveOtherClaims", Run: c.volumes.removeOtherClaims},
		{Name: "StayStopped", Run: c.stayStopped},
		{Name: "ServeDisks", Run: c.diskServers.serve},
		{Name: "GrowDisks", Run: c.volumes.growDisks},
		{Name: "ConfirmLabels", Run: c.pods.confirmLabels},
		{Name: "KeepRunningPod", Run: c.pods.keepRunning},
		{Name: "Validate", Run: c.pods.validate},
		{Name: "AssignAddresses", Run: c.addresses.assign},
		{Name: "AwaitUserData", Run: c.pods.awaitUserData},
		{Name: "AdoptClaims", Run: c.volumes.adoptClaims},
		{Name: "EnsureClaim", Run: c.volumes.ensureClaim},
		{Name: "EnsureDataClaims", Run: c.volumes.ensureDataClaims},
		{Name: "EndRestore", Run: c.volumes.endRestore},
		{Name: "AwaitLease", Run: c.leases.await},
		{Name: "AwaitNextAttempt", Run: c.pods.awaitNextAttempt},
		{Name: "AwaitDisks", Run: c.diskServers.await},
		{Name: "AwaitRenewals", Run: c.leases.awaitRenewals},
		{Name: "Reserve", Run: c.pods.reserve},
		{Name: "FinishFence", Run: c.fencing.finish},
		{Name: "CreatePod", Run: c.pods.create},
	}
}

// deletionSteps delete the hypervisors of a VM, then its disk server, and then its disks.
func (c *Controller) deletionSteps() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "ObservePods", Run: c.pods.observe},
		{Name: "RefuseFence", Run: c.fencing.fence},
		{Name: "DeletePods", Run: c.pods.deleteAll},
		{Name: "DeleteServers", Run: c.diskServers.deleteAll},
		{Name: "DeleteClaims", Run: c.volumes.deleteClaims},
		{Name: "RemoveFinalizer", Run: c.removeFinalizer},
	}
}

func (c *Controller) run(ctx context.Context, s *scope) flow.Outcome {
	steps := c.runSteps()
	if !s.vm.DeletionTimestamp.IsZero() {
		if !controllerutil.ContainsFinalizer(s.vm, v1alpha1.Finalizer) {
			return flow.Outcome{} // only the finalizers of other controllers remain
		}
		steps = c.deletionSteps()
	}
	outcome := flow.Run(ctx, s, steps)
	if edge.Outdated(outcome.Err) || outcome.Done() && !s.vm.DeletionTimestamp.IsZero() {
		return outcome // the objects were outdated, or the VM is gone
	}
	failed := apierror.IgnoreGone(c.status.write(ctx, s, outcome.Err))
	if failed == nil && s.vm.DeletionTimestamp.IsZero() && !podstate.Alive(s.active) {
		outcome.Err = edge.Reported(outcome.Err) // the condition Ready reports it
	}
	outcome.Err = errors.Join(outcome.Err, failed)
	return outcome
}

// addFinalizer adds the finalizer, the annotations with this controller and the UID and, if the VM has none, a UUID. A
// new VM without pools also gets its addresses with the same write. If no address is free, AssignAddresses reports that.
func (c *Controller) addFinalizer(ctx context.Context, s *scope) flow.Result {
	before := s.vm.DeepCopy()
	isNew := controllerutil.AddFinalizer(s.vm, v1alpha1.Finalizer)
	c.cluster.installation.mark(s.vm)
	if s.vm.Annotations[v1alpha1.AnnotationUID] == "" {
		metav1.SetMetaDataAnnotation(&s.vm.ObjectMeta, v1alpha1.AnnotationUID, string(s.vm.UID))
	}
	if s.vm.Spec.UUID == "" {
		s.vm.Spec.UUID = string(uuid.NewUUID())
	}
	if isNew && len(ipam.Of(s.vm)) == 0 && len(s.vm.Spec.AddressesFromPools) == 0 && invalid(s.vm, c.cluster.settings()) == nil {
		if addresses, err := c.addresses.allocator.Allocate(s.vm, c.addresses.holders(ctx)); err == nil {
			annotateAddresses(s.vm, addresses)
		}
	}
	return flow.Fail(c.cluster.patch(ctx, s.vm, before))
}

func (c *Controller) removeFinalizer(ctx context.Context, s *scope) flow.Result {
	before := s.vm.DeepCopy()
	controllerutil.RemoveFinalizer(s.vm, v1alpha1.Finalizer)
	return flow.Fail(apierror.IgnoreGone(c.cluster.patch(ctx, s.vm, before)))
}
