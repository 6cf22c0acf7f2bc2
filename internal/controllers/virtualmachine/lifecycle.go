package virtualmachine

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// pass is what the steps of one pass share.
type pass struct {
	// vm is a copy of the object, updated with what this pass writes.
	vm *v1alpha1.VirtualMachine
	// now is when the pass began.
	now time.Time
	// memory is what is remembered of the VM between passes.
	memory *memory
	// pods are the VM's Pods. Set by ObservePods.
	pods []*corev1.Pod
	// active is the authoritative Pod, dead or alive; nil if there is none. Set by
	// ObservePods, cleared by Reserve, set again by CreatePod.
	active *corev1.Pod
	// nameTaken reports whether another object's Pod has the reserved name. Set by
	// ObservePods.
	nameTaken bool
	// addresses are those that were checked or assigned in this pass. Set by
	// AssignAddresses.
	addresses []string
	// claim is the name of the disk's claim; empty if the disk is ephemeral. Set by
	// EnsureClaim.
	claim string
	// cause is why there is no Pod. Set by the step that ended the pass.
	cause *cause
}

// blocked ends the pass for a cause that the status shows. The next pass comes with an
// event of the VM, or of an object that the cause names.
func (p *pass) blocked(by *cause) flow.Result {
	p.cause = by
	return flow.Stop(by.reason)
}

// runSteps give a VM a hypervisor, and keep it while it is alive.
func (c *Controller) runSteps() []flow.Step[*pass] {
	return []flow.Step[*pass]{
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "ObservePods", Run: c.observePods},
		{Name: "Elect", Run: c.elect},
		{Name: "RecordPod", Run: c.recordPod},
		{Name: "RemoveOtherPods", Run: c.removeOtherPods},
		{Name: "KeepLivingPod", Run: c.keepLivingPod},
		{Name: "Validate", Run: c.validate},
		{Name: "AssignAddresses", Run: c.assignAddresses},
		{Name: "AwaitUserData", Run: c.awaitUserData},
		{Name: "EnsureClaim", Run: c.ensureClaim},
		{Name: "AwaitNextAttempt", Run: c.awaitNextAttempt},
		{Name: "Reserve", Run: c.reserve},
		{Name: "CreatePod", Run: c.createPod},
	}
}

// deletionSteps delete a VM's hypervisors, and then its disk.
func (c *Controller) deletionSteps() []flow.Step[*pass] {
	return []flow.Step[*pass]{
		{Name: "ObservePods", Run: c.observePods},
		{Name: "DeletePods", Run: c.deletePods},
		{Name: "DeleteClaims", Run: c.deleteClaims},
		{Name: "RemoveFinalizer", Run: c.removeFinalizer},
	}
}

// run runs the steps and writes the status.
func (c *Controller) run(ctx context.Context, p *pass) flow.Outcome {
	steps := c.runSteps()
	if !p.vm.DeletionTimestamp.IsZero() {
		if !controllerutil.ContainsFinalizer(p.vm, v1alpha1.Finalizer) {
			return flow.Outcome{} // only others keep the object
		}
		steps = c.deletionSteps()
	}
	outcome := flow.Run(ctx, p, steps)
	if outdated(outcome.Err) || outcome.Done() && !p.vm.DeletionTimestamp.IsZero() {
		return outcome // the pass saw old data, or the object is gone
	}
	outcome.Err = errors.Join(outcome.Err, client.IgnoreNotFound(c.writeStatus(ctx, p, outcome.Err)))
	return outcome
}

// keepLivingPod ends the pass while the authoritative hypervisor is alive. A changed spec
// takes effect with the next hypervisor; at once if no host has room for this one, since
// the change may help.
func (c *Controller) keepLivingPod(ctx context.Context, p *pass) flow.Result {
	if !podstate.Alive(p.active) {
		return flow.Continue()
	}
	_, unschedulable := podstate.Unschedulable(p.active)
	if unschedulable && podspec.Outdated(p.vm, p.active) && p.active.DeletionTimestamp.IsZero() {
		return c.deleteUnschedulable(ctx, p.active)
	}
	return flow.Stop("the hypervisor is alive")
}

func (c *Controller) validate(_ context.Context, p *pass) flow.Result {
	if found := invalid(p.vm); found != nil {
		return p.blocked(found)
	}
	return flow.Continue()
}

// awaitNextAttempt waits for the back-off after a hypervisor that ended.
func (c *Controller) awaitNextAttempt(_ context.Context, p *pass) flow.Result {
	if p.vm.Status.ActivePodUID == "" {
		return flow.Continue() // the first one, or one that is reserved already
	}
	last := attempt{pod: p.vm.Status.ActivePodUID, generation: p.vm.Generation}
	if p.active != nil {
		last.permanent = podstate.EndOf(p.active).Permanent()
	}
	if wait := p.memory.backoff.wait(last, p.now); wait > 0 {
		return flow.Wait(wait, "the next attempt")
	}
	return flow.Continue()
}
