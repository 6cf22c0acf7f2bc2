package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Gatherer reads facts. It needs no cache and no index, and makes about a dozen requests.
type Gatherer struct {
	// Control reads the cluster of the Machines. Its scheme must know our kinds. Required.
	Control client.Reader
	// Target reads the cluster of the nodes; nil if there is none.
	Target client.Reader
	// Timeouts are put into the facts.
	Timeouts Timeouts
}

// gathering is what is read for one question.
type gathering struct {
	Gatherer
	facts Facts
}

// Gather reads all that concerns a Machine. What cannot be read is noted in the facts: it
// fails only if not even the Machine can be asked for.
func (g Gatherer) Gather(ctx context.Context, key types.NamespacedName) (Facts, error) {
	r := &gathering{Gatherer: g, facts: Facts{Key: key, Timeouts: g.Timeouts}}
	machine := &v1alpha1.Machine{}
	switch err := g.Control.Get(ctx, key, machine); {
	case err == nil:
		r.facts.Machine = machine
	case !apierrors.IsNotFound(err):
		return Facts{}, fmt.Errorf("reading machine %s: %w", key, err)
	}
	r.facts.Lease = r.lease(ctx, v1alpha1.LeaseMachineController)
	if r.facts.Machine == nil {
		r.traces(ctx)
	} else {
		r.surroundings(ctx)
	}
	slices.SortStableFunc(r.facts.Events, func(a, b corev1.Event) int { return timeOf(&a).Compare(timeOf(&b)) })
	return r.facts, nil
}

// surroundings reads what there is around a Machine that exists.
func (r *gathering) surroundings(ctx context.Context) {
	machine := r.facts.Machine
	r.owners(ctx, metav1.GetControllerOfNoCopy(machine))
	r.material(ctx)
	r.target(ctx)
	r.virtualMachine(ctx)
	r.events(ctx, r.Control, machine.Namespace, "Machine", machine.Name)
	r.ownersEvents(ctx)
}

func (r *gathering) ownersEvents(ctx context.Context) {
	if set := r.facts.Owners.Set; set != nil {
		r.eventsOf(ctx, kindSet, set)
	}
	if deployment := r.facts.Owners.Deployment; deployment != nil {
		r.eventsOf(ctx, kindDeployment, deployment)
	}
}

// traces looks for what is left of a Machine that is gone.
func (r *gathering) traces(ctx context.Context) {
	namespace := r.facts.Key.Namespace
	r.facts.Owners.Names = r.names(ctx, "Machine")
	r.events(ctx, r.Control, namespace, "Machine", r.facts.Key.Name)
	r.events(ctx, r.Control, namespace, "MachineSet", "")
	r.events(ctx, r.Control, namespace, "MachineDeployment", "")
	if set := r.formerSet(ctx); set != nil {
		r.facts.Owners.Set = set
		r.deployment(ctx, metav1.GetControllerOfNoCopy(set))
	}
}

// formerSet finds the set whose Machine it was: by the set's events, or else by the name,
// which a set makes from its own.
func (r *gathering) formerSet(ctx context.Context) *v1alpha1.MachineSet {
	sets := &v1alpha1.MachineSetList{}
	if !r.list(ctx, r.Control, sets, client.InNamespace(r.facts.Key.Namespace)) {
		return nil
	}
	called := ""
	for i := range r.facts.Events {
		if event := &r.facts.Events[i]; event.InvolvedObject.Kind == "MachineSet" && names(event.Message, r.facts.Key.Name) {
			called = event.InvolvedObject.Name
		}
	}
	for i := range sets.Items {
		if set := &sets.Items[i]; called == set.Name || called == "" && poolName(r.facts.Key.Name) == set.Name+"-" {
			return set
		}
	}
	return nil
}

func (r *gathering) owners(ctx context.Context, owner *metav1.OwnerReference) {
	if owner == nil || owner.Kind != "MachineSet" {
		return
	}
	set := &v1alpha1.MachineSet{}
	if !r.get(ctx, r.Control, types.NamespacedName{Namespace: r.facts.Key.Namespace, Name: owner.Name}, set) || set.UID != owner.UID {
		return
	}
	r.facts.Owners.Set = set
	r.deployment(ctx, metav1.GetControllerOfNoCopy(set))
}

func (r *gathering) deployment(ctx context.Context, owner *metav1.OwnerReference) {
	if owner == nil || owner.Kind != "MachineDeployment" {
		return
	}
	deployment := &v1alpha1.MachineDeployment{}
	if r.get(ctx, r.Control, types.NamespacedName{Namespace: r.facts.Key.Namespace, Name: owner.Name}, deployment) && deployment.UID == owner.UID {
		r.facts.Owners.Deployment = deployment
	}
}

// material reads the class, and of its Secrets that they are there.
func (r *gathering) material(ctx context.Context) {
	ref := r.facts.Machine.Spec.Class
	if ref.Kind != v1alpha1.MachineClassKind || ref.Name == "" {
		return // the manager's own sentence says so
	}
	class, found := &v1alpha1.MachineClass{}, &r.facts.Material
	unread := len(r.facts.Unread)
	if !r.get(ctx, r.Control, types.NamespacedName{Namespace: r.facts.Key.Namespace, Name: ref.Name}, class) {
		found.ClassMissing = len(r.facts.Unread) == unread
		return
	}
	found.Class = class
	r.events(ctx, r.Control, class.Namespace, "MachineClass", class.Name)
	for _, key := range fieldindex.SecretsOf(class) {
		secret, unread := &corev1.Secret{}, len(r.facts.Unread)
		known := Secret{Key: key}
		if r.get(ctx, r.Control, key, secret) {
			_, known.HasUserData = secret.Data[bootstrap.UserDataKey]
		} else {
			known.Unread = len(r.facts.Unread) > unread
			known.Missing = !known.Unread
		}
		found.Secrets = append(found.Secrets, known)
	}
}

// virtualMachineID is how the provider IDs of VirtualMachines begin; namespace and UUID
// follow.
const virtualMachineID = "millwright:///"

// virtualMachine finds the VirtualMachine behind the Machine. It may be in a cluster that
// only the driver knows: then there is none here.
func (r *gathering) virtualMachine(ctx context.Context) {
	id, ok := strings.CutPrefix(r.facts.Machine.Spec.ProviderID, virtualMachineID)
	namespace, uuid, complete := strings.Cut(id, "/")
	if !ok || !complete {
		return
	}
	vms := &vmv1alpha1.VirtualMachineList{}
	if !r.list(ctx, r.Control, vms, client.InNamespace(namespace)) {
		return
	}
	for i := range vms.Items {
		if vm := &vms.Items[i]; vm.Spec.UUID == uuid {
			r.facts.VM = vm
			r.events(ctx, r.Control, vm.Namespace, "VirtualMachine", vm.Name)
		}
	}
}

// get reads an object; false if it does not exist, or cannot be read, which is noted.
func (r *gathering) get(ctx context.Context, from client.Reader, key types.NamespacedName, object client.Object) bool {
	err := from.Get(ctx, key, object)
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		r.unread("%T %s: %v", object, key, err)
	}
	return err == nil
}

// list reads a list; false if its kind does not exist, or cannot be read, which is noted.
func (r *gathering) list(ctx context.Context, from client.Reader, list client.ObjectList, options ...client.ListOption) bool {
	err := from.List(ctx, list, options...)
	if err != nil && !meta.IsNoMatchError(err) {
		r.unread("%T: %v", list, err)
	}
	return err == nil
}

func (r *gathering) unread(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.facts.Unread = append(r.facts.Unread, strings.TrimPrefix(strings.TrimPrefix(text, "*v1alpha1."), "*v1."))
}

// eventsOf reads the events on an object, without those on one that had the name before.
func (r *gathering) eventsOf(ctx context.Context, kind string, object metav1.Object) {
	before := len(r.facts.Events)
	r.events(ctx, r.Control, object.GetNamespace(), kind, object.GetName())
	own := slices.DeleteFunc(slices.Clone(r.facts.Events[before:]), func(event corev1.Event) bool {
		return event.InvolvedObject.UID != "" && event.InvolvedObject.UID != object.GetUID()
	})
	r.facts.Events = append(r.facts.Events[:before], own...)
}

// events reads the events on an object, or on all of a kind if it has no name.
func (r *gathering) events(ctx context.Context, from client.Reader, namespace, kind, name string) {
	fields := client.MatchingFields{"involvedObject.kind": kind}
	if name != "" {
		fields["involvedObject.name"] = name
	}
	list := &corev1.EventList{}
	if r.list(ctx, from, list, client.InNamespace(namespace), fields) {
		r.facts.Events = append(r.facts.Events, list.Items...)
	}
}
