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
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// parallel is how many equal writes are under way at the same time.
const parallel = 20

// errCreate marks failures to create Machines.
var errCreate = errors.New("creating machines")

// apply carries out a plan. Machines are counted with those that are adopted and without
// those that are released, so if that fails, nothing is created or deleted. The facts
// learn what was created and changed.
func (c *Controller) apply(ctx context.Context, f *facts, operations []operation) error {
	set := f.set
	if err := c.changeOwners(ctx, f, operations); err != nil {
		return err
	}
	if err := c.changeFreeze(ctx, set, operations); err != nil {
		return err
	}
	var failures []error
	if updates := only(operations, update); len(updates) > 0 {
		failures = append(failures, c.update(ctx, f, updates))
	}
	for _, op := range only(operations, create) {
		failures = append(failures, c.create(ctx, f, op))
	}
	removed, err := c.remove(ctx, f, only(operations, remove))
	c.slowDown(ctx, f, removed)
	return errors.Join(serious(append(failures, err))...)
}

func only(operations []operation, wanted action) []operation {
	var some []operation
	for _, op := range operations {
		if op.action == wanted {
			some = append(some, op)
		}
	}
	return some
}

// slowDown takes note of Machines that were removed because they failed.
func (c *Controller) slowDown(ctx context.Context, f *facts, removed []operation) {
	delay, rounds, last := c.slowed.failed(f, removed)
	if delay == 0 {
		return
	}
	f.notBefore = f.now.Add(delay)
	text := fmt.Sprintf("Machines failed before they joined, %d times in a row: "+messages.NextMade+"%s at the earliest", rounds, delay)
	if why := last.Status.LastOperation.Description; why != "" {
		text += messages.LastFailed + last.Name + ": " + messages.Shorten(why, longestEvent/2)
	}
	annotations := map[string]string{
		v1alpha1.EventAnnotationCause: v1alpha1.CauseMachineFailed, v1alpha1.EventAnnotationObjects: last.Name,
		v1alpha1.EventAnnotationUntil: f.notBefore.UTC().Format(time.RFC3339),
	}
	if code := last.Status.LastOperation.ErrorCode; code != "" {
		annotations[v1alpha1.EventAnnotationCode] = code
	}
	c.Events.AnnotatedEventf(f.set, annotations, corev1.EventTypeWarning, "BackOff", "%s", text)
	ctrl.LoggerFrom(ctx).Info("machines keep failing", "times", rounds, "delay", delay)
}

// create makes Machines, and notes how many. It does so in batches of growing size, and
// stops after a batch that had a failure: what the first Machine is refused for, the hundredth is too.
func (c *Controller) create(ctx context.Context, f *facts, op operation) error {
	var names []string
	var failure error
	for batch := 1; len(names) < op.count && failure == nil; batch *= 2 {
		var made []string
		made, failure = c.createBatch(ctx, f, min(batch, op.count-len(names)))
		names = append(names, made...)
	}
	f.created += int32(len(names))
	if len(names) > 0 {
		slices.Sort(names)
		c.say(ctx, f.set, "SuccessfulCreate", "Created", names, "", op.reason)
	}
	if failure != nil {
		c.Events.Eventf(f.set, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", failure)
		failure = fmt.Errorf("%w: %w", errCreate, failure)
	}
	return failure
}

func (c *Controller) createBatch(ctx context.Context, f *facts, size int) ([]string, error) {
	set := f.set
	machines := make([]*v1alpha1.Machine, size)
	var unknown atomic.Int32
	var group errgroup.Group // a failure does not cut off the others: their outcome would be unknown
	group.SetLimit(parallel)
	for i := range machines {
		group.Go(func() error {
			machine := newMachine(set)
			if err := c.Client.Create(ctx, machine); err != nil {
				if !refused(err) {
					unknown.Add(1)
					c.expected.doubt(client.ObjectKeyFromObject(set))
				}
				return withoutName(err, set.Name)
			}
			if !selects(set.Spec.Selector, machine.Labels) {
				return withoutName(c.takeBack(ctx, set, machine), set.Name)
			}
			c.expected.create(client.ObjectKeyFromObject(set), machine.Name, c.Clock.Now())
			machines[i] = machine
			return nil
		})
	}
	err := group.Wait()
	f.unknown += unknown.Load()
	var names []string
	for _, machine := range machines {
		if machine != nil {
			names = append(names, machine.Name)
		}
	}
	return names, err
}

// takeBack deletes a Machine that was made with other labels than those of the template, as by a
// webhook, and says so. The set would let go of it and make another in its place, and so on.
func (c *Controller) takeBack(ctx context.Context, set *v1alpha1.MachineSet, machine *v1alpha1.Machine) error {
	why := fmt.Errorf("what is made has the labels %q, which the selector %q does not match",
		labels.Set(machine.Labels), metav1.FormatLabelSelector(set.Spec.Selector))
	if err := c.Client.Delete(ctx, machine, client.Preconditions{UID: &machine.UID}); err != nil && !expectations.Gone(err) {
		return fmt.Errorf("%w, and deleting it: %w", why, err)
	}
	return why
}

// refused reports whether an error proves that nothing was written: the API server has
// answered, and said no.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// namelessError is an error with another text.
type namelessError struct {
	error
	text string
}

func (e namelessError) Error() string { return e.text }
func (e namelessError) Unwrap() error { return e.error }

// withoutName takes the generated name out of the text of an error, or each attempt would write
// another text into the set's condition. A webhook's text may have the name, too.
func withoutName(err error, set string) error {
	return namelessError{err, generated(set).ReplaceAllLiteralString(err.Error(), set+"-*")}
}

// generated matches the names that the API server makes for Machines of a set. It cuts what
// they begin with to 58 characters, and appends five.
func generated(set string) *regexp.Regexp {
	prefix := set + "-"
	return regexp.MustCompile(regexp.QuoteMeta(prefix[:min(len(prefix), 58)]) + "[bcdfghjklmnpqrstvwxz2456789]{5}")
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

// remove deletes Machines. It tries all of them, and returns what was done and the first
// failure in the order of the plan.
func (c *Controller) remove(ctx context.Context, f *facts, operations []operation) ([]operation, error) {
	failures := make([]error, len(operations))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, op := range operations {
		group.Go(func() error {
			failures[i] = c.removeOne(ctx, f, op.machine)
			return nil // a failure does not cut off the others: their outcome would be unknown
		})
	}
	_ = group.Wait() // never fails
	var done []operation
	f.removed = map[types.UID]bool{}
	for i, op := range operations {
		if failures[i] == nil {
			done = append(done, op)
		}
		f.removed[op.machine.UID] = failures[i] == nil || !refused(failures[i])
	}
	c.sayEach(ctx, f.set, "SuccessfulDelete", "Deleted", done)
	err := cmp.Or(serious(failures)...)
	if err != nil && !expectations.Conflict(err) {
		c.Events.Eventf(f.set, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	}
	return done, err
}

func (c *Controller) removeOne(ctx context.Context, f *facts, machine *v1alpha1.Machine) error {
	key := client.ObjectKeyFromObject(f.set)
	// The UID keeps a Machine of the same name that was made meanwhile. The version keeps one
	// that was chosen for what it is no more: it may be preserved by now, or have been let go of
	// before its set.
	version := cmp.Or(f.changed[machine.UID], machine.ResourceVersion)
	as := client.Preconditions{UID: &machine.UID, ResourceVersion: &version}
	err := c.Client.Delete(ctx, machine.DeepCopy(), as)
	if err == nil || expectations.Gone(err) {
		c.expected.delete(key, machine, c.Clock.Now()) // gone already, if the cache did not show it
		return nil
	}
	if !refused(err) {
		c.expected.doubt(key)
	}
	return fmt.Errorf("deleting machine %s: %w", machine.Name, err)
}

// serious are failures without conflicts, if there are others. Of a conflict nobody needs to be
// told: what changed meanwhile is looked at again.
func serious(failures []error) []error {
	others := slices.DeleteFunc(slices.Clone(failures), expectations.Conflict)
	if errors.Join(others...) == nil {
		return failures
	}
	return others
}
