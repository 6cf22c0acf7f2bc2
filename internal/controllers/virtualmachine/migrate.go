package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// migrations advances the live migrations of VMs.
type migrations struct {
	*cluster
	volumes *volumes
}

// advance takes the next step of the running migration, or fails the migration. Only an error makes it stop the pass,
// so that the VM is also reconciled while it migrates.
func (m *migrations) advance(ctx context.Context, s *scope) flow.Result {
	if !migration.UnderWay(&s.vm.Status) {
		return m.refuseOrder(ctx, s)
	}
	facts, err := m.facts(ctx, s)
	if err != nil {
		return flow.Fail(err)
	}
	decision := migration.Next(facts)
	if decision.After > 0 {
		m.queue.add(client.ObjectKeyFromObject(s.vm), decision.After+time.Millisecond)
	}
	switch {
	case decision.Failure != "":
		return m.fail(ctx, s, decision)
	case decision.CreateClaims:
		return m.createTargetClaims(ctx, s)
	case decision.CreatePod:
		return m.createTarget(ctx, s)
	case decision.RecordPod:
		return m.recordTarget(ctx, s, facts.Target)
	}
	return flow.Continue()
}

// refuseOrder removes a request for a migration that is impossible.
func (m *migrations) refuseOrder(ctx context.Context, s *scope) flow.Result {
	order, report := migration.OrderOf(s.vm), m.hypervisors.Report(s.vm)
	if !order.Given || report == nil || s.active == nil {
		return flow.Continue()
	}
	reason, message := migration.Obstacle(s.vm, s.active, report)
	if order.Node != "" && order.Node == s.active.Spec.NodeName {
		reason, message = migration.ObstacleSameNode, "The virtual machine is already on node "+order.Node+"."
	}
	if reason == migration.NoObstacle || reason == migration.ObstacleNotRunning {
		return flow.Continue()
	}
	if err := m.removeOrder(ctx, s); err != nil {
		return flow.Fail(err)
	}
	m.events.Event(s.vm, corev1.EventTypeWarning, "MigrationRefused", message)
	return flow.Continue()
}

// announceRefusal sends an event that explains why a VM that must leave its host is shut down instead of migrated.
func (m *migrations) announceRefusal(ctx context.Context, key types.NamespacedName, why string) {
	vm := &v1alpha1.VirtualMachine{}
	if err := m.client.Get(ctx, key, vm); err == nil && vm.DeletionTimestamp.IsZero() { // otherwise deleteAll announces it
		m.events.Eventf(vm, corev1.EventTypeNormal, "NotMigrated", "Shutting down the guest instead of migrating it live: %s", why)
	}
}

func (m *migrations) facts(ctx context.Context, s *scope) (migration.Facts, error) {
	key, record := client.ObjectKeyFromObject(s.vm), s.vm.Status.Migration
	facts := migration.Facts{
		Status: &s.vm.Status, Source: s.active, Now: s.now, Ordered: migration.OrderOf(s.vm).Given,
		Report: m.hypervisors.Report(s.vm).GetMigration(), Incoming: m.hypervisors.Incoming(key, record.TargetPodName) != nil,
		Known: s.memory.target.timeOf(fmt.Sprint(record.TargetPodName, " ", record.StartTime.Unix()), s.now),
	}
	var err error
	if facts.Target, err = m.target(ctx, s); err != nil || facts.Target != nil || s.active == nil {
		return facts, err
	}
	facts.Claims = true
	for _, claim := range podspec.CopiedClaims(s.vm, s.active) {
		usable, err := m.targetClaimUsable(ctx, s, claim.To)
		if err != nil || !usable {
			facts.Claims = false
			return facts, err
		}
	}
	return facts, nil
}

// target returns the Pod of the migration target, or nil if it does not exist. It reads from the API server if the
// cache does not have the Pod.
func (m *migrations) target(ctx context.Context, s *scope) (*corev1.Pod, error) {
	if pod := s.targetPod(); pod != nil {
		return pod, nil
	}
	pod, err := m.ownPod(ctx, s.vm, s.vm.Status.Migration.TargetPodName)
	if pod != nil {
		s.pods = append(s.pods, pod)
	}
	return pod, err
}

// targetClaimUsable reports whether a claim of the target exists and either has its volume or gets it when the Pod is
// scheduled.
func (m *migrations) targetClaimUsable(ctx context.Context, s *scope, name string) (bool, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := m.live.Get(ctx, client.ObjectKey{Namespace: s.vm.Namespace, Name: name}, claim)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading claim %s: %w", name, err)
	}
	if err != nil || !podstate.Owns(s.vm, claim) || !claim.DeletionTimestamp.IsZero() || migration.InUse(&s.vm.Status, name) {
		return false, nil
	}
	return m.volumes.hasVolume(ctx, claim)
}

// fail marks the running migration as failed. If the migration request will not be retried, fail first removes the
// request, so that a crash in between does not leave a request that is never carried out.
func (m *migrations) fail(ctx context.Context, s *scope, decision migration.Decision) flow.Result {
	if migration.OrderOf(s.vm).Given && migration.Final(s.vm.Status.Migration, decision.Failure) {
		if err := m.removeOrder(ctx, s); err != nil {
			return flow.Fail(err)
		}
	}
	err := m.registry.Update(ctx, s.vm, func(status *v1alpha1.VirtualMachineStatus) {
		migration.Fail(status, decision.Failure, decision.Message, s.now)
	})
	if err != nil {
		return flow.Fail(err)
	}
	kind := corev1.EventTypeWarning
	if decision.Failure == migration.ReasonCancelled {
		kind = corev1.EventTypeNormal
	}
	record := s.vm.Status.Migration
	m.events.Eventf(s.vm, kind, "MigrationFailed", "The migration to pod %s failed (%s): %s", record.TargetPodName, record.Reason, record.Message)
	return flow.Continue()
}

func (m *migrations) removeOrder(ctx context.Context, s *scope) error {
	before := s.vm.DeepCopy()
	delete(s.vm.Annotations, v1alpha1.AnnotationMigrate)
	return m.patch(ctx, s.vm, before)
}

// createTargetClaims creates the claims for the target's disks, modeled on those of the disks that are copied.
func (m *migrations) createTargetClaims(ctx context.Context, s *scope) flow.Result {
	usable := true
	for _, copied := range podspec.CopiedClaims(s.vm, s.active) {
		is, err := m.createTargetClaim(ctx, s, copied)
		if err != nil {
			return flow.Fail(err)
		}
		usable = usable && is
	}
	if !usable {
		return flow.Continue()
	}
	return m.createTarget(ctx, s)
}

// createTargetClaim creates a claim if it does not exist, and reports whether it can be used. If the claim gets no
// volume, or belongs to another object, the migration fails at its time limit.
func (m *migrations) createTargetClaim(ctx context.Context, s *scope, copied podspec.CopiedClaim) (usable bool, err error) {
	source := &corev1.PersistentVolumeClaim{}
	if err := m.live.Get(ctx, client.ObjectKey{Namespace: s.vm.Namespace, Name: copied.From}, source); err != nil {
		return false, fmt.Errorf("reading claim %s: %w", copied.From, err)
	}
	claim := podspec.TargetClaim(s.vm, copied, source)
	err = m.client.Create(ctx, claim)
	if apierror.Taken(err) {
		return m.targetClaimUsable(ctx, s, copied.To)
	}
	if err != nil {
		return false, fmt.Errorf("creating claim %s: %w", claim.Name, err)
	}
	return m.volumes.hasVolume(ctx, claim)
}

// createTarget creates the target Pod. If the VM may not have one, the migration fails.
func (m *migrations) createTarget(ctx context.Context, s *scope) flow.Result {
	live, pod, err := m.createPod(ctx, s, func(live *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
		return podspec.Target(live, s.active, m.settings())
	})
	if refused, is := errors.AsType[*refusedError](err); is {
		return m.fail(ctx, s, migration.Decision{Failure: migration.ReasonRefused, Message: refused.Message})
	}
	if apierror.Taken(err) {
		return flow.Continue() // an earlier pass created it, or the name is taken and the migration fails at its time limit
	}
	if err != nil {
		return flow.Fail(err)
	}
	m.events.Eventf(s.vm, corev1.EventTypeNormal, "Migrating", "Created pod %s as the target of a live migration", pod.Name)
	s.vm, s.pods = live, append(s.pods, pod)
	return m.recordTarget(ctx, s, pod)
}

func (m *migrations) recordTarget(ctx context.Context, s *scope, pod *corev1.Pod) flow.Result {
	return flow.Fail(m.registry.Update(ctx, s.vm, func(status *v1alpha1.VirtualMachineStatus) {
		status.Migration.TargetPodUID = pod.UID
	}))
}
