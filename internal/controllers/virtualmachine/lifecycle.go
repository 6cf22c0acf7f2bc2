package virtualmachine

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// pass is what the steps of one pass share.
type pass struct {
	// vm is a copy of the object, kept up to date with what this pass writes.
	vm *v1alpha1.VirtualMachine
	// now is when the pass began.
	now time.Time
	// pods are the Pods of this very object. Set by ObservePods.
	pods []*corev1.Pod
	// active is the authoritative Pod, dead or alive; nil if there is none. Set by
	// ObservePods, cleared by Reserve, set again by CreatePod.
	active *corev1.Pod
	// taken says that the reserved name belongs to a Pod of somebody else. Set by
	// ObservePods.
	taken bool
	// addresses are those that were checked or assigned in this pass. Set by
	// AssignAddresses.
	addresses []string
	// claim is the name of the disk's claim; empty if the disk is ephemeral. Set by
	// EnsureClaim.
	claim string
	// held says why there is no Pod. Set by the step that ended the pass.
	held *problem
}

// hold ends the pass for a reason that the user is told. Only an event, or a change of
// the spec, goes on.
func (p *pass) hold(what *problem) flow.Result {
	p.held = what
	return flow.Stop(what.reason)
}

// life is how a VM gets a hypervisor and keeps one.
func (c *Controller) life() []flow.Step[*pass] {
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

// death is how a VM ends: its hypervisors first, then its disk.
func (c *Controller) death() []flow.Step[*pass] {
	return []flow.Step[*pass]{
		{Name: "ObservePods", Run: c.observePods},
		{Name: "DeletePods", Run: c.deletePods},
		{Name: "DeleteClaims", Run: c.deleteClaims},
		{Name: "RemoveFinalizer", Run: c.removeFinalizer},
	}
}

// run takes the steps, and writes down what they found.
func (c *Controller) run(ctx context.Context, p *pass) flow.Outcome {
	steps := c.life()
	if !p.vm.DeletionTimestamp.IsZero() {
		if !controllerutil.ContainsFinalizer(p.vm, v1alpha1.Finalizer) {
			return flow.Outcome{} // others hold it; nothing here is ours any more
		}
		steps = c.death()
	}
	outcome := flow.Run(ctx, p, steps)
	if outdated(outcome.Err) || outcome.Done() && !p.vm.DeletionTimestamp.IsZero() {
		return outcome // what was seen is outdated, or there is nothing left to write to
	}
	outcome.Err = errors.Join(outcome.Err, client.IgnoreNotFound(c.writeProgress(ctx, p, outcome.Err)))
	return outcome
}

// keepLivingPod ends the pass while the authoritative hypervisor lives. What the spec
// says meanwhile takes effect with the next one; that one comes at once if no host has
// room for this one.
func (c *Controller) keepLivingPod(ctx context.Context, p *pass) flow.Result {
	switch {
	case !alive(p.active):
		return flow.Continue()
	case overtaken(p.vm, p.active):
		return c.withdraw(ctx, p.active)
	}
	return flow.Stop("the hypervisor lives")
}

func (c *Controller) validate(_ context.Context, p *pass) flow.Result {
	if refused := unsupported(p.vm); refused != nil {
		return p.hold(refused)
	}
	return flow.Continue()
}

// awaitNextAttempt waits after a hypervisor that ended, the longer the more often it
// did.
func (c *Controller) awaitNextAttempt(_ context.Context, p *pass) flow.Result {
	if p.vm.Status.ActivePodUID == "" {
		return flow.Continue() // the first one, or one that is reserved already
	}
	ended := ending{}
	if p.active != nil {
		ended = endingOf(p.active)
	}
	wait := c.attempts.wait(client.ObjectKeyFromObject(p.vm), attempt{
		pod: p.vm.Status.ActivePodUID, generation: p.vm.Generation, permanent: ended.permanent(),
	}, p.now)
	if wait > 0 {
		return flow.Wait(wait, "the next attempt")
	}
	return flow.Continue()
}
