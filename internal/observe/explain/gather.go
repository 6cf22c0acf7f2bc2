package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/observe/explain/machine"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// Explainer reads what an explanation is made from. It needs no cache and no index, and makes
// about a dozen requests for a Machine.
type Explainer struct {
	// Control reads the cluster of the Machines. Its scheme must know our kinds. Required.
	Control client.Reader
	// Target reads the cluster of the nodes; nil if there is none.
	Target client.Reader
	// Flags are those of the manager.
	Flags machine.Flags
}

// Machine explains a Machine. What cannot be read is noted in the report: it fails only if not
// even the Machine can be asked for.
func (x Explainer) Machine(ctx context.Context, key types.NamespacedName) (report.Report, error) {
	facts, err := x.machine(ctx, key)
	return machine.Explain(facts, time.Now()), err
}

// Set explains a MachineSet in the same way.
func (x Explainer) Set(ctx context.Context, key types.NamespacedName) (report.Report, error) {
	r := &reading{Explainer: x, namespace: key.Namespace}
	facts := pool.Facts{Kind: pool.Set, Key: key}
	set := &v1alpha1.MachineSet{}
	switch err := x.Control.Get(ctx, key, set); {
	case err == nil:
		facts.Sets = []v1alpha1.MachineSet{*set}
		facts.Deployment = owner(ctx, r, set, &v1alpha1.MachineDeployment{}, pool.Deployment)
	case !apierrors.IsNotFound(err):
		return report.Report{}, fmt.Errorf("reading machine set %s: %w", key, err)
	}
	return pool.Explain(r.pool(ctx, facts), time.Now()), nil
}

// Deployment explains a MachineDeployment in the same way.
func (x Explainer) Deployment(ctx context.Context, key types.NamespacedName) (report.Report, error) {
	r := &reading{Explainer: x, namespace: key.Namespace}
	facts := pool.Facts{Kind: pool.Deployment, Key: key}
	deployment := &v1alpha1.MachineDeployment{}
	switch err := x.Control.Get(ctx, key, deployment); {
	case err == nil:
		facts.Deployment = deployment
		facts.Sets, facts.SetsUnread = r.setsOf(ctx, deployment)
	case !apierrors.IsNotFound(err):
		return report.Report{}, fmt.Errorf("reading machine deployment %s: %w", key, err)
	}
	return pool.Explain(r.pool(ctx, facts), time.Now()), nil
}

// reading is what is read for one question.
type reading struct {
	Explainer
	namespace string
	events    report.Events
	unread    []string
}

// get reads an object; false if it does not exist, or cannot be read, which is noted.
func (r *reading) get(ctx context.Context, name string, object client.Object) bool {
	key := types.NamespacedName{Namespace: r.namespace, Name: name}
	err := r.Control.Get(ctx, key, object)
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		r.note("%T %s: %v", object, key, err)
	}
	return err == nil
}

// list reads a list; false if its kind does not exist, or cannot be read, which is noted.
func (r *reading) list(ctx context.Context, from client.Reader, list client.ObjectList, options ...client.ListOption) bool {
	err := from.List(ctx, list, options...)
	if err != nil && !meta.IsNoMatchError(err) {
		r.note("%T: %v", list, err)
	}
	return err == nil
}

func (r *reading) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.unread = append(r.unread, strings.TrimPrefix(strings.TrimPrefix(text, "*v1alpha1."), "*v1."))
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

// names are those of the objects of a kind in the namespace.
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

// eventsOf reads the events on an object, without those on one that had the name before.
func (r *reading) eventsOf(ctx context.Context, kind string, object metav1.Object) {
	for _, event := range r.read(ctx, r.Control, object.GetNamespace(), kind, object.GetName()) {
		if uid := event.InvolvedObject.UID; uid == "" || uid == object.GetUID() {
			r.events = append(r.events, event)
		}
	}
}

// eventsNamed reads the events on whatever has a name, or on all of a kind if it is empty.
func (r *reading) eventsNamed(ctx context.Context, from client.Reader, namespace, kind, name string) {
	r.events = append(r.events, r.read(ctx, from, namespace, kind, name)...)
}

func (r *reading) read(ctx context.Context, from client.Reader, namespace, kind, name string) []corev1.Event {
	fields := client.MatchingFields{"involvedObject.kind": kind}
	if name != "" {
		fields["involvedObject.name"] = name
	}
	list := &corev1.EventList{}
	if !r.list(ctx, from, list, client.InNamespace(namespace), fields) {
		return nil
	}
	return list.Items
}

// setsOf are the sets of a deployment, the oldest first.
func (r *reading) setsOf(ctx context.Context, deployment *v1alpha1.MachineDeployment) (owned []v1alpha1.MachineSet, unread bool) {
	list := &v1alpha1.MachineSetList{}
	if !r.list(ctx, r.Control, list, client.InNamespace(r.namespace)) {
		return nil, true
	}
	sets := slices.DeleteFunc(list.Items, func(set v1alpha1.MachineSet) bool { return !metav1.IsControlledBy(&set, deployment) })
	slices.SortFunc(sets, func(a, b v1alpha1.MachineSet) int { return revision.Older(&a, &b) })
	return sets, false
}

// pool reads what else there is of a set or deployment.
func (r *reading) pool(ctx context.Context, facts pool.Facts) pool.Facts {
	facts.Lease = r.lease(ctx, v1alpha1.LeaseMachineControllerManager)
	facts.MachineLease = r.lease(ctx, v1alpha1.LeaseMachineController)
	if facts.Kind == pool.Deployment && facts.Exists() {
		r.eventsOf(ctx, pool.Deployment, facts.Deployment)
	}
	for i := range facts.Sets {
		r.eventsOf(ctx, pool.Set, &facts.Sets[i])
	}
	if !facts.Exists() {
		r.eventsNamed(ctx, r.Control, r.namespace, facts.Kind, facts.Key.Name)
		facts.Names = r.names(ctx, facts.Kind)
	}
	machines := &v1alpha1.MachineList{}
	if len(facts.Sets) > 0 {
		facts.MachinesUnread = !r.list(ctx, r.Control, machines, client.InNamespace(r.namespace))
		facts.Machines = slices.DeleteFunc(machines.Items, func(machine v1alpha1.Machine) bool {
			return !slices.ContainsFunc(facts.Sets, func(set v1alpha1.MachineSet) bool { return metav1.IsControlledBy(&machine, &set) })
		})
	}
	facts.Examples = map[string]machine.Facts{}
	for _, example := range facts.Representatives() {
		known, err := r.machine(ctx, client.ObjectKeyFromObject(example))
		if err != nil {
			r.note("Machine %s: %v", example.Name, err)
			continue
		}
		facts.Examples[example.Name] = known
		r.unread = append(r.unread, known.Unread...)
	}
	slices.Sort(r.unread)
	facts.Unread, facts.Events = slices.Compact(r.unread), r.events
	facts.Events.Sort()
	return facts
}
