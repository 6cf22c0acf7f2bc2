package machineset

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// changeOwners adopts and releases Machines, and stops at the first failure.
func (c *Controller) changeOwners(ctx context.Context, f scale.Facts, operations []scale.Operation, done *outcome) error {
	if len(only(operations, scale.Adopt)) > 0 {
		if err := cascade.CheckAlive(ctx, c.Live, f.Set, setKind); err != nil {
			return err
		}
	}
	for _, op := range operations {
		if op.Action != scale.Adopt && op.Action != scale.Release {
			continue
		}
		verb := "Released"
		version, err := c.patchMachine(ctx, op.Machine, func(machine *v1alpha1.Machine) {
			machine.OwnerReferences = slices.DeleteFunc(machine.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == f.Set.UID })
			if op.Action == scale.Adopt {
				verb = "Adopted"
				machine.OwnerReferences = append(machine.OwnerReferences, ownerReference(f.Set))
			}
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errOwner, err)
		}
		done.changed[op.Machine.UID] = version
		c.report(ctx, f.Set, verb, verb, []string{op.Machine.Name}, op)
	}
	return nil
}

// update applies changes to the template to existing Machines.
func (c *Controller) update(ctx context.Context, f scale.Facts, operations []scale.Operation, done *outcome) error {
	versions, failures := make([]string, len(operations)), make([]error, len(operations))
	each(len(operations), func(i int) {
		var err error
		versions[i], err = c.patchMachine(ctx, operations[i].Machine, func(machine *v1alpha1.Machine) {
			scale.TakeOver(reserve.Marked(&f.Set.Spec.Template.Spec, f.Reserve.MarkFor(f.Set, machine)), &machine.Spec)
			scarcity.TakeOver(f.Set, machine)
		})
		if err != nil && !apierror.Conflict(err) { // after a conflict, the event triggers the next pass
			failures[i] = fmt.Errorf("%w: %w", errUpdate, err)
		}
	})
	var updated []scale.Operation
	for i, op := range operations {
		if versions[i] != "" {
			updated = append(updated, op)
			done.changed[op.Machine.UID] = versions[i]
		}
	}
	c.reportEach(ctx, f.Set, "SuccessfulUpdate", "Updated", updated)
	return cmp.Or(failures...)
}

// patchMachine changes a Machine and returns its new resource version, or the old one if it is gone.
func (c *Controller) patchMachine(ctx context.Context, machine *v1alpha1.Machine, change func(*v1alpha1.Machine)) (string, error) {
	changed := machine.DeepCopy()
	change(changed)
	if err := c.Client.Patch(ctx, changed, expectations.Locked(machine)); err != nil && !apierror.Gone(err) {
		return "", fmt.Errorf("changing machine %s: %w", machine.Name, err)
	}
	return changed.ResourceVersion, nil
}

// changeFreeze sets or removes the label that freezes a set.
func (c *Controller) changeFreeze(ctx context.Context, f scale.Facts, operations []scale.Operation, done *outcome) error {
	set := done.set
	for _, op := range operations {
		before, why := set.DeepCopy(), op.Reason
		reason, message := "FrozeMachineSet", "Froze"
		switch op.Action {
		case scale.Freeze:
			var err error
			if why, err = c.confirmOvershoot(ctx, f, op); err != nil || why == "" {
				return err
			}
			metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyFreeze, "True")
		case scale.Unfreeze:
			reason, message = "UnfrozeMachineSet", "Unfroze"
			delete(set.Labels, v1alpha1.LabelKeyFreeze)
			delete(set.Annotations, v1alpha1.AnnotationKeyUnfreeze)
		default:
			continue
		}
		if err := c.patchSet(ctx, set, before); err != nil {
			return err
		}
		if op.Action == scale.Freeze {
			done.froze = why
		} else if !scale.Frozen(f.Set) && condition(f.Set.Status.Conditions, v1alpha1.MachineSetFrozen) < 0 {
			continue // the set was not frozen
		}
		// The type is Normal, as in MCM.
		c.SafetyEvents.Eventf(set, corev1.EventTypeNormal, reason, "%s machine set %s: %s", message, set.Name, why)
		ctrl.LoggerFrom(ctx).Info(message+" the machine set", "why", why)
	}
	return nil
}

// confirmOvershoot returns why a set must be frozen, or "" if it must not. It reads the deployment from the API
// server, since the cache may not show yet that the deployment was scaled up.
func (c *Controller) confirmOvershoot(ctx context.Context, f scale.Facts, op scale.Operation) (string, error) {
	if f.Parent == nil {
		return op.Reason, nil
	}
	parent, err := c.parent(ctx, c.Live, f.Set)
	if err != nil {
		return "", err
	}
	if limit, exceeded := f.Overshoot.Exceeded(f.Set, parent, op.Count); exceeded {
		return scale.TooMany(op.Count, limit), nil
	}
	return "", nil
}

// changeFinalizer patches a set if change adds or removes its finalizer. In both cases, it also removes the
// finalizer of old versions of MCM, since nothing else does.
func (c *Controller) changeFinalizer(ctx context.Context, set *v1alpha1.MachineSet, change func(client.Object, string) bool) error {
	before := set.DeepCopy()
	changed := change(set, v1alpha1.FinalizerMCM)
	if !controllerutil.RemoveFinalizer(set, v1alpha1.FinalizerLegacy) && !changed {
		return nil
	}
	return c.patchSet(ctx, set, before)
}

func (c *Controller) patchSet(ctx context.Context, set, before *v1alpha1.MachineSet) error {
	if err := c.written.Patch(ctx, c.Client, set, before); err != nil {
		return fmt.Errorf("patching machine set %s: %w", set.Name, err)
	}
	return nil
}

// maxEventMessage is the maximum length of an event's message in bytes.
const maxEventMessage = 1024

// perEvent splits the names of Machines into one group per event. All failed Machines are named, since only events
// explain the failures after the Machines are gone. Of other Machines, one event names a few.
func perEvent(names []string, cause string) [][]string {
	const maxLength = maxEventMessage / 2
	if cause != v1alpha1.CauseMachineFailed {
		return [][]string{names}
	}
	var groups [][]string
	length := 0 // length of the names in the last group
	for _, name := range names {
		length += len(name) + len(", ")
		if last := len(groups) - 1; last >= 0 && length <= maxLength {
			groups[last] = append(groups[last], name)
			continue
		}
		groups, length = append(groups, []string{name}), len(name)
	}
	return groups
}

// reportEach reports operations, grouped by their reason.
func (c *Controller) reportEach(ctx context.Context, set *v1alpha1.MachineSet, reason, verb string, done []scale.Operation) {
	names, ops := map[string][]string{}, map[string]scale.Operation{}
	for _, op := range done {
		names[op.Reason], ops[op.Reason] = append(names[op.Reason], op.Machine.Name), op
	}
	for _, why := range slices.Sorted(maps.Keys(names)) {
		for _, some := range perEvent(names[why], ops[why].Cause) {
			c.report(ctx, set, reason, verb, some, ops[why])
		}
	}
}

// report reports an operation with one event, which has the cause as an annotation, and one log line.
func (c *Controller) report(ctx context.Context, set *v1alpha1.MachineSet, reason, verb string, names []string, op scale.Operation) {
	some := names[:min(5, len(names))]
	if op.Cause == v1alpha1.CauseMachineFailed {
		some = names
	}
	list := strings.Join(some, ", ")
	if more := len(names) - len(some); more > 0 {
		list = fmt.Sprintf("%s and %d more", list, more)
	}
	text := fmt.Sprintf("%s %s (%s): %s", verb, messages.Machines(len(names)), list, op.Reason)
	text = strings.ToValidUTF8(text[:min(len(text), maxEventMessage)], "")
	annotations := map[string]string{v1alpha1.EventAnnotationObjects: strings.Join(some, ",")}
	if op.Cause != "" {
		annotations[v1alpha1.EventAnnotationCause] = op.Cause
	}
	c.Events.AnnotatedEventf(set, annotations, corev1.EventTypeNormal, reason, "%s", text)
	ctrl.LoggerFrom(ctx).Info(verb+" machines", "count", len(names), "machines", list, "why", op.Reason)
}
