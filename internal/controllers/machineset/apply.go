package machineset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
)

// parallel is how many equal writes are sent at the same time.
const parallel = 20

// Errors that decide the reason of the condition ReplicaFailure.
var (
	errCreate = errors.New("creating machines")
	errOwner  = errors.New("adopting and releasing machines")
	errUpdate = errors.New("updating machines")
)

// outcome is what became of a plan.
type outcome struct {
	// set is the set as it was written last.
	set *v1alpha1.MachineSet
	// created is how many Machines were created, and unknown how many may have been.
	created, unknown int32
	// deleted are the deletions that were done.
	deleted []scale.Operation
	// leaving has the UIDs of Machines that were deleted, or may have been, or are next.
	leaving map[types.UID]bool
	// changed has the new versions of Machines that were changed, by UID.
	changed map[types.UID]string
	// froze is why the set was frozen, if it was.
	froze   string
	failure error
}

// apply carries out a plan. Its numbers are only right if Machines could be adopted and released.
func (c *Controller) apply(ctx context.Context, f scale.Facts, operations []scale.Operation) *outcome {
	done := &outcome{set: f.Set.DeepCopy(), leaving: map[types.UID]bool{}, changed: map[types.UID]string{}}
	if done.failure = c.changeOwners(ctx, f, operations, done); done.failure != nil {
		return done
	}
	if done.failure = c.changeFreeze(ctx, f, operations, done); done.failure != nil {
		return done
	}
	if done.failure = c.changeOutages(ctx, f, done); done.failure != nil {
		return done
	}
	failures := []error{c.update(ctx, f, only(operations, scale.Update), done)}
	failures = append(failures, c.changePreservation(ctx, f, only(operations, scale.Preserve, scale.GiveUp), done))
	if freed(f, done) {
		for _, op := range only(operations, scale.Create) {
			failures = append(failures, c.create(ctx, f, op, done))
		}
	}
	failures = append(failures, c.remove(ctx, f, only(operations, scale.Delete), done))
	done.failure = errors.Join(serious(failures)...)
	return done
}

// freed reports whether all Machines in excess that are wanted for pods are for them. Others are made after
// that, so that pods have not to wait for those.
func freed(f scale.Facts, done *outcome) bool {
	return !slices.ContainsFunc(f.Outdated, func(o scale.Outdated) bool {
		return o.Mark == reserve.None && reserve.In(&o.Machine.Spec) && done.changed[o.Machine.UID] == ""
	})
}

func only(operations []scale.Operation, wanted ...scale.Action) []scale.Operation {
	return slices.DeleteFunc(slices.Clone(operations), func(op scale.Operation) bool { return !slices.Contains(wanted, op.Action) })
}

// create creates Machines in batches of growing size, until one fails: the cause is likely the same.
func (c *Controller) create(ctx context.Context, f scale.Facts, op scale.Operation, done *outcome) error {
	if err := c.memory.Of(client.ObjectKeyFromObject(f.Set)).astray.Waits(f.Set.Generation, c.Clock.Now()); err != nil {
		return fmt.Errorf("%w: %w", errCreate, err)
	}
	classes, err := c.classesOf(ctx, f)
	if err != nil {
		return fmt.Errorf("%w: %w", errCreate, err)
	}
	var made []scale.Operation
	var failure error
	for batch := 1; len(made) < op.Count && failure == nil; batch *= 2 {
		var created []*v1alpha1.Machine
		size := min(batch, op.Count-len(made))
		excess := max(0, len(made)+size-(op.Count-op.Excess)) // the last ones are
		created, failure = c.createBatch(ctx, f.Set, c.newMachines(ctx, f.Set, classes, size, min(size, excess)), done)
		for _, machine := range created {
			one := withClass(op, f.Set, machine)
			one.Machine = machine
			made = append(made, one)
		}
	}
	done.created += int32(len(made))
	slices.SortFunc(made, func(a, b scale.Operation) int { return cmp.Compare(a.Machine.Name, b.Machine.Name) })
	c.reportEach(ctx, f.Set, "SuccessfulCreate", "Created", made)
	if failure != nil {
		c.Events.Eventf(f.Set, corev1.EventTypeWarning, "FailedCreate", "Error creating: %s", withoutName(failure, f.Set.Name))
		failure = fmt.Errorf("%w: %w", errCreate, failure)
	}
	return failure
}

// createBatch creates Machines in parallel, and returns those that exist then, and the first failure.
func (c *Controller) createBatch(ctx context.Context, set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, done *outcome) ([]*v1alpha1.Machine, error) {
	failures := make([]error, len(machines))
	each(len(machines), func(i int) { failures[i] = c.createMachine(ctx, set, machines[i]) })
	known := c.memory.Of(client.ObjectKeyFromObject(set))
	var created []*v1alpha1.Machine
	for i, machine := range machines {
		switch {
		case failures[i] == nil:
			if failures[i] = c.keep(ctx, set, machine); failures[i] != nil {
				known.astray.Failed(failures[i], set.Generation, c.Clock.Now())
				continue
			}
			known.astray.Succeeded()
			known.machines.Created(machine, c.Clock.Now())
			created = append(created, machine)
		case errors.Is(failures[i], errUnread), !refused(failures[i]):
			done.unknown++
			known.machines.Doubt()
		}
	}
	return created, cmp.Or(failures...)
}

// errUnread marks the failure to read a Machine that exists, which may be the one that was asked for.
var errUnread = errors.New("the machine may have been created")

// createMachine creates a Machine, and finds it if it exists: something on the way to the API server
// may have sent the request twice.
func (c *Controller) createMachine(ctx context.Context, set *v1alpha1.MachineSet, machine *v1alpha1.Machine) error {
	failure := c.Client.Create(ctx, machine)
	if failure == nil {
		c.untouched(ctx, machine)
	}
	if !apierror.Taken(failure) {
		return failure
	}
	found := &v1alpha1.Machine{}
	err := c.Live.Get(ctx, client.ObjectKeyFromObject(machine), found)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w, and reading it: %w", errUnread, failure, err)
	case err != nil, !metav1.IsControlledBy(found, set):
		return failure
	}
	*machine = *found
	return nil
}

// each calls do for each number below n, some at the same time.
func each(n int, do func(i int)) { workqueue.ParallelizeUntil(context.Background(), parallel, n, do) }

// keep deletes a new Machine that a webhook changed so that it is not the set's, and returns why. The set
// would create another one in its place, without end.
func (c *Controller) keep(ctx context.Context, set *v1alpha1.MachineSet, machine *v1alpha1.Machine) error {
	why := astray(set, machine)
	if why == nil {
		return nil
	}
	if err := c.Client.Delete(ctx, machine, client.Preconditions{UID: &machine.UID}); err != nil && !apierror.Gone(err) {
		return fmt.Errorf("%w, and deleting it: %w", why, err)
	}
	return why
}

// astray returns why a new Machine does not count as one of the set. Without a controller it does: the
// set adopts it.
func astray(set *v1alpha1.MachineSet, machine *v1alpha1.Machine) error {
	if owner := metav1.GetControllerOfNoCopy(machine); owner != nil && owner.UID != set.UID {
		return fmt.Errorf("what is made is controlled by %s %q", owner.Kind, owner.Name)
	}
	if !scale.Selector(set.Spec.Selector).Matches(labels.Set(machine.Labels)) {
		return fmt.Errorf("what is made has the labels %q, which the selector %q does not match",
			labels.Set(machine.Labels), metav1.FormatLabelSelector(set.Spec.Selector))
	}
	return nil
}

// refused reports whether an error proves that nothing was written: the API server answered.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// withoutName returns the text of an error without the generated names of a set's Machines, or each
// attempt would change the set's condition.
func withoutName(err error, set string) string {
	generated := regexp.MustCompile(regexp.QuoteMeta(namePrefix(set)) + fmt.Sprintf("[bcdfghjklmnpqrstvwxz2456789]{%d}", suffix))
	return generated.ReplaceAllLiteralString(err.Error(), set+"-*")
}

// newMachine returns a Machine of the set's template. It has the finalizer and the priority that the
// machine controller would otherwise add.
func newMachine(set *v1alpha1.MachineSet) *v1alpha1.Machine {
	template := set.Spec.Template.DeepCopy()
	machine := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       set.Namespace,
			GenerateName:    set.Name + "-",
			Name:            newName(set.Name),
			Labels:          template.Labels,
			Annotations:     map[string]string{v1alpha1.AnnotationKeyMachinePriority: deletion.Normal},
			Finalizers:      template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{ownerReference(set)},
		},
		Spec: template.Spec,
	}
	maps.Copy(machine.Annotations, template.Annotations)
	delete(machine.Annotations, driver.AnnotationLocation) // it is nothing that machines share
	if timeout, ok := set.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]; ok {
		machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout] = timeout
	}
	controllerutil.AddFinalizer(machine, v1alpha1.FinalizerMCM)
	return machine
}

// setLocation notes where the VM of a new Machine will be created, unless that is not known: the machine
// controller would otherwise add it.
func setLocation(machine *v1alpha1.Machine, location string) {
	if location != "" {
		machine.Annotations[driver.AnnotationLocation] = location
	}
}

const (
	// longestPrefix and suffix are the lengths of the parts of a generated name, as the API server
	// makes them.
	longestPrefix, suffix = 58, 5
)

// newName generates the name of a Machine as the API server would, so that a request which arrives
// twice makes one Machine.
func newName(set string) string { return namePrefix(set) + rand.String(suffix) }

func namePrefix(set string) string {
	prefix := set + "-"
	return prefix[:min(len(prefix), longestPrefix)]
}

var setKind = v1alpha1.SchemeGroupVersion.WithKind("MachineSet")

func ownerReference(set *v1alpha1.MachineSet) metav1.OwnerReference {
	return *metav1.NewControllerRef(set, setKind)
}

// remove tries to delete all of some Machines. It returns the first failure in the order of the plan.
func (c *Controller) remove(ctx context.Context, f scale.Facts, operations []scale.Operation, done *outcome) error {
	failures := make([]error, len(operations))
	each(len(operations), func(i int) { failures[i] = c.removeOne(ctx, operations[i].Machine, done.changed) })
	known := &c.memory.Of(client.ObjectKeyFromObject(f.Set)).machines
	for i, op := range operations {
		switch {
		case failures[i] == nil:
			known.Deleted(op.Machine, c.Clock.Now()) // gone already, if the cache did not show it
			done.deleted = append(done.deleted, op)
			done.leaving[op.Machine.UID] = true
		case apierror.Conflict(failures[i]): // it changed, and is deleted in the next pass
			done.leaving[op.Machine.UID] = true
		case !refused(failures[i]):
			known.Doubt()
			done.leaving[op.Machine.UID] = true
		}
	}
	c.reportEach(ctx, f.Set, "SuccessfulDelete", "Deleted", done.deleted)
	err := cmp.Or(serious(failures)...)
	if err != nil && !apierror.Conflict(err) {
		c.Events.Eventf(f.Set, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	}
	return err
}

// removeOne deletes a Machine unless it changed since the plan: it may be preserved or released.
func (c *Controller) removeOne(ctx context.Context, machine *v1alpha1.Machine, changed map[types.UID]string) error {
	version := cmp.Or(changed[machine.UID], machine.ResourceVersion)
	as := client.Preconditions{UID: &machine.UID, ResourceVersion: &version}
	if err := c.Client.Delete(ctx, machine.DeepCopy(), as); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("deleting machine %s: %w", machine.Name, err)
	}
	return nil
}

// serious returns failures without conflicts, after which the next pass sees what changed.
func serious(failures []error) []error {
	others := slices.DeleteFunc(slices.Clone(failures), apierror.Conflict)
	if errors.Join(others...) == nil {
		return failures
	}
	return others
}
