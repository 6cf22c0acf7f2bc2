package virtualmachine

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// pass is what the steps of one pass share.
type pass struct {
	vm     *v1alpha1.VirtualMachine // a copy, updated with what this pass writes
	now    time.Time                // when the pass began
	memory *memory

	// Set by ObservePods. active is the authoritative Pod, dead or alive; nil if there is
	// none. Reserve clears it, CreatePod sets it again. nameTaken reports whether a Pod of
	// another object has the reserved name.
	pods      []*corev1.Pod // of hypervisors
	servers   []*corev1.Pod // that serve the disks
	active    *corev1.Pod
	nameTaken bool

	addresses []string                        // checked or assigned. Set by AssignAddresses
	claim     string                          // of the disk; empty if it is ephemeral. Set by EnsureClaim
	claims    []*corev1.PersistentVolumeClaim // of all disks. Set by EnsureClaim and EnsureDataClaims
	cause     *conditions.Cause               // why there is no Pod. Set by the step that ended the pass
	free      bool                            // no hypervisor can have the last lease any more. Set by WatchLease

	// Set by ServeDisks and AwaitDisks, if a server has the disks: its Pod, nil if there is none; its process once it serves; what
	// that has answered; and whether the next hypervisor waits until it has revoked the tokens of before.
	server   *corev1.Pod
	serves   *disks.Server
	asked    disks.State
	revoking bool

	// noGrowth is why a volume cannot grow; nil if all can. Set by GrowDisks.
	noGrowth *conditions.Cause

	// fenced says that the host is fenced, and the VM is started elsewhere though the Pod of its hypervisor
	// seems to live. Empty: it is not. Set by Fence.
	fenced string
	// fence is what became of that annotation; nil if nothing did in this pass.
	fence *metav1.Condition
}

// blocked ends the pass for a cause that the status shows. The next pass comes with an event
// of the VM, or of an object in the cause.
func (p *pass) blocked(by *conditions.Cause) flow.Result {
	p.cause = by
	return flow.Stop(by.Reason)
}

// missing is blocked for something of which no event comes when it appears.
func (p *pass) missing(by *conditions.Cause) flow.Result {
	p.cause = by
	return flow.Wait(userDataCheck, by.Reason)
}

// runSteps give a VM a hypervisor, and keep it while it is alive.
func (c *Controller) runSteps() []flow.Step[*pass] {
	return []flow.Step[*pass]{
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "ObservePods", Run: c.observePods},
		{Name: "Elect", Run: c.elect},
		{Name: "RecordPod", Run: c.recordPod},
		{Name: "WatchLease", Run: c.watchLease},
		{Name: "Fence", Run: c.fence},
		{Name: "Migrate", Run: c.migrate},
		{Name: "RemoveOtherPods", Run: c.removeOtherPods},
		{Name: "RemoveOtherClaims", Run: c.removeOtherClaims},
		{Name: "ServeDisks", Run: c.serveDisks},
		{Name: "GrowDisks", Run: c.growDisks},
		{Name: "KeepLivingPod", Run: c.keepLivingPod},
		{Name: "Validate", Run: c.validate},
		{Name: "AssignAddresses", Run: c.assignAddresses},
		{Name: "AwaitUserData", Run: c.awaitUserData},
		{Name: "EnsureClaim", Run: c.ensureClaim},
		{Name: "EnsureDataClaims", Run: c.ensureDataClaims},
		{Name: "AwaitLease", Run: c.awaitLease},
		{Name: "AwaitNextAttempt", Run: c.awaitNextAttempt},
		{Name: "AwaitDisks", Run: c.awaitDisks},
		{Name: "Reserve", Run: c.reserve},
		{Name: "AfterFence", Run: c.afterFence},
		{Name: "CreatePod", Run: c.createPod},
	}
}

// deletionSteps delete a VM's hypervisors, then the server of its disks, and then those.
func (c *Controller) deletionSteps() []flow.Step[*pass] {
	return []flow.Step[*pass]{
		{Name: "ObservePods", Run: c.observePods},
		{Name: "RefuseFence", Run: c.fence},
		{Name: "DeletePods", Run: c.deletePods},
		{Name: "DeleteServers", Run: c.deleteServers},
		{Name: "DeleteClaims", Run: c.deleteClaims},
		{Name: "RemoveFinalizer", Run: c.removeFinalizer},
	}
}

func (c *Controller) run(ctx context.Context, p *pass) flow.Outcome {
	steps := c.runSteps()
	if !p.vm.DeletionTimestamp.IsZero() {
		if !controllerutil.ContainsFinalizer(p.vm, v1alpha1.Finalizer) {
			return flow.Outcome{} // it has finalizers of others only
		}
		steps = c.deletionSteps()
	}
	outcome := flow.Run(ctx, p, steps)
	if outdated(outcome.Err) || outcome.Done() && !p.vm.DeletionTimestamp.IsZero() {
		return outcome // old data, or the object is gone
	}
	outcome.Err = errors.Join(outcome.Err, client.IgnoreNotFound(c.writeStatus(ctx, p, outcome.Err)))
	return outcome
}

// keepLivingPod ends the pass while the authoritative hypervisor is alive. A changed spec
// takes effect with the next hypervisor; at once if no host has room for this one, or it cannot
// start, since the change may help.
func (c *Controller) keepLivingPod(ctx context.Context, p *pass) flow.Result {
	if !podstate.Alive(p.active) || c.overdue(p) || p.fenced != "" {
		return flow.Continue()
	}
	_, unschedulable := podstate.Unschedulable(p.active)
	if unschedulable && podspec.Outdated(p.vm, p.active) && p.active.DeletionTimestamp.IsZero() {
		return c.deleteUnschedulable(ctx, p.active)
	}
	if podstate.CannotStart(p.active) && podspec.Changed(p.vm, p.active, c.settings) {
		return flow.Fail(c.delete(ctx, []*corev1.Pod{p.active}))
	}
	return flow.Stop("the hypervisor is alive")
}

func (c *Controller) validate(_ context.Context, p *pass) flow.Result {
	if found := conditions.Invalid(p.vm, c.settings); found != nil {
		return p.blocked(found)
	}
	return flow.Continue()
}

// awaitNextAttempt waits for the back-off after a hypervisor that ended.
func (c *Controller) awaitNextAttempt(_ context.Context, p *pass) flow.Result {
	if p.vm.Status.ActivePodUID == "" {
		return flow.Continue() // the first one, or one that is reserved already
	}
	last := attempt{pod: p.vm.Status.ActivePodUID, generation: p.vm.Generation, replaced: podspec.ReplacesDisk(p.vm)}
	if p.active != nil {
		last.permanent = podstate.EndOf(p.active).Permanent()
	}
	if wait := p.memory.backoff.wait(last, p.now); wait > 0 {
		return flow.Wait(wait, "the next attempt")
	}
	return flow.Continue()
}
