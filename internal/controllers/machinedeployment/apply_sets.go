package machinedeployment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// create makes the set of the current template.
func (c *Controller) create(ctx context.Context, f *facts, op operation) error {
	set, err := newSet(*f, op.replicas)
	if err != nil {
		return fmt.Errorf("%w: %w", errCreate, err)
	}
	if sentence := unselected(f.deployment, set); sentence != "" {
		return fmt.Errorf("%w: %s", errCreate, sentence)
	}
	if err := c.rehearse(ctx, f.deployment, set); err != nil {
		return err
	}
	err = c.Client.Create(ctx, set)
	if expectations.Taken(err) {
		return c.nameTaken(ctx, f, set)
	}
	if err != nil {
		c.Events.Eventf(f.deployment, corev1.EventTypeWarning, reasonSetCreateError, "Failed to create machine set %s: %v", set.Name, err)
		return fmt.Errorf("%w: %w", errCreate, err)
	}
	c.writtenSets.Wrote(set)
	f.current, f.created = set, true
	c.say(ctx, f.deployment, v1alpha1.CauseScaledUp, set, op)
	return nil
}

// rehearse refuses to make a set that would not be the one that was asked for, as a webhook can
// see to. The deployment would not know it for its own, and make others without end. It costs
// one request for each set.
func (c *Controller) rehearse(ctx context.Context, deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) error {
	made := set.DeepCopy()
	if c.Client.Create(ctx, made, client.DryRunAll) != nil {
		return nil // what is wrong, the creation itself tells
	}
	if fields := mutated(deployment, made); len(fields) > 0 {
		return fmt.Errorf("%w (%s), so that the set would not be known for the deployment's, and others would be made without end. "+
			"Mostly a mutating webhook does that: keep it from machine sets", errMutated, strings.Join(fields, ", "))
	}
	return nil
}

// nameTaken finds out whose the set is that has the name. It may be our own, which the
// cache did not show a moment ago. One that is being deleted is of no use any more, and may
// be there for as long as its last machine is: the next one has another name.
func (c *Controller) nameTaken(ctx context.Context, f *facts, wanted *v1alpha1.MachineSet) error {
	taken := &v1alpha1.MachineSet{}
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(wanted), taken); err != nil {
		if apierrors.IsNotFound(err) {
			return errCacheBehind
		}
		return fmt.Errorf("reading machine set %s: %w", wanted.Name, err)
	}
	ours := metav1.IsControlledBy(taken, f.deployment) && taken.DeletionTimestamp.IsZero()
	if ours && revision.Same(&taken.Spec.Template, &f.deployment.Spec.Template) {
		return errCacheBehind
	}
	return errNameTaken
}

// newSet is the set of the deployment's template.
func newSet(f facts, count int32) (*v1alpha1.MachineSet, error) {
	deployment := f.deployment
	var collisions int32
	if deployment.Status.CollisionCount != nil {
		collisions = *deployment.Status.CollisionCount
	}
	hash, err := templateHash(&deployment.Spec.Template, collisions)
	if err != nil {
		return nil, err
	}
	last := max(followed(deployment), lastRevision(f))
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       deployment.Namespace,
			Name:            setName(deployment.Name, hash),
			Labels:          withHash(deployment.Spec.Template.Labels, hash),
			Annotations:     copiedAnnotations(deployment),
			Finalizers:      []string{v1alpha1.FinalizerMCM},
			OwnerReferences: []metav1.OwnerReference{ownerReference(deployment)},
		},
		Spec: v1alpha1.MachineSetSpec{
			Replicas:        count,
			MinReadySeconds: deployment.Spec.MinReadySeconds,
			Selector:        deployment.Spec.Selector.DeepCopy(),
			Template:        *deployment.Spec.Template.DeepCopy(),

			AutoPreserveFailedMachineMax: deployment.Spec.AutoPreserveFailedMachineMax,
		},
	}
	set.Spec.Selector.MatchLabels = withHash(set.Spec.Selector.MatchLabels, hash)
	set.Spec.Template.Labels = withHash(set.Spec.Template.Labels, hash)
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyRevision, strconv.FormatInt(last+1, 10))
	setReplicaAnnotations(set, f, deployment.Spec.Replicas)
	return set, nil
}

func withHash(labels map[string]string, hash string) map[string]string {
	labelled := map[string]string{v1alpha1.DefaultMachineDeploymentUniqueLabelKey: hash}
	for key, value := range labels {
		if key != v1alpha1.DefaultMachineDeploymentUniqueLabelKey {
			labelled[key] = value
		}
	}
	return labelled
}

// adopt takes over a set, unless the deployment is gone by now: the garbage collector
// would then delete the set, and its controller all Machines.
func (c *Controller) adopt(ctx context.Context, deployment *v1alpha1.MachineDeployment, op operation) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))
	err := c.Live.Get(ctx, client.ObjectKeyFromObject(deployment), live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading machine deployment %s: %w", deployment.Name, err)
	}
	if err != nil || live.UID != deployment.UID || !live.DeletionTimestamp.IsZero() {
		return errCacheBehind
	}
	before := op.set.DeepCopy()
	op.set.OwnerReferences = append(op.set.OwnerReferences, ownerReference(deployment))
	return c.changeOwner(ctx, deployment, op, before)
}

func (c *Controller) release(ctx context.Context, deployment *v1alpha1.MachineDeployment, op operation) error {
	before := op.set.DeepCopy()
	op.set.OwnerReferences = slices.DeleteFunc(op.set.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.UID == deployment.UID
	})
	return c.changeOwner(ctx, deployment, op, before)
}

func (c *Controller) changeOwner(ctx context.Context, deployment *v1alpha1.MachineDeployment, op operation, before *v1alpha1.MachineSet) error {
	if err := c.patchSet(ctx, op.set, before); err != nil {
		return expectations.UnlessGone(err)
	}
	verb := "Adopted"
	if op.action == release {
		verb = "Released"
		c.writtenSets.Forget(client.ObjectKeyFromObject(op.set)) // it is not looked at any more
	}
	c.Events.Eventf(deployment, corev1.EventTypeNormal, verb, "%s machine set %s: %s", verb, op.set.Name, op.reason)
	ctrl.LoggerFrom(ctx).Info(verb+" machine set", "machineSet", op.set.Name, "why", op.reason)
	return nil
}

func ownerReference(deployment *v1alpha1.MachineDeployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(deployment, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))
}

// change gives a set its number, if it is scaled, and what else it takes over.
func (c *Controller) change(ctx context.Context, f *facts, op operation) error {
	before, was := op.set.DeepCopy(), op.set.Spec.Replicas
	next := refreshed(*f, op.set)
	if op.action == scale {
		next.Spec.Replicas = op.replicas
		setReplicaAnnotations(next, *f, cmp.Or(op.size, f.deployment.Spec.Replicas))
		takeOver(next, f.deployment)
	}
	f.found = f.found || op.set == f.current && revision.Number(next) != revision.Number(before)
	next.DeepCopyInto(op.set)
	if err := c.patchSet(ctx, op.set, before); err != nil {
		if expectations.Gone(err) {
			return errCacheBehind
		}
		return err
	}
	switch {
	case op.action == refresh:
		c.Events.Eventf(f.deployment, corev1.EventTypeNormal, "RefreshedMachineSet", "Refreshed machine set %s: %s", op.set.Name, op.reason)
		ctrl.LoggerFrom(ctx).Info("Refreshed machine set", "machineSet", op.set.Name, "why", op.reason)
	case op.replicas < was:
		c.say(ctx, f.deployment, v1alpha1.CauseScaledDown, op.set, op)
	default:
		c.say(ctx, f.deployment, v1alpha1.CauseScaledUp, op.set, op)
	}
	if asked(op.set) == 0 && f.nodes != nil {
		c.forgetNodes(f.nodes.ofOld, op.set)
	}
	return nil
}

// prune deletes an old set without machines.
func (c *Controller) prune(ctx context.Context, deployment *v1alpha1.MachineDeployment, op operation) error {
	set := op.set
	// The version keeps a set that got machines meanwhile.
	preconditions := client.Preconditions{UID: &set.UID, ResourceVersion: &set.ResourceVersion}
	if err := c.Client.Delete(ctx, set, preconditions); expectations.UnlessGone(err) != nil {
		return fmt.Errorf("deleting machine set %s: %w", set.Name, err)
	}
	c.Events.Eventf(deployment, corev1.EventTypeNormal, "DeletedMachineSet", "Deleted machine set %s of revision %s: %s",
		set.Name, set.Annotations[v1alpha1.AnnotationKeyRevision], op.reason)
	ctrl.LoggerFrom(ctx).Info("Deleted machine set", "machineSet", set.Name, "why", op.reason)
	return nil
}

// say explains an operation in one event and one log line.
func (c *Controller) say(ctx context.Context, deployment *v1alpha1.MachineDeployment, cause string, set *v1alpha1.MachineSet, op operation) {
	verb := "Scaled up"
	if cause == v1alpha1.CauseScaledDown {
		verb = "Scaled down"
	}
	annotations := map[string]string{v1alpha1.EventAnnotationCause: cause, v1alpha1.EventAnnotationObjects: set.Name}
	c.Events.AnnotatedEventf(deployment, annotations, corev1.EventTypeNormal, "ScalingMachineSet", "%s machine set %s to %d: %s", verb, set.Name, op.replicas, op.reason)
	ctrl.LoggerFrom(ctx).Info(verb+" machine set", "machineSet", set.Name, "replicas", op.replicas, "why", op.reason)
}

func (c *Controller) patchSet(ctx context.Context, set, before *v1alpha1.MachineSet) error {
	if err := c.writtenSets.Patch(ctx, c.Client, set, before); err != nil {
		return fmt.Errorf("patching machine set %s: %w", set.Name, err)
	}
	return nil
}
