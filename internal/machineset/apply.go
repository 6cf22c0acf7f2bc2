package machineset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/index"
)

// parallel is how many equal writes are under way at the same time.
const parallel = 20

// errCreate marks failures to create Machines, all others concern their deletion or
// adoption.
var errCreate = errors.New("creating machines")

// gather reads the facts from the cache, and from the API server where the cache cannot
// be relied upon yet.
func (c *Controller) gather(ctx context.Context, set *v1alpha1.MachineSet) (facts, error) {
	f := facts{set: set, now: c.Clock.Now()}
	var err error
	if f.owned, err = c.machines(ctx, set.Namespace, string(set.UID)); err != nil {
		return f, err
	}
	orphans, err := c.machines(ctx, set.Namespace, index.Orphan)
	if err != nil {
		return f, err
	}
	for _, machine := range orphans {
		if set.Spec.Selector != nil && selects(set.Spec.Selector, machine.Labels) {
			f.strays = append(f.strays, machine)
		}
	}
	f.certain, err = c.certain(ctx, set, f.owned)
	return f, err
}

func (c *Controller) machines(ctx context.Context, namespace, controller string) ([]*v1alpha1.Machine, error) {
	list := &v1alpha1.MachineList{}
	err := c.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index.ByController: controller}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing machines: %w", err)
	}
	machines := make([]*v1alpha1.Machine, len(list.Items))
	for i := range list.Items {
		machines[i] = &list.Items[i]
	}
	return machines, nil
}

// certain tells whether the cache shows all that was written. Before a set's first
// change in this process, and after a creation of unknown outcome, the API server is
// asked.
func (c *Controller) certain(ctx context.Context, set *v1alpha1.MachineSet, owned []*v1alpha1.Machine) (bool, error) {
	cached := map[string]*v1alpha1.Machine{}
	for _, machine := range owned {
		cached[machine.Name] = machine
	}
	key := client.ObjectKeyFromObject(set)
	switch c.expected.judge(key, cached, c.Clock.Now()) {
	case complete:
		return true, nil
	case behind:
		return false, nil
	}
	live := &metav1.PartialObjectMetadataList{}
	live.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("MachineList"))
	if err := c.Live.List(ctx, live, client.InNamespace(set.Namespace)); err != nil {
		return false, fmt.Errorf("reading the machines of machine set %s: %w", set.Name, err)
	}
	var names []string
	for i := range live.Items {
		if metav1.IsControlledBy(&live.Items[i], set) {
			names = append(names, live.Items[i].Name)
		}
	}
	return c.expected.settle(key, cached, names), nil
}

// apply carries out a plan. It goes on after a failure where that does no harm, and
// returns all failures.
func (c *Controller) apply(ctx context.Context, set *v1alpha1.MachineSet, operations []operation) error {
	var failures []error
	var removals []operation
	for _, op := range operations {
		switch op.action {
		case adopt:
			failures = append(failures, c.setOwner(ctx, set, op))
		case release:
			failures = append(failures, c.dropOwner(ctx, set, op))
		case create:
			failures = append(failures, c.create(ctx, set, op))
		case remove:
			removals = append(removals, op)
		}
	}
	return errors.Join(append(failures, c.remove(ctx, set, removals))...)
}

// create makes Machines in batches of growing size, and stops after a batch that had a
// failure: what the first Machine is refused for, the hundredth is too.
func (c *Controller) create(ctx context.Context, set *v1alpha1.MachineSet, op operation) error {
	var names []string
	var failure error
	for batch := 1; len(names) < op.count && failure == nil; batch *= 2 {
		var made []string
		made, failure = c.createBatch(ctx, set, min(batch, op.count-len(names)))
		names = append(names, made...)
	}
	if len(names) > 0 {
		c.say(ctx, set, "SuccessfulCreate", "Created", names, op.reason)
	}
	if failure != nil {
		c.Events.Eventf(set, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", failure)
		return fmt.Errorf("%w: %w", errCreate, failure)
	}
	return nil
}

func (c *Controller) createBatch(ctx context.Context, set *v1alpha1.MachineSet, size int) ([]string, error) {
	machines := make([]*v1alpha1.Machine, size)
	var group errgroup.Group // a failure does not cut off the others: their outcome would be unknown
	group.SetLimit(parallel)
	for i := range machines {
		group.Go(func() error {
			machine := newMachine(set)
			if err := c.Client.Create(ctx, machine); err != nil {
				if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) {
					c.expected.doubt(client.ObjectKeyFromObject(set))
				}
				return err
			}
			c.expected.create(client.ObjectKeyFromObject(set), machine.Name, c.Clock.Now())
			machines[i] = machine
			return nil
		})
	}
	err := group.Wait()
	var names []string
	for _, machine := range machines {
		if machine != nil {
			names = append(names, machine.Name)
		}
	}
	return names, err
}

// newMachine is what the set's template makes. It carries from the start what the
// machine controller would otherwise have to add.
func newMachine(set *v1alpha1.MachineSet) *v1alpha1.Machine {
	template := set.Spec.Template.DeepCopy()
	machine := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       set.Namespace,
			GenerateName:    set.Name + "-",
			Labels:          template.Labels,
			Annotations:     map[string]string{v1alpha1.AnnotationKeyMachinePriority: "3"},
			Finalizers:      template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{ownerReference(set)},
		},
		Spec: template.Spec,
	}
	maps.Copy(machine.Annotations, template.Annotations)
	if timeout, ok := set.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]; ok {
		machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout] = timeout
	}
	controllerutil.AddFinalizer(machine, v1alpha1.FinalizerMCM)
	return machine
}

func ownerReference(set *v1alpha1.MachineSet) metav1.OwnerReference {
	return *metav1.NewControllerRef(set, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))
}

func (c *Controller) remove(ctx context.Context, set *v1alpha1.MachineSet, operations []operation) error {
	var group errgroup.Group // a failure does not cut off the others: their outcome would be unknown
	group.SetLimit(parallel)
	for _, op := range operations {
		group.Go(func() error {
			// The UID keeps a Machine of the same name that was made meanwhile.
			err := c.Client.Delete(ctx, op.machine.DeepCopy(), client.Preconditions{UID: &op.machine.UID})
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("deleting machine %s: %w", op.machine.Name, err)
			}
			c.expected.delete(client.ObjectKeyFromObject(set), op.machine)
			return nil
		})
	}
	err := group.Wait()
	for reason, names := range byReason(operations) {
		if err == nil {
			c.say(ctx, set, "SuccessfulDelete", "Deleted", names, reason)
		}
	}
	if err != nil {
		c.Events.Eventf(set, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	}
	return err
}

func byReason(operations []operation) map[string][]string {
	names := map[string][]string{}
	for _, op := range operations {
		names[op.reason] = append(names[op.reason], op.machine.Name)
	}
	return names
}

// say explains an operation in one event and one log line. An event holds 1024
// characters, so that of many Machines only some are named.
func (c *Controller) say(ctx context.Context, set *v1alpha1.MachineSet, reason, verb string, names []string, why string) {
	const shown = 5
	list := strings.Join(names[:min(shown, len(names))], ", ")
	if more := len(names) - shown; more > 0 {
		list = fmt.Sprintf("%s and %d more", list, more)
	}
	c.Events.Eventf(set, corev1.EventTypeNormal, reason, "%s %d machines (%s): %s", verb, len(names), list, why)
	ctrl.LoggerFrom(ctx).Info(verb+" machines", "count", len(names), "machines", list, "why", why)
}

func (c *Controller) setOwner(ctx context.Context, set *v1alpha1.MachineSet, op operation) error {
	return c.patchMachine(ctx, op.machine, func(machine *v1alpha1.Machine) {
		machine.OwnerReferences = append(machine.OwnerReferences, ownerReference(set))
	})
}

func (c *Controller) dropOwner(ctx context.Context, set *v1alpha1.MachineSet, op operation) error {
	return c.patchMachine(ctx, op.machine, func(machine *v1alpha1.Machine) {
		var others []metav1.OwnerReference
		for _, owner := range machine.OwnerReferences {
			if owner.UID != set.UID {
				others = append(others, owner)
			}
		}
		machine.OwnerReferences = others
	})
}

func (c *Controller) patchMachine(ctx context.Context, machine *v1alpha1.Machine, change func(*v1alpha1.Machine)) error {
	changed := machine.DeepCopy()
	change(changed)
	if err := c.Client.Patch(ctx, changed, lockedMerge(machine.DeepCopy())); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("changing the owner of machine %s: %w", machine.Name, err)
	}
	return nil
}

// lockedMerge is a merge patch that fails if somebody else has written meanwhile.
func lockedMerge(from client.Object) client.Patch {
	return client.MergeFromWithOptions(from, client.MergeFromWithOptimisticLock{})
}

func (c *Controller) addFinalizer(ctx context.Context, set *v1alpha1.MachineSet) error {
	before := set.DeepCopy()
	if !controllerutil.AddFinalizer(set, v1alpha1.FinalizerMCM) {
		return nil
	}
	return c.patchSet(ctx, set, before)
}

func (c *Controller) removeFinalizer(ctx context.Context, set *v1alpha1.MachineSet) error {
	before := set.DeepCopy()
	if !controllerutil.RemoveFinalizer(set, v1alpha1.FinalizerMCM) {
		return nil
	}
	return client.IgnoreNotFound(c.patchSet(ctx, set, before))
}

func (c *Controller) patchSet(ctx context.Context, set, before *v1alpha1.MachineSet) error {
	if err := c.Client.Patch(ctx, set, lockedMerge(before)); err != nil {
		return fmt.Errorf("patching machine set %s: %w", set.Name, err)
	}
	c.written.Wrote(client.ObjectKeyFromObject(set), set.ResourceVersion)
	return nil
}
