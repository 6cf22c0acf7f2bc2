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

// parallel is the number of writes of the same kind that are sent at the same time.
const parallel = 20

// Errors that determine the reason of the condition ReplicaFailure.
var (
	errCreate = errors.New("creating machines")
	errOwner  = errors.New("adopting and releasing machines")
	errUpdate = errors.New("updating machines")
)

// outcome is the result of applying a plan.
type outcome struct {
	// set is the set as it was last written.
	set *v1alpha1.MachineSet
	// created is the number of Machines that were created, and unknown the number that may have been.
	created, unknown int32
	// deleted contains the successful deletions.
	deleted []scale.Operation
	// leaving contains the UIDs of Machines that were deleted, may have been deleted, or will be in the next
	// pass.
	leaving map[types.UID]bool
	// changed contains the new resource versions of Machines that were changed, by UID.
	changed map[types.UID]string
	// froze is the reason why the set was frozen, if it was.
	froze   string
	failure error
}

// apply carries out a plan. It stops if Machines cannot be adopted or released, since the numbers of the plan
// would be wrong.
func (c *Controller) apply(ctx context.Context, f scale.Facts, operations []scale.Operation) *outcome {
	done := &outcome{set: f.Set.DeepCopy(), leaving: map[types.UID]bool{}, changed: map[types.UID]string{}}
	if done.failure = c.changeOwners(ctx, f, operations, done); done.failure != nil {
		return done
	}
	if done.failure = c.endRestore(ctx, operations, done); done.failure != nil {
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

// freed reports whether all Machines of the reserve that Pods need were released for them. Other Machines are
// created after that, so that Pods do not have to wait for them.
func freed(f scale.Facts, done *outcome) bool {
	return !slices.ContainsFunc(f.Outdated, func(o scale.Outdated) bool {
		return o.Mark == reserve.None && reserve.In(&o.Machine.Spec) && done.changed[o.Machine.UID] == ""
	})
}

func only(operations []scale.Operation, actions ...scale.Action) []scale.Operation {
	return slices.DeleteFunc(slices.Clone(operations), func(op scale.Operation) bool { return !slices.Contains(actions, op.Action) })
}

// create creates Machines in batches of growing size. It stops at the first failure, since the cause is likely the
// same for all.
func (c *Controller) create(ctx context.Context, f scale.Facts, op scale.Operation, done *outcome) error {
	if err := c.memory.Of(client.ObjectKeyFromObject(f.Set)).mismatches.Waits(f.Set.Generation, c.Clock.Now()); err != nil {
		return fmt.Errorf("%w: %w", errCreate, err)
	}
	classes, err := c.classesOf(ctx, f)
	if err != nil {
		return fmt.Errorf("%w: %w", errCreate, err)
	}
	var operations []scale.Operation
	var failure error
	for batch := 1; len(operations) < op.Count && failure == nil; batch *= 2 {
		var created []*v1alpha1.Machine
		size := min(batch, op.Count-len(operations))
		excess := max(0, len(operations)+size-(op.Count-op.Excess)) // the last ones belong to the reserve
		created, failure = c.createBatch(ctx, f.Set, c.newMachines(ctx, f.Set, classes, size, min(size, excess)), done)
		for _, machine := range created {
			one := withClass(op, f.Set, machine)
			one.Machine = machine
			operations = append(operations, one)
		}
	}
	done.created += int32(len(operations))
	slices.SortFunc(operations, func(a, b scale.Operation) int { return cmp.Compare(a.Machine.Name, b.Machine.Name) })
	c.reportEach(ctx, f.Set, "SuccessfulCreate", "Created", operations)
	if failure != nil {
		c.Events.Eventf(f.Set, corev1.EventTypeWarning, "FailedCreate", "Error creating: %s", withoutName(failure, f.Set.Name))
		failure = fmt.Errorf("%w: %w", errCreate, failure)
	}
	return failure
}

// createBatch creates Machines in parallel. It returns those that now exist, and the first failure.
func (c *Controller) createBatch(ctx context.Context, set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, done *outcome) ([]*v1alpha1.Machine, error) {
	failures := make([]error, len(machines))
	each(len(machines), func(i int) { failures[i] = c.createMachine(ctx, set, machines[i]) })
	memory := c.memory.Of(client.ObjectKeyFromObject(set))
	var created []*v1alpha1.Machine
	for i, machine := range machines {
		switch {
		case failures[i] == nil:
			if failures[i] = c.deleteMismatch(ctx, set, machine); failures[i] != nil {
				memory.mismatches.Failed(failures[i], set.Generation, c.Clock.Now())
				continue
			}
			memory.mismatches.Succeeded()
			memory.machines.Created(machine, c.Clock.Now())
			created = append(created, machine)
		case errors.Is(failures[i], errUnread), !refused(failures[i]):
			done.unknown++
			memory.machines.Uncertain()
		}
	}
	return created, cmp.Or(failures...)
}

// errUnread marks the failure to read an existing Machine, which may be the one that was to be created.
var errUnread = errors.New("the machine may have been created")

// createMachine creates a Machine. If it exists already, createMachine reads it, since a proxy may have sent the
// request twice.
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

// each calls do(i) for each i below n, with limited parallelism.
func each(n int, do func(i int)) { workqueue.ParallelizeUntil(context.Background(), parallel, n, do) }

// deleteMismatch deletes a new Machine if a webhook changed it so that it does not belong to the set, and returns
// why. Otherwise the set would create more and more Machines.
func (c *Controller) deleteMismatch(ctx context.Context, set *v1alpha1.MachineSet, machine *v1alpha1.Machine) error {
	why := mismatch(set, machine)
	if why == nil {
		return nil
	}
	if err := c.Client.Delete(ctx, machine, client.Preconditions{UID: &machine.UID}); err != nil && !apierror.Gone(err) {
		return fmt.Errorf("%w, and deleting it: %w", why, err)
	}
	return why
}

// mismatch returns why a new Machine does not belong to the set. A Machine without a controller belongs to the set,
// which adopts it.
func mismatch(set *v1alpha1.MachineSet, machine *v1alpha1.Machine) error {
	if owner := metav1.GetControllerOfNoCopy(machine); owner != nil && owner.UID != set.UID {
		return fmt.Errorf("the created machine is controlled by %s %q", owner.Kind, owner.Name)
	}
	if !scale.Selector(set.Spec.Selector).Matches(labels.Set(machine.Labels)) {
		return fmt.Errorf("the created machine has the labels %q, which the selector %q does not match",
			labels.Set(machine.Labels), metav1.FormatLabelSelector(set.Spec.Selector))
	}
	return nil
}

// refused reports whether an error proves that nothing was written, since the API server rejected the request.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// withoutName returns the text of an error without the generated names of a set's Machines. Otherwise each attempt
// would change the set's condition.
func withoutName(err error, set string) string {
	generated := regexp.MustCompile(regexp.QuoteMeta(namePrefix(set)) + fmt.Sprintf("[bcdfghjklmnpqrstvwxz2456789]{%d}", suffix))
	return generated.ReplaceAllLiteralString(err.Error(), set+"-*")
}

// newMachine returns a Machine from the set's template. It has the finalizer and the priority that the machine
// controller would otherwise add.
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
	delete(machine.Annotations, driver.AnnotationLocation) // machines of a set may have different locations
	if timeout, ok := set.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]; ok {
		machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout] = timeout
	}
	controllerutil.AddFinalizer(machine, v1alpha1.FinalizerMCM)
	return machine
}

// setLocation sets the location of a new Machine's VM if it is known. The machine controller would otherwise add
// it.
func setLocation(machine *v1alpha1.Machine, location string) {
	if location != "" {
		machine.Annotations[driver.AnnotationLocation] = location
	}
}

const (
	// maxPrefix and suffix are the lengths of the parts of a generated name, like those of the API server.
	maxPrefix, suffix = 58, 5
)

// newName generates the name of a Machine like the API server would. With the name set by the client, a request
// that arrives twice creates only one Machine.
func newName(set string) string { return namePrefix(set) + rand.String(suffix) }

func namePrefix(set string) string {
	prefix := set + "-"
	return prefix[:min(len(prefix), maxPrefix)]
}

var setKind = v1alpha1.SchemeGroupVersion.WithKind("MachineSet")

func ownerReference(set *v1alpha1.MachineSet) metav1.OwnerReference {
	return *metav1.NewControllerRef(set, setKind)
}

// remove deletes Machines. It continues after a failure, and returns the first one in the order of the plan.
func (c *Controller) remove(ctx context.Context, f scale.Facts, operations []scale.Operation, done *outcome) error {
	failures := make([]error, len(operations))
	each(len(operations), func(i int) { failures[i] = c.removeOne(ctx, operations[i].Machine, done.changed) })
	children := &c.memory.Of(client.ObjectKeyFromObject(f.Set)).machines
	for i, op := range operations {
		switch {
		case failures[i] == nil:
			children.Deleted(op.Machine, c.Clock.Now()) // it may have been gone already
			done.deleted = append(done.deleted, op)
			done.leaving[op.Machine.UID] = true
		case apierror.Conflict(failures[i]): // it changed; the next pass deletes it
			done.leaving[op.Machine.UID] = true
		case !refused(failures[i]):
			children.Uncertain()
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

// removeOne deletes a Machine unless it changed after the plan was made. It may be preserved or released now.
func (c *Controller) removeOne(ctx context.Context, machine *v1alpha1.Machine, changed map[types.UID]string) error {
	version := cmp.Or(changed[machine.UID], machine.ResourceVersion)
	as := client.Preconditions{UID: &machine.UID, ResourceVersion: &version}
	if err := c.Client.Delete(ctx, machine.DeepCopy(), as); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("deleting machine %s: %w", machine.Name, err)
	}
	return nil
}

// serious returns the failures without conflicts, unless all are conflicts. After a conflict, the next pass sees
// the change.
func serious(failures []error) []error {
	others := slices.DeleteFunc(slices.Clone(failures), apierror.Conflict)
	if errors.Join(others...) == nil {
		return failures
	}
	return others
}
