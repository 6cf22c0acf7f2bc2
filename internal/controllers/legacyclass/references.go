package legacyclass

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// referencesOf returns the class references of a Machine, or of the template of a set or deployment. The pointers point
// into the object.
func referencesOf(object client.Object) []*v1alpha1.ClassSpec {
	switch object := object.(type) {
	case *v1alpha1.Machine:
		return []*v1alpha1.ClassSpec{&object.Spec.Class}
	case *v1alpha1.MachineSet:
		return []*v1alpha1.ClassSpec{&object.Spec.Template.Spec.Class, &object.Spec.MachineClass}
	case *v1alpha1.MachineDeployment:
		return []*v1alpha1.ClassSpec{&object.Spec.Template.Spec.Class}
	default:
		return nil
	}
}

// requestOf returns a request for the object of a kind that a Machine, set or deployment refers to.
func requestOf(kind string, object client.Object) []reconcile.Request {
	for _, ref := range referencesOf(object) {
		if ref.Kind == kind && ref.Name != "" {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: ref.Name}}}
		}
	}
	return nil
}

// sameName returns a request for the object with the name of a MachineClass.
func sameName(_ context.Context, class client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(class)}}
}

// waiting returns a function that finds the objects of a kind that are not migrated. A driver that has just registered
// may migrate them, and is called immediately.
func (c *Controller) waiting(kind string) func(ctx context.Context, name string) []reconcile.Request {
	return func(ctx context.Context, _ string) []reconcile.Request {
		objects, err := c.list(ctx, kind)
		if err != nil {
			return nil // reads of the cache fail only when the process terminates
		}
		var requests []reconcile.Request
		for _, object := range objects {
			if !object.migrated() {
				c.recall(object).retryNow(c.Clock.Now())
				requests = append(requests, reconcile.Request{NamespacedName: object.key})
			}
		}
		return requests
	}
}

// list returns the objects of a kind from the cache.
func (c *Controller) list(ctx context.Context, kind string, options ...client.ListOption) ([]*scope, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(legacy.SchemeGroupVersion.WithKind(kind + "List"))
	if err := c.Cache.List(ctx, list, options...); err != nil {
		return nil, fmt.Errorf("listing %s: %w", kind, err)
	}
	var all []*scope
	for i := range list.Items {
		all = append(all, newScope(&list.Items[i]))
	}
	return all, nil
}

// byClass is the index of sets and deployments by the classes that they refer to. It has the same values as
// fieldindex.MachineByClass.
const byClass = "class"

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, user := range []client.Object{&v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}} {
		if err := indexer.IndexField(ctx, user, byClass, classesOf); err != nil {
			return fmt.Errorf("adding the index %s: %w", byClass, err)
		}
	}
	return nil
}

func classesOf(user client.Object) []string {
	var values []string
	for _, ref := range referencesOf(user) {
		value := ref.Name
		if ref.Kind != v1alpha1.MachineClassKind {
			value = fieldindex.OlderClass(ref.Kind, ref.Name)
		}
		if ref.Name != "" && !slices.Contains(values, value) {
			values = append(values, value)
		}
	}
	return values
}

// named reports whether a reference names the object.
func (s *scope) named(ref *v1alpha1.ClassSpec) bool {
	return ref.Kind == s.kind && ref.Name == s.key.Name
}

// findUsers finds the objects that refer to the legacy object. Without any, the object is not migrated, and the pass
// stops.
func (c *Controller) findUsers(ctx context.Context, s *scope) flow.Result {
	var err error
	if s.users, err = c.referring(ctx, s, fieldindex.OlderClass(s.kind, s.key.Name), s.named); err != nil {
		return flow.Fail(err)
	}
	if len(s.users) == 0 && !s.migrated() && !s.begun() && s.object.GetDeletionTimestamp().IsZero() {
		return flow.Stop("no object refers to the class")
	}
	return flow.Continue()
}

// referring returns the Machines, sets and deployments that have the value in the index fieldindex.MachineByClass or
// byClass, and a reference for which match returns true.
func (c *Controller) referring(ctx context.Context, s *scope, value string, match func(*v1alpha1.ClassSpec) bool) ([]client.Object, error) {
	var found []client.Object
	// Deployments come first, since they pass the kind on to their sets, and sets pass it on to their Machines.
	for _, list := range []client.ObjectList{&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}} {
		index := byClass
		if _, machines := list.(*v1alpha1.MachineList); machines {
			index = fieldindex.MachineByClass
		}
		if err := c.Client.List(ctx, list, client.InNamespace(s.key.Namespace), client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			if object := item.(client.Object); slices.ContainsFunc(referencesOf(object), match) {
				found = append(found, object)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// inUse reports whether an object refers to the MachineClass. In that case, changes to the legacy object no longer
// affect the class.
func (c *Controller) inUse(ctx context.Context, s *scope) (bool, error) {
	found, err := c.referring(ctx, s, s.key.Name, func(ref *v1alpha1.ClassSpec) bool {
		return ref.Kind == v1alpha1.MachineClassKind && ref.Name == s.key.Name
	})
	return len(found) > 0, err
}

// switchReferences changes the references of all users to the MachineClass. It keeps the name and the group, since a
// set or deployment would replace its Machines if they changed.
func (c *Controller) switchReferences(ctx context.Context, s *scope) flow.Result {
	for _, user := range s.users {
		before := user.DeepCopyObject().(client.Object)
		changed := user.DeepCopyObject().(client.Object)
		for _, ref := range referencesOf(changed) {
			if s.named(ref) {
				ref.Kind = v1alpha1.MachineClassKind
			}
		}
		moveFinalizer(changed, v1alpha1.FinalizerMCM, v1alpha1.FinalizerLegacy)
		err := c.Client.Patch(ctx, changed, expectations.Locked(before))
		if apierror.IgnoreGone(err) != nil {
			return flow.Fail(fmt.Errorf("changing the class reference of %T %s: %w", user, user.GetName(), err))
		}
	}
	return flow.Continue()
}

// moveFinalizer replaces the finalizers from with the finalizer to, and reports whether it changed the object. It does
// not change an object that is being deleted and lacks the finalizer to, which can no longer be added.
func moveFinalizer(object client.Object, to string, from ...string) bool {
	had := controllerutil.ContainsFinalizer(object, to)
	found := false
	for _, finalizer := range from {
		found = found || controllerutil.ContainsFinalizer(object, finalizer)
	}
	if !found || !had && !object.GetDeletionTimestamp().IsZero() {
		return false
	}
	controllerutil.AddFinalizer(object, to)
	for _, finalizer := range from {
		controllerutil.RemoveFinalizer(object, finalizer)
	}
	return true
}
