package ui

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// reader reads watched kinds from the caches, and all other objects from the API server. Explanations of large pools
// would otherwise list all Machines for each tab.
type reader struct {
	client.Reader
	sources map[string]*source
}

// serves returns the source of a kind if its cache has all objects of the namespace.
func (r reader) serves(kind, namespace string) *source {
	s := r.sources[kind]
	state, objects := s.get()
	if objects == nil || state.Access != AccessOK || state.Namespace != "" && state.Namespace != namespace {
		return nil
	}
	return s
}

// Get implements client.Reader.
func (r reader) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	switch into := into.(type) {
	case *v1alpha1.Machine:
		if s := r.serves("Machine", key.Namespace); s != nil {
			return copyOf(s, key, "machines", into)
		}
	case *v1alpha1.MachineSet:
		if s := r.serves("MachineSet", key.Namespace); s != nil {
			return copyOf(s, key, "machinesets", into)
		}
	case *v1alpha1.MachineDeployment:
		if s := r.serves("MachineDeployment", key.Namespace); s != nil {
			return copyOf(s, key, "machinedeployments", into)
		}
	}
	return r.Reader.Get(ctx, key, into, options...)
}

// copyOf copies a cached object. The copy shares its fields, and must not be modified.
func copyOf[T any](s *source, key client.ObjectKey, resource string, into *T) error {
	cached := objectOf[*T](s, key.String())
	if cached == nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: v1alpha1.GroupName, Resource: resource}, key.Name)
	}
	*into = *cached
	return nil
}

// List implements client.Reader.
func (r reader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var of client.ListOptions
	of.ApplyOptions(options)
	if of.LabelSelector == nil && of.Raw == nil && of.Limit == 0 && r.cached(list, of) {
		return nil
	}
	return r.Reader.List(ctx, list, options...)
}

// cached lists objects from a cache, and reports whether it has them.
func (r reader) cached(list client.ObjectList, of client.ListOptions) bool {
	switch list := list.(type) {
	case *v1alpha1.MachineList:
		return fill(r.serves("Machine", of.Namespace), of, &list.Items)
	case *v1alpha1.MachineSetList:
		return fill(r.serves("MachineSet", of.Namespace), of, &list.Items)
	case *vmv1alpha1.VirtualMachineList:
		return fill(r.serves("VirtualMachine", of.Namespace), of, &list.Items)
	case *corev1.EventList:
		s := r.serves("Event", of.Namespace)
		return s != nil && events(s, list, of)
	}
	return false
}

// fill lists all objects of a namespace.
func fill[T any](s *source, of client.ListOptions, items *[]T) bool {
	if s == nil || of.FieldSelector != nil {
		return false
	}
	*items = copiesOf[T](s, of.Namespace)
	return true
}

func copiesOf[T any](s *source, namespace string) []T {
	cached := objectsOf[*T](s, namespace)
	copies := make([]T, 0, len(cached))
	for _, object := range cached {
		copies = append(copies, *object)
	}
	return copies
}

// events lists events on a watched kind, and reports whether the cache has those events.
func events(s *source, list *corev1.EventList, of client.ListOptions) bool {
	if of.FieldSelector == nil {
		return false
	}
	kind, _ := of.FieldSelector.RequiresExactMatch("involvedObject.kind")
	name, hasName := of.FieldSelector.RequiresExactMatch("involvedObject.name")
	if kind != "Machine" && kind != "MachineSet" && kind != "MachineDeployment" {
		return false
	}
	for _, event := range objectsOf[*corev1.Event](s, of.Namespace) {
		if about := event.InvolvedObject; about.Kind == kind && (!hasName || about.Name == name) {
			list.Items = append(list.Items, *event)
		}
	}
	return true
}
