package virtualmachine

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// migrate brings the migration under way a step further, or ends it. It never ends the pass but for an
// error: the VM's own life goes on.
func (c *Controller) migrate(ctx context.Context, p *pass) flow.Result {
	if !migration.UnderWay(&p.vm.Status) {
		return c.refuseOrder(ctx, p)
	}
	facts, err := c.migrationFacts(ctx, p)
	if err != nil {
		return flow.Fail(err)
	}
	decision := migration.Next(facts)
	if decision.After > 0 {
		c.enqueue(client.ObjectKeyFromObject(p.vm), decision.After+time.Millisecond)
	}
	switch {
	case decision.Failure != "":
		return c.failMigration(ctx, p, decision)
	case decision.CreateClaims:
		return c.createTargetClaims(ctx, p)
	case decision.CreatePod:
		return c.createTarget(ctx, p)
	case decision.RecordPod:
		return c.recordTarget(ctx, p, facts.Target)
	}
	return flow.Continue()
}

// refuseOrder removes the order for a migration that cannot be.
func (c *Controller) refuseOrder(ctx context.Context, p *pass) flow.Result {
	order, report := migration.OrderOf(p.vm), c.hypervisors.Report(p.vm)
	if !order.Given || report == nil || p.active == nil {
		return flow.Continue()
	}
	reason, message := migration.Obstacle(p.vm, p.active, report)
	if order.Node != "" && order.Node == p.active.Spec.NodeName {
		reason, message = migration.ObstacleSameNode, "The virtual machine is on node "+order.Node+" already."
	}
	if reason == migration.NoObstacle || reason == migration.ObstacleNotRunning {
		return flow.Continue()
	}
	if err := c.removeOrder(ctx, p); err != nil {
		return flow.Fail(err)
	}
	c.Events.Event(p.vm, corev1.EventTypeWarning, "MigrationRefused", message)
	return flow.Continue()
}

// sayRefused tells users why a VM that leaves its host is shut down.
func (c *Controller) sayRefused(ctx context.Context, key types.NamespacedName, why string) {
	vm := &v1alpha1.VirtualMachine{}
	if err := c.Client.Get(ctx, key, vm); err == nil {
		c.Events.Eventf(vm, corev1.EventTypeNormal, "NotMigrated", "The guest is shut down to leave its host: %s", why)
	}
}

func (c *Controller) migrationFacts(ctx context.Context, p *pass) (migration.Facts, error) {
	key, record := client.ObjectKeyFromObject(p.vm), p.vm.Status.Migration
	facts := migration.Facts{
		Status: &p.vm.Status, Source: p.active, Now: p.now, Ordered: migration.OrderOf(p.vm).Given,
		Report: c.hypervisors.Report(p.vm).GetMigration(), Incoming: c.hypervisors.Incoming(key, record.TargetPodName) != nil,
		Known: p.memory.target.of(fmt.Sprint(record.TargetPodName, " ", record.StartTime.Unix()), p.now),
	}
	var err error
	if facts.Target, err = c.target(ctx, p); err != nil || facts.Target != nil || p.active == nil {
		return facts, err
	}
	facts.Claims = true
	for _, claim := range podspec.CopiedClaims(p.vm, p.active) {
		usable, err := c.targetClaimUsable(ctx, p, claim.To)
		if err != nil || !usable {
			facts.Claims = false
			return facts, err
		}
	}
	return facts, nil
}

// target returns the Pod of the target, as the API server has it if the cache has not; nil if there is none.
func (c *Controller) target(ctx context.Context, p *pass) (*corev1.Pod, error) {
	name := p.vm.Status.Migration.TargetPodName
	for _, pod := range p.pods {
		if pod.Name == name {
			return pod, nil
		}
	}
	pod := &corev1.Pod{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: name}, pod)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading pod %s: %w", name, err)
	}
	if err != nil || !podstate.Owns(p.vm, pod) {
		return nil, nil
	}
	p.pods = append(p.pods, pod)
	return pod, nil
}

// targetClaimUsable reports whether a claim of the target is there, and has its volume or gets it with the Pod.
func (c *Controller) targetClaimUsable(ctx context.Context, p *pass, name string) (bool, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: name}, claim)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading claim %s: %w", name, err)
	}
	if err != nil || !podstate.Owns(p.vm, claim) || !claim.DeletionTimestamp.IsZero() || migration.InUse(&p.vm.Status, name) {
		return false, nil
	}
	return c.hasVolume(ctx, claim)
}

// hasVolume reports whether a claim is bound, or is bound with its Pod.
func (c *Controller) hasVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	if claim.Status.Phase == corev1.ClaimBound {
		return true, nil
	}
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	if name == "" {
		return false, nil
	}
	class := &storagev1.StorageClass{}
	if err := c.APIReader.Get(ctx, client.ObjectKey{Name: name}, class); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading storage class %s: %w", name, err)
	}
	return ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer, nil
}

// failMigration ends the migration under way. An order that is not tried again is removed before: a
// process that dies in between leaves none that nobody carries out.
func (c *Controller) failMigration(ctx context.Context, p *pass, decision migration.Decision) flow.Result {
	if migration.OrderOf(p.vm).Given && migration.Final(p.vm.Status.Migration, decision.Failure) {
		if err := c.removeOrder(ctx, p); err != nil {
			return flow.Fail(err)
		}
	}
	err := c.registry.Update(ctx, p.vm, func(status *v1alpha1.VirtualMachineStatus) {
		migration.Fail(status, decision.Failure, decision.Message, p.now)
	})
	if err != nil {
		return flow.Fail(err)
	}
	kind := corev1.EventTypeWarning
	if decision.Failure == migration.ReasonCancelled {
		kind = corev1.EventTypeNormal
	}
	record := p.vm.Status.Migration
	c.Events.Eventf(p.vm, kind, "MigrationFailed", "The migration to pod %s failed (%s): %s", record.TargetPodName, record.Reason, record.Message)
	return flow.Continue()
}

func (c *Controller) removeOrder(ctx context.Context, p *pass) error {
	before := p.vm.DeepCopy()
	delete(p.vm.Annotations, v1alpha1.AnnotationMigrate)
	return c.patch(ctx, p.vm, before)
}

// createTargetClaims creates the claims of the target's disks, after those of the disks that are copied.
func (c *Controller) createTargetClaims(ctx context.Context, p *pass) flow.Result {
	usable := true
	for _, copied := range podspec.CopiedClaims(p.vm, p.active) {
		is, err := c.createTargetClaim(ctx, p, copied)
		if err != nil {
			return flow.Fail(err)
		}
		usable = usable && is
	}
	if !usable {
		return flow.Continue()
	}
	return c.createTarget(ctx, p)
}

// createTargetClaim creates a claim, if it is not there, and reports whether it can be used. One that gets no volume, or
// is not ours, does not become so: the time limit ends the migration.
func (c *Controller) createTargetClaim(ctx context.Context, p *pass, copied podspec.CopiedClaim) (usable bool, err error) {
	source := &corev1.PersistentVolumeClaim{}
	if err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: copied.From}, source); err != nil {
		return false, fmt.Errorf("reading claim %s: %w", copied.From, err)
	}
	claim := podspec.TargetClaim(p.vm, copied, source)
	err = c.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return c.targetClaimUsable(ctx, p, copied.To)
	}
	if err != nil {
		return false, fmt.Errorf("creating claim %s: %w", claim.Name, err)
	}
	return c.hasVolume(ctx, claim)
}

// createTarget creates the Pod of the target, from the API server's object.
func (c *Controller) createTarget(ctx context.Context, p *pass) flow.Result {
	live, err := c.confirm(ctx, p)
	if err != nil {
		return flow.Fail(err)
	}
	pod, err := podspec.Target(live, p.active, c.settings)
	if err != nil {
		return flow.Fail(err)
	}
	if err := c.Client.Create(ctx, pod); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return flow.Continue() // of an earlier pass, or not ours: the time limit ends the migration
		}
		return flow.Fail(fmt.Errorf("creating pod %s: %w", pod.Name, err))
	}
	c.Events.Eventf(p.vm, corev1.EventTypeNormal, "Migrating", "Created pod %s, the target of a migration", pod.Name)
	p.vm, p.pods = live, append(p.pods, pod)
	return c.recordTarget(ctx, p, pod)
}

func (c *Controller) recordTarget(ctx context.Context, p *pass, pod *corev1.Pod) flow.Result {
	return flow.Fail(c.registry.Update(ctx, p.vm, func(status *v1alpha1.VirtualMachineStatus) {
		status.Migration.TargetPodUID = pod.UID
	}))
}

// removeOtherClaims deletes the disks that the VM has left, or those to which it did not get. While the
// one that the VM is said to have is not there, any other may be its disk, and stays.
func (c *Controller) removeOtherClaims(ctx context.Context, p *pass) flow.Result {
	if p.vm.Status.Migration == nil {
		return flow.Continue()
	}
	claims, err := c.ownClaims(ctx, p)
	if err != nil {
		return flow.Fail(err)
	}
	unused := slices.DeleteFunc(slices.Clone(claims), func(claim corev1.PersistentVolumeClaim) bool {
		return !isUnused(p.vm, &claim, claims, slices.Concat(p.pods, p.servers))
	})
	if len(unused) == 0 {
		return flow.Continue()
	}
	live, err := c.confirm(ctx, p)
	if err != nil {
		return flow.Fail(err)
	}
	pods := &corev1.PodList{}
	if err := c.APIReader.List(ctx, pods, client.InNamespace(p.vm.Namespace), ofVM(p.vm)); err != nil {
		return flow.Fail(fmt.Errorf("listing pods: %w", err))
	}
	for i := range unused {
		claim := &unused[i]
		if !isUnused(live, claim, claims, ownedPods(live, pods)) {
			continue
		}
		if err := c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
			return flow.Fail(fmt.Errorf("deleting claim %s: %w", claim.Name, err))
		}
	}
	return flow.Continue()
}

// isUnused reports whether a claim of a VM can go. all are those that it has.
func isUnused(vm *v1alpha1.VirtualMachine, claim *corev1.PersistentVolumeClaim, all []corev1.PersistentVolumeClaim, pods []*corev1.Pod) bool {
	there := func(name string) bool {
		return slices.ContainsFunc(all, func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == name })
	}
	if podspec.IsDataClaim(vm, claim) {
		return migration.UnusedDataClaim(&vm.Status, claim.Labels[v1alpha1.LabelDataDisk], claim.Name, there, pods, podspec.Claims)
	}
	return there(vm.Status.VolumeClaimName) && migration.UnusedClaim(&vm.Status, claim.Name, pods, podspec.Claims)
}
