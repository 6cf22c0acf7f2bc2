package orphans

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// API is an API group whose objects own instances. Because a driver may not distinguish the instances of two
// API groups, an instance is an orphan only if no object of any API group owns it.
type API interface {
	// Classes returns the classes of the API's instances.
	Classes(ctx context.Context) ([]Class, error)
	// Owners returns the objects that own instances. If live is true, it reads them from the API server. The
	// error is ErrHidden if reading them is forbidden.
	Owners(ctx context.Context, live bool) ([]Owner, error)
	// Owner reads an object from the API server. It returns nil if the object does not exist.
	Owner(ctx context.Context, key types.NamespacedName) (*Owner, error)
	// Finalizer returns the finalizer that the API group sets on the MachineClasses that its objects use.
	Finalizer() string
}

// ErrHidden is the error of an API whose objects must not be read. If the driver distinguishes API groups, such
// an API counts as having no objects, except for classes that have its finalizer.
var ErrHidden = errors.New("reading is forbidden")

// Class is a class of instances.
type Class struct {
	// Key is unique among the classes of all APIs.
	Key string
	// Class and Secret are for the driver's requests.
	Class  *v1alpha1.MachineClass
	Secret *corev1.Secret
	// Skip is why the class cannot be checked. It is empty if it can be checked.
	Skip string
	// Object is the object for events. It may have AnnotationOrphans.
	Object client.Object
}

// Owner is an object that owns an instance or may own one in the future.
type Owner struct {
	Namespace, Name string
	// ProviderIDs are the provider IDs of its instances. It is empty if the object has none yet.
	ProviderIDs []string
	// Class is the key of its class. It is empty if the class is unknown.
	Class string
	// Creating reports that it may adopt any instance with its name.
	Creating bool
}

// Machines is the API group machine.sapcloud.io.
type Machines struct {
	// Cache reads Machines and classes from a cache. It is nil if the manager does not serve this API group.
	// Live reads from the API server and is required.
	Cache, Live client.Reader
	// Namespace is the namespace of the objects. If empty, it means all namespaces.
	Namespace string
	// Secret merges the Secrets of a class. If missing is not empty, it is the reason why the class is skipped.
	// Required with Cache.
	Secret func(ctx context.Context, class *v1alpha1.MachineClass) (secret *corev1.Secret, missing string, err error)
	// Mapper finds out whether the API server serves Machines. If nil, it is assumed to.
	Mapper meta.RESTMapper
}

var _ API = Machines{}

// Finalizer implements API.
func (m Machines) Finalizer() string { return v1alpha1.FinalizerMCM }

// Classes implements API.
func (m Machines) Classes(ctx context.Context) ([]Class, error) {
	if m.Cache == nil {
		return nil, nil
	}
	list := &v1alpha1.MachineClassList{}
	if err := m.Cache.List(ctx, list, client.InNamespace(m.Namespace)); err != nil {
		return nil, fmt.Errorf("listing the classes: %w", err)
	}
	var classes []Class
	for i := range list.Items {
		class := &list.Items[i]
		made := Class{Key: class.Name, Class: class, Object: class}
		var err error
		if made.Secret, made.Skip, err = m.Secret(ctx, class); err != nil {
			made.Skip = err.Error()
		}
		classes = append(classes, made)
	}
	return classes, nil
}

// Owners implements API.
func (m Machines) Owners(ctx context.Context, live bool) ([]Owner, error) {
	if there, err := Served(m.Mapper, v1alpha1.SchemeGroupVersion.WithKind("Machine")); err != nil || !there {
		return nil, err
	}
	from := m.Cache
	options := []client.ListOption{client.InNamespace(m.Namespace), client.UnsafeDisableDeepCopy}
	if live || from == nil {
		from, options = m.Live, options[:1]
	}
	list := &v1alpha1.MachineList{}
	if err := Hidden(from.List(ctx, list, options...)); err != nil {
		return nil, fmt.Errorf("reading the machines: %w", err)
	}
	var owners []Owner
	for i := range list.Items {
		owners = append(owners, machineOwner(&list.Items[i]))
	}
	return owners, nil
}

// Owner implements API.
func (m Machines) Owner(ctx context.Context, key types.NamespacedName) (*Owner, error) {
	machine := &v1alpha1.Machine{}
	if err := m.Live.Get(ctx, key, machine); err != nil {
		if absent(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading machine %s: %w", key.Name, Hidden(err))
	}
	owner := machineOwner(machine)
	return &owner, nil
}

func machineOwner(machine *v1alpha1.Machine) Owner {
	owner := Owner{Namespace: machine.Namespace, Name: machine.Name, Class: machine.Spec.Class.Name, Creating: creating(machine)}
	if id := machine.Spec.ProviderID; id != "" {
		owner.ProviderIDs = []string{id}
	}
	return owner
}

// creating reports whether a Machine may still adopt an instance.
func creating(machine *v1alpha1.Machine) bool {
	phase := machine.Status.CurrentStatus.Phase
	return machine.Spec.ProviderID == "" || phase == "" || phase == v1alpha1.MachineCrashLoopBackOff
}

// Hidden wraps the error of a forbidden read with ErrHidden. It returns nil for kinds that the API server does
// not serve.
func Hidden(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w", ErrHidden, err)
	case absent(err):
		return nil
	}
	return err
}

// Served reports whether the API server serves a kind. Without a mapper, it returns true.
func Served(mapper meta.RESTMapper, kind schema.GroupVersionKind) (bool, error) {
	if mapper == nil {
		return true, nil
	}
	_, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	switch {
	case meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("checking whether the API server serves the kind %s: %w", kind.Kind, err)
	}
	return true, nil
}

func absent(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }
