package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

var (
	// errNameTaken: the name of a new set belongs to another one. The next pass has
	// another collision count, and with it another name.
	errNameTaken = errors.New("the name of the new machine set is taken")
	// errCreate marks failures to create a set.
	errCreate = errors.New("creating a machine set")
	// errMutated: a set would not be made as it is asked for. The sentence is for users.
	errMutated = errors.New("spec.template: the API server changes the template of a new machine set")
	// errMark marks failures to mark a Machine that was named for deletion.
	errMark = errors.New("marking a machine")
	// errCacheBehind: the cache does not show what there is yet.
	errCacheBehind = errors.New("the cache is behind")
)

// carryOut applies what is planned, and reports whether the pass ends with that. Machines that
// cannot be marked hold up nothing but what they are marked for.
func (c *Controller) carryOut(ctx context.Context, f *facts) (ends bool, failure error) {
	operations := plan(*f)
	failure = c.apply(ctx, f, operations)
	if failure == nil && len(operations) > 0 && len(f.unmarked) == len(operations) {
		operations = plan(*f)
		failure = c.apply(ctx, f, operations)
	}
	return failure == nil && slices.ContainsFunc(operations, operation.ends), failure
}

// apply carries out a plan, and keeps the facts up to date with it. It stops at the first
// failure, but for marks: those that are left out are in the facts, and come later.
func (c *Controller) apply(ctx context.Context, f *facts, operations []operation) error {
	nodesLater := false
	for _, op := range operations {
		if nodesLater && op.action == patchNodes {
			continue // a target that does not answer costs its time once
		}
		err := c.applyOne(ctx, f, op)
		switch {
		case errors.Is(err, errNodes):
			ctrl.LoggerFrom(ctx).Info("Some nodes are marked later", "err", err.Error())
			f.again, nodesLater = sooner(f.again, targetAway), true
		case errors.Is(err, errMark) && !outrun(err):
			f.leaveUnmarked(op.machine.Name, err)
		case err != nil:
			return err
		}
	}
	return nil
}

func (c *Controller) applyOne(ctx context.Context, f *facts, op operation) error {
	switch op.action {
	case create:
		return c.create(ctx, f, op)
	case scale, refresh:
		return c.change(ctx, f, op)
	case adopt:
		return c.adopt(ctx, f.deployment, op)
	case release:
		return c.release(ctx, f.deployment, op)
	case prune:
		return c.prune(ctx, f.deployment, op)
	case mark:
		return c.mark(ctx, f.deployment, op)
	case patchNodes:
		return c.patchNodes(ctx, f.deployment, op)
	case rollBack, refuse:
		return c.rollBack(ctx, *f, op)
	}
	return nil
}

// rollBack gives the deployment an old template, or says why that cannot be. In both cases
// the wish is gone. That it cannot be is said first, or nobody would know after a crash.
func (c *Controller) rollBack(ctx context.Context, f facts, op operation) error {
	deployment, kind := f.deployment, corev1.EventTypeWarning
	if op.action == refuse {
		if err := c.writeStatus(ctx, deployment, refusedRollback(f, op)); err != nil {
			return err
		}
	}
	before := deployment.DeepCopy()
	if op.action == rollBack {
		kind = corev1.EventTypeNormal
		rolledBack(deployment, op.set).DeepCopyInto(deployment)
	}
	deployment.Spec.RollbackTo = nil
	if err := c.patchDeployment(ctx, deployment, before); err != nil {
		return err
	}
	c.Events.Event(deployment, kind, op.topic, op.reason)
	ctrl.LoggerFrom(ctx).Info("Answered the wish to roll back", "outcome", op.topic, "why", op.reason)
	return nil
}

// mark tells the set of a Machine to delete it before others.
func (c *Controller) mark(ctx context.Context, deployment *v1alpha1.MachineDeployment, op operation) error {
	machine := op.machine.DeepCopy()
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, chosen)
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMarkedForDeletionTime, op.since)
	err := c.Client.Patch(ctx, machine, expectations.Locked(op.machine))
	if expectations.Gone(err) {
		return errCacheBehind
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errMark, machine.Name, err)
	}
	if !(named{machine: machine}).marked(op.since) {
		return fmt.Errorf("%w: %s: the API server changes its mark. Mostly a mutating webhook does that: keep it from machines", errMark, machine.Name)
	}
	c.Events.Eventf(deployment, corev1.EventTypeNormal, "MachineMarked", "Machine %s goes first: %s", machine.Name, op.reason)
	ctrl.LoggerFrom(ctx).Info("Marked machine for deletion", "machine", machine.Name, "since", op.since, "why", op.reason)
	return nil
}

// record writes into the deployment what it says about its sets.
func (c *Controller) record(ctx context.Context, f facts) error {
	next, before := accounted(f), f.deployment.DeepCopy()
	if equality.Semantic.DeepEqual(next, before) {
		return nil
	}
	next.DeepCopyInto(f.deployment)
	return c.patchDeployment(ctx, f.deployment, before)
}

func (c *Controller) addFinalizer(ctx context.Context, deployment *v1alpha1.MachineDeployment) error {
	before := deployment.DeepCopy()
	if !controllerutil.AddFinalizer(deployment, v1alpha1.FinalizerMCM) {
		return nil
	}
	return c.patchDeployment(ctx, deployment, before)
}

func (c *Controller) removeFinalizer(ctx context.Context, deployment *v1alpha1.MachineDeployment) error {
	before := deployment.DeepCopy()
	if !controllerutil.RemoveFinalizer(deployment, v1alpha1.FinalizerMCM) {
		return nil
	}
	return expectations.UnlessGone(c.patchDeployment(ctx, deployment, before))
}

func (c *Controller) patchDeployment(ctx context.Context, deployment, before *v1alpha1.MachineDeployment) error {
	if err := c.written.Patch(ctx, c.Client, deployment, before); err != nil {
		return fmt.Errorf("patching machine deployment %s: %w", deployment.Name, err)
	}
	return nil
}
