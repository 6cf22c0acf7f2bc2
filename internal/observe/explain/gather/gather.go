// Package gather reads what explanations are made from.
package gather

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// Reader reads facts without a cache or an index, in about a dozen requests for a Machine. What
// cannot be read is noted in the facts; it is an error only if the API server does not answer for
// the object itself.
type Reader struct {
	// Control reads the cluster of the Machines. Its scheme must know our kinds. Required.
	Control client.Reader
	// Target reads the cluster of the nodes; nil if there is none.
	Target client.Reader
	// Flags are those of the manager.
	Flags explain.Flags
}

// Set reads the facts of a MachineSet.
func (x Reader) Set(ctx context.Context, key types.NamespacedName) (explain.PoolFacts, error) {
	r, set := &reading{Reader: x, namespace: key.Namespace}, &v1alpha1.MachineSet{}
	facts := explain.PoolFacts{Kind: explain.KindSet, Key: key}
	if exists, err := r.exists(ctx, "machine set", key, set); err != nil {
		return facts, err
	} else if exists {
		facts.Sets = []*v1alpha1.MachineSet{set}
		facts.Deployment = owner(ctx, r, set, &v1alpha1.MachineDeployment{}, explain.KindDeployment)
	}
	return r.pool(ctx, facts), nil
}

// Deployment reads the facts of a MachineDeployment.
func (x Reader) Deployment(ctx context.Context, key types.NamespacedName) (explain.PoolFacts, error) {
	r, deployment := &reading{Reader: x, namespace: key.Namespace}, &v1alpha1.MachineDeployment{}
	facts := explain.PoolFacts{Kind: explain.KindDeployment, Key: key}
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

// get reads an object, and reports whether it could. An error other than absence is noted.
func (r *reading) get(ctx context.Context, name string, object client.Object) bool {
	key := types.NamespacedName{Namespace: r.namespace, Name: name}
	err := r.Control.Get(ctx, key, object)
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		r.note("%s %s: %v", kindOf(object), key, err)
	}
	return err == nil
}

// list reads a list, and reports whether it could. An error other than an unknown kind is noted.
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

// owner reads the controller of an object if it is of a kind; nil if there is none.
func owner[T client.Object](ctx context.Context, r *reading, of metav1.Object, into T, kind string) (none T) {
	ref := metav1.GetControllerOfNoCopy(of)
	if ref == nil || ref.Kind != kind || !r.get(ctx, ref.Name, into) || into.GetUID() != ref.UID {
		return none
	}
	return into
}

func (r *reading) lease(ctx context.Context, name string) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	if !r.get(ctx, name, lease) {
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

// eventsOf reads the events on an object, without those on an earlier one of its name.
func (r *reading) eventsOf(ctx context.Context, kind string, object metav1.Object) {
	known := r.events
	r.events = nil
	r.eventsNamed(ctx, r.Control, object.GetNamespace(), kind, object.GetName())
	r.events = append(known, slices.DeleteFunc(r.events, func(event corev1.Event) bool { return !report.On(&event, object.GetName(), object.GetUID()) })...)
}

// eventsNamed reads the events on the objects of a kind and a name, or on all if it is empty.
func (r *reading) eventsNamed(ctx context.Context, from client.Reader, namespace, kind, name string) {
	fields := client.MatchingFields{"involvedObject.kind": kind}
	if name != "" {
		fields["involvedObject.name"] = name
	}
	list := &corev1.EventList{}
	if r.list(ctx, from, list, client.InNamespace(namespace), fields) {
		r.events = append(r.events, list.Items...)
	}
}

func (r *reading) pool(ctx context.Context, facts explain.PoolFacts) explain.PoolFacts {
	facts.Lease = r.lease(ctx, v1alpha1.LeaseMachineControllerManager)
	facts.MachineLease = r.lease(ctx, v1alpha1.LeaseMachineController)
	if !facts.Exists() {
		r.eventsNamed(ctx, r.Control, r.namespace, facts.Kind, facts.Key.Name)
		facts.Names = r.names(ctx, facts.Kind)
	} else if facts.Kind == explain.KindDeployment {
		r.eventsOf(ctx, facts.Kind, facts.Deployment)
	}
	for _, set := range facts.Sets {
		r.eventsOf(ctx, explain.KindSet, set)
	}
	if len(facts.Sets) > 0 {
		machines := &v1alpha1.MachineList{}
		facts.MachinesUnread = !r.list(ctx, r.Control, machines, client.InNamespace(r.namespace))
		facts.OwnMachines(machines.Items)
	}
	if facts.AnyLeaves() {
		r.eventsNamed(ctx, r.Control, r.namespace, explain.KindMachine, "") // say at which steps deletions are
	}
	facts.Events = r.events
	facts.Examples = map[string]explain.MachineFacts{}
	for _, example := range facts.Representatives() {
		known, err := r.Machine(ctx, client.ObjectKeyFromObject(example))
		if err != nil {
			r.note("Machine %s: %v", example.Name, err)
			continue
		}
		facts.Examples[example.Name] = known
		r.unread = append(r.unread, known.Unread...)
	}
	slices.Sort(r.unread)
	facts.Unread = slices.Compact(r.unread)
	facts.Events.Sort()
	return facts
}
