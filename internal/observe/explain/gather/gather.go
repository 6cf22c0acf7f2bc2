// Package gather reads the input of explanations.
package gather

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// Reader reads facts without a cache or an index, with about a dozen requests per Machine. Objects that cannot be
// read are listed in the facts. A method returns an error only if the API server does not return the explained
// object itself.
type Reader struct {
	// Control reads the cluster of the Machines. Its scheme must contain the kinds of this project. It is required.
	Control client.Reader
	// Target reads the cluster of the nodes. It is nil if there is none.
	Target client.Reader
	// Console reads the end of the output of a VirtualMachine's console, with the permissions of the user. If nil,
	// consoles are not read.
	Console func(ctx context.Context, vm types.NamespacedName) ([]byte, error)
	// Flags are the flags of the manager.
	Flags explain.Flags
}

// Set reads the facts about a MachineSet.
func (x Reader) Set(ctx context.Context, key types.NamespacedName) (pool.Facts, error) {
	r, set := &reading{Reader: x, namespace: key.Namespace}, &v1alpha1.MachineSet{}
	facts := pool.Facts{Kind: explain.KindSet, Key: key}
	if exists, err := r.exists(ctx, "machine set", key, set); err != nil {
		return facts, err
	} else if exists {
		facts.Sets = []*v1alpha1.MachineSet{set}
		facts.Deployment = owner(ctx, r, set, &v1alpha1.MachineDeployment{}, explain.KindDeployment)
	}
	return r.pool(ctx, facts), nil
}

// Deployment reads the facts about a MachineDeployment.
func (x Reader) Deployment(ctx context.Context, key types.NamespacedName) (pool.Facts, error) {
	r, deployment := &reading{Reader: x, namespace: key.Namespace}, &v1alpha1.MachineDeployment{}
	facts := pool.Facts{Kind: explain.KindDeployment, Key: key}
	if exists, err := r.exists(ctx, "machine deployment", key, deployment); err != nil {
		return facts, err
	} else if exists {
		sets := &v1alpha1.MachineSetList{}
		facts.SetsUnread = !r.list(ctx, x.Control, sets, client.InNamespace(key.Namespace))
		facts.Deployment = deployment
		facts.Own(sets.Items)
	}
	return r.pool(ctx, facts), nil
}

type reading struct {
	Reader
	namespace string
	events    report.Events
	unread    []string
}

// exists reads the explained object, and reports whether it exists.
func (r *reading) exists(ctx context.Context, what string, key types.NamespacedName, object client.Object) (bool, error) {
	err := r.Control.Get(ctx, key, object)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("reading %s %s: %w", what, key, err)
	}
	return err == nil, nil
}

// get reads an object. It reports whether the object was found, and whether it does not exist. Other errors are
// added to the unread objects.
func (r *reading) get(ctx context.Context, key types.NamespacedName, object client.Object) (found, missing bool) {
	err := r.Control.Get(ctx, key, object)
	missing = apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
	if err != nil && !missing {
		r.note("%s %s: %v", kindOf(object), key, err)
	}
	return err == nil, missing
}

// in returns the key of an object in the namespace of the explained object.
func (r *reading) in(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: r.namespace, Name: name}
}

// list reads a list, and reports whether it succeeded. Errors other than unknown kinds are added to the unread
// objects.
func (r *reading) list(ctx context.Context, from client.Reader, list client.ObjectList, options ...client.ListOption) bool {
	err := from.List(ctx, list, options...)
	if err != nil && !meta.IsNoMatchError(err) {
		r.note("%s: %v", kindOf(list), err)
	}
	return err == nil
}

func kindOf(object any) string { return reflect.TypeOf(object).Elem().Name() }

func (r *reading) note(format string, args ...any) {
	r.unread = append(r.unread, fmt.Sprintf(format, args...))
}

// owner reads the controller of an object if it is of the given kind. It returns nil if there is none.
func owner[T client.Object](ctx context.Context, r *reading, of metav1.Object, into T, kind string) (none T) {
	ref := metav1.GetControllerOfNoCopy(of)
	if ref == nil || ref.Kind != kind {
		return none
	}
	if found, _ := r.get(ctx, r.in(ref.Name), into); !found || into.GetUID() != ref.UID {
		return none
	}
	return into
}

func (r *reading) lease(ctx context.Context, name string) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	if found, _ := r.get(ctx, r.in(name), lease); !found {
		return nil
	}
	return lease
}

func (r *reading) names(ctx context.Context, kind string) []string {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind + "List"))
	var names []string
	if r.list(ctx, r.Control, list, client.InNamespace(r.namespace)) {
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// eventsOf reads the events on objects of a kind, without events on earlier objects with the same names. Without
// objects, it reads all events on the kind.
func (r *reading) eventsOf(ctx context.Context, from client.Reader, namespace, kind string, objects ...metav1.Object) {
	fields := client.MatchingFields{"involvedObject.kind": kind}
	if len(objects) == 1 {
		fields["involvedObject.name"] = objects[0].GetName()
	}
	list := &corev1.EventList{}
	if !r.list(ctx, from, list, client.InNamespace(namespace), fields) {
		return
	}
	for i := range list.Items {
		event := &list.Items[i]
		if len(objects) == 0 || slices.ContainsFunc(objects, func(of metav1.Object) bool { return report.On(event, of.GetName(), of.GetUID()) }) {
			r.events = append(r.events, *event)
		}
	}
}

// named returns metadata that matches any object with the name.
func named(name string) metav1.Object { return &metav1.ObjectMeta{Name: name} }

// pool reads the Machines of the sets, and what else is relevant for a set or deployment.
func (r *reading) pool(ctx context.Context, facts pool.Facts) pool.Facts {
	if !facts.Exists() {
		r.eventsOf(ctx, r.Control, r.namespace, facts.Kind, named(facts.Key.Name))
		facts.Names = r.names(ctx, facts.Kind)
	}
	if len(facts.Sets) > 0 {
		machines := &v1alpha1.MachineList{}
		facts.MachinesUnread = !r.list(ctx, r.Control, machines, client.InNamespace(r.namespace))
		facts.OwnMachines(machines.Items)
	}
	r.around(ctx, &facts)
	facts.Examples = map[string]explain.MachineFacts{}
	examples := r.Reader
	examples.Console = nil // consoles are shown only for a single Machine
	for _, example := range facts.Representatives(time.Now()) {
		known, err := examples.Machine(ctx, client.ObjectKeyFromObject(example))
		if err != nil {
			r.note("Machine %s: %v", example.Name, err)
			continue
		}
		facts.Examples[example.Name] = known
		r.unread = append(r.unread, known.Unread...)
	}
	slices.Sort(r.unread)
	facts.Unread = slices.Compact(r.unread)
	return facts
}

// Around reads leases and events for a deployment whose sets and Machines are known.
func (x Reader) Around(ctx context.Context, facts pool.Facts) pool.Facts {
	(&reading{Reader: x, namespace: facts.Key.Namespace}).around(ctx, &facts)
	return facts
}

// around reads leases and events. Events on Machines contain the current step of a deletion.
func (r *reading) around(ctx context.Context, facts *pool.Facts) {
	facts.Lease = r.lease(ctx, v1alpha1.LeaseMachineControllerManager)
	facts.MachineLease = r.lease(ctx, v1alpha1.LeaseMachineController)
	if facts.Exists() && facts.Kind == explain.KindDeployment {
		r.eventsOf(ctx, r.Control, r.namespace, facts.Kind, facts.Deployment)
	}
	if sets := objects(facts.Sets); len(sets) > 0 {
		r.eventsOf(ctx, r.Control, r.namespace, explain.KindSet, sets...)
	}
	if facts.IsAnyDeleting() {
		r.eventsOf(ctx, r.Control, r.namespace, explain.KindMachine)
	}
	facts.Events = r.events
	facts.Events.Sort()
}

func objects(sets []*v1alpha1.MachineSet) []metav1.Object {
	var all []metav1.Object
	for _, set := range sets {
		all = append(all, set)
	}
	return all
}
