// Package owners lists the instances of MillwrightMachines for the orphan collector.
package owners

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
)

// MillwrightMachines implements orphans.API for Cluster API objects.
type MillwrightMachines struct {
	// Cache and Live read objects: Cache from a cache, and Live from the API server. Live is required. If Cache is
	// nil, the manager does not serve this API, and there are no classes.
	Cache, Live client.Reader
	// Namespace is the namespace of the objects. If empty, all namespaces are used.
	Namespace string
	// Drivers are the drivers of the manager, which cannot list the VMs of other drivers. Required.
	Drivers *registry.Registry
	// WatchFilter is the value of the label core.LabelWatchFilter of the objects whose VMs are searched for. If
	// empty, all objects are used.
	WatchFilter string
	// Mapper determines whether the API server serves MillwrightMachines, because a client without permission to read
	// them gets the same error in both cases. If nil, they are served.
	Mapper meta.RESTMapper
}

var _ orphans.API = MillwrightMachines{}

// Finalizer implements orphans.API.
func (f MillwrightMachines) Finalizer() string { return infrav1.ClassFinalizer }

// Owners implements orphans.API. It returns the objects of all managers.
func (f MillwrightMachines) Owners(ctx context.Context, live bool) ([]orphans.Owner, error) {
	if served, err := orphans.Served(f.Mapper, infrav1.SchemeGroupVersion.WithKind(infrav1.MillwrightMachineKind)); err != nil || !served {
		return nil, err
	}
	from, options := f.Cache, []client.ListOption{client.InNamespace(f.Namespace), client.UnsafeDisableDeepCopy}
	if live || from == nil {
		from, options = f.Live, options[:1]
	}
	list := &infrav1.MillwrightMachineList{}
	if err := orphans.Hidden(from.List(ctx, list, options...)); err != nil {
		return nil, fmt.Errorf("reading the MillwrightMachines: %w", err)
	}
	var owners []orphans.Owner
	for i := range list.Items {
		owners = append(owners, ownerOf(&list.Items[i]))
	}
	return owners, nil
}

// Owner implements orphans.API.
func (f MillwrightMachines) Owner(ctx context.Context, key types.NamespacedName) (*orphans.Owner, error) {
	machine := &infrav1.MillwrightMachine{}
	if err := f.Live.Get(ctx, key, machine); err != nil {
		if err = orphans.Hidden(err); err == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading MillwrightMachine %s: %w", key.Name, err)
	}
	owner := ownerOf(machine)
	return &owner, nil
}

// ownerOf returns the owner for a machine. If a user has changed its provider ID, the owner has both IDs, because
// either may be that of its VM. A machine with an empty status may have been moved here from another cluster.
func ownerOf(machine *infrav1.MillwrightMachine) orphans.Owner {
	owner := orphans.Owner{
		Namespace: machine.Namespace, Name: machine.Name, Class: classKey(described(machine)),
		Creating: machine.Spec.ProviderID == "" || machine.Status.ProviderID == "",
	}
	for _, id := range []string{machine.Status.ProviderID, machine.Spec.ProviderID} {
		if id != "" {
			owner.ProviderIDs = append(owner.ProviderIDs, id)
		}
	}
	return owner
}

// description is an object that describes VMs, with a machine that represents its VMs.
type description struct {
	object  client.Object
	machine *infrav1.MillwrightMachine
}

// described returns the description of a machine, without fields that do not affect the creation of VMs.
func described(machine *infrav1.MillwrightMachine) *infrav1.MillwrightMachine {
	return describedBy(machine, &machine.Spec, machine.Annotations[core.AnnotationClonedFrom])
}

func describedBy(object client.Object, spec *infrav1.MillwrightMachineSpec, template string) *infrav1.MillwrightMachine {
	machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName()}, Spec: *spec}
	machine.Spec.ProviderID = ""
	if template != "" {
		machine.Annotations = map[string]string{core.AnnotationClonedFrom: template}
	}
	return machine
}

// Classes implements orphans.API. There is one class for each distinct description in machines or templates. Classes
// with a paused object are skipped, because their machines may be about to be moved between clusters.
func (f MillwrightMachines) Classes(ctx context.Context) ([]orphans.Class, error) {
	if f.Cache == nil {
		return nil, nil
	}
	descriptions, err := f.descriptions(ctx)
	if err != nil {
		return nil, err
	}
	var classes []orphans.Class
	index := map[string]int{}
	for _, d := range descriptions {
		key := classKey(d.machine)
		at, known := index[key]
		if !known {
			class, err := f.class(ctx, key, d)
			if err != nil {
				return nil, err
			}
			at, index[key] = len(classes), len(classes)
			classes = append(classes, class)
		}
		paused, err := f.paused(ctx, d.object)
		switch {
		case err != nil:
			return nil, err
		case paused:
			classes[at].Skip = "the cluster is paused"
		}
	}
	return classes, nil
}

// descriptions returns the descriptions in the templates and machines of this manager, one for each failure domain in
// which their VMs may be.
func (f MillwrightMachines) descriptions(ctx context.Context) ([]description, error) {
	templates := &infrav1.MillwrightMachineTemplateList{}
	if err := f.Cache.List(ctx, templates, client.InNamespace(f.Namespace)); err != nil {
		return nil, fmt.Errorf("listing the MillwrightMachineTemplates: %w", err)
	}
	machines := &infrav1.MillwrightMachineList{}
	if err := f.Cache.List(ctx, machines, client.InNamespace(f.Namespace)); err != nil {
		return nil, fmt.Errorf("listing the MillwrightMachines: %w", err)
	}
	var all []description
	add := func(object client.Object, machine *infrav1.MillwrightMachine) {
		if !f.Drivers.Has(machine.Spec.Driver) || !core.Watched(f.WatchFilter, object) {
			return
		}
		all = append(all, description{object, machine})
		if machine.Spec.FailureDomain != "" {
			return
		}
		for _, domain := range machine.Spec.FailureDomains {
			placed := machine.DeepCopy()
			placed.Spec.FailureDomain = domain.Name
			all = append(all, description{object, placed})
		}
	}
	for i := range templates.Items {
		template := &templates.Items[i]
		add(template, describedBy(template, &template.Spec.Template.Spec, template.Name))
	}
	for i := range machines.Items {
		add(&machines.Items[i], described(&machines.Items[i]))
	}
	return all, nil
}

// paused reports whether an object or its Cluster is paused. If the Cluster does not exist, it may be about to be
// moved here.
func (f MillwrightMachines) paused(ctx context.Context, object client.Object) (bool, error) {
	name := core.ClusterName(object)
	cluster, err := core.FindCluster(ctx, f.Cache, object.GetNamespace(), name)
	return name != "" && cluster == nil || core.Paused(cluster, object), err
}

// class returns the inputs of the driver for a description, or the reason why there are none.
func (f MillwrightMachines) class(ctx context.Context, key string, d description) (orphans.Class, error) {
	class := orphans.Class{Key: key, Object: d.object}
	read, err := inputs.Reader{Cache: f.Cache, Live: f.Live, Placer: f.Drivers}.Read(ctx, d.machine)
	if read.MachineClass != nil {
		class.Object = read.MachineClass
	}
	class.Class, class.Secret = read.Class, read.Secret
	var missing *inputs.Error
	if errors.As(err, &missing) {
		class.Skip = missing.Message
		return class, nil
	}
	return class, err
}

// classKey returns a key that is the same for all machines with the same description.
func classKey(machine *infrav1.MillwrightMachine) string {
	text, err := json.Marshal(struct {
		Namespace, Template string
		Spec                infrav1.MillwrightMachineSpec
	}{machine.Namespace, machine.Annotations[core.AnnotationClonedFrom], machine.Spec})
	if err != nil {
		panic(err) // objects that were read as JSON can be written as JSON
	}
	sum := sha256.Sum256(text)
	return "capi/" + hex.EncodeToString(sum[:16])
}
