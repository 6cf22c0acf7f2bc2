// Package owners lists the instances of MillwrightMachines for the collector of orphans.
package owners

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/translate"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// MillwrightMachines is the API group of Cluster API objects.
type MillwrightMachines struct {
	// Cache and Live read objects: from a cache, and from the API server. Live is required.
	// Without a Cache the manager does not have this API, so it has no classes.
	Cache, Live client.Reader
	// Namespace in which the objects are. Empty: in all.
	Namespace string
	// Driver is the name of the manager's driver: VMs of others cannot be listed. Placer is
	// that driver, if it knows failure domains; nil if it does not.
	Driver string
	Placer driver.FailureDomains
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have
	// for their VMs to be looked for. Empty: that does not matter.
	WatchFilter string
	// Mapper knows whether MillwrightMachines are served at all, which nobody is told who
	// may not read them. Nil: they are.
	Mapper meta.RESTMapper
}

var _ orphans.API = MillwrightMachines{}

// Finalizer implements orphans.API.
func (f MillwrightMachines) Finalizer() string { return infrav1.ClassFinalizer }

// Owners implements orphans.API. Whose manager they are does not matter.
func (f MillwrightMachines) Owners(ctx context.Context, live bool) ([]orphans.Owner, error) {
	if there, err := orphans.Served(f.Mapper, infrav1.SchemeGroupVersion.WithKind(infrav1.MillwrightMachineKind)); err != nil || !there {
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

// ownerOf has both IDs of a machine whose ID was changed by hand: either may be its VM. One
// whose status is empty may have arrived from another cluster just now.
func ownerOf(machine *infrav1.MillwrightMachine) orphans.Owner {
	owner := orphans.Owner{
		Namespace: machine.Namespace, Name: machine.Name, Class: classKey(machine.Namespace, &machine.Spec, machine.Annotations[core.AnnotationClonedFrom], machine.Spec.FailureDomain),
		Creating: machine.Spec.ProviderID == "" || machine.Status.ProviderID == "",
	}
	for _, id := range []string{machine.Status.ProviderID, machine.Spec.ProviderID} {
		if id != "" {
			owner.ProviderIDs = append(owner.ProviderIDs, id)
		}
	}
	return owner
}

// Classes implements orphans.API. A class is whatever machines or templates describe, each
// description once. VMs of what is paused are nobody's to judge: their owners may be on
// their way from one cluster to another.
func (f MillwrightMachines) Classes(ctx context.Context) ([]orphans.Class, error) {
	if f.Cache == nil {
		return nil, nil
	}
	described, err := f.described(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]*orphans.Class{}
	var keys []string
	for _, d := range described {
		for _, domain := range d.domains() {
			key := classKey(d.object.GetNamespace(), d.spec, d.template, domain)
			class, known := found[key]
			if !known {
				class = &orphans.Class{Key: key, Object: d.object}
				found[key], keys = class, append(keys, key)
				if err := f.complete(ctx, class, d, domain); err != nil {
					return nil, err
				}
			}
			paused, err := f.paused(ctx, d.object)
			switch {
			case err != nil:
				return nil, err
			case paused:
				class.Skip = "the cluster is paused"
			}
		}
	}
	var classes []orphans.Class
	for _, key := range keys {
		classes = append(classes, *found[key])
	}
	return classes, nil
}

// description is an object that says how VMs are made.
type description struct {
	object   client.Object
	spec     *infrav1.MillwrightMachineSpec
	template string // its name, if it is known
}

// domains are the failure domains in which VMs of the description may be; "" is none.
func (d description) domains() []string {
	if d.spec.FailureDomain != "" {
		return []string{d.spec.FailureDomain}
	}
	domains := []string{""}
	for _, placement := range d.spec.FailureDomains {
		domains = append(domains, placement.Name)
	}
	return domains
}

// described lists what says how VMs are made, as far as it is for this manager.
func (f MillwrightMachines) described(ctx context.Context) ([]description, error) {
	templates := &infrav1.MillwrightMachineTemplateList{}
	if err := f.Cache.List(ctx, templates, client.InNamespace(f.Namespace)); err != nil {
		return nil, fmt.Errorf("listing the MillwrightMachineTemplates: %w", err)
	}
	machines := &infrav1.MillwrightMachineList{}
	if err := f.Cache.List(ctx, machines, client.InNamespace(f.Namespace)); err != nil {
		return nil, fmt.Errorf("listing the MillwrightMachines: %w", err)
	}
	var all []description
	add := func(d description) {
		if d.spec.Driver == f.Driver && core.Watched(f.WatchFilter, d.object) {
			all = append(all, d)
		}
	}
	for i := range templates.Items {
		add(description{&templates.Items[i], &templates.Items[i].Spec.Template.Spec, templates.Items[i].Name})
	}
	for i := range machines.Items {
		add(description{&machines.Items[i], &machines.Items[i].Spec, machines.Items[i].Annotations[core.AnnotationClonedFrom]})
	}
	return all, nil
}

// paused reports whether an object or its Cluster is paused. A Cluster that is not there may
// be on its way.
func (f MillwrightMachines) paused(ctx context.Context, object client.Object) (bool, error) {
	name := object.GetLabels()[core.LabelCluster]
	if name == "" {
		name = core.Owner(object, core.ClusterKind)
	}
	if name == "" {
		return core.Paused(nil, object), nil
	}
	cluster := &core.Cluster{}
	if err := f.Cache.Get(ctx, types.NamespacedName{Namespace: object.GetNamespace(), Name: name}, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("reading Cluster %s: %w", name, err)
	}
	return core.Paused(cluster, object), nil
}

// complete makes what the driver gets, or says why that cannot be.
func (f MillwrightMachines) complete(ctx context.Context, class *orphans.Class, d description, domain string) error {
	machine := &infrav1.MillwrightMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.object.GetNamespace(), Name: d.object.GetName()}, Spec: *d.spec,
	}
	if d.template != "" {
		machine.Annotations = map[string]string{core.AnnotationClonedFrom: d.template}
	}
	given := translate.Given{Machine: machine, FailureDomain: domain, Placer: f.Placer, Secret: map[string][]byte{}}
	if ref := d.spec.MachineClassRef; ref != nil {
		of := &v1alpha1.MachineClass{}
		if err := f.Cache.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, of); err != nil {
			class.Skip = fmt.Sprintf("MachineClass %q: %v", ref.Name, err)
			return client.IgnoreNotFound(err)
		}
		secret, missing, err := fieldindex.MergedSecret(ctx, f.Live, of)
		if class.Skip = missing; err != nil || missing != "" {
			return err
		}
		given.Class, given.Secret, class.Object = of, secret.Data, of
	}
	if ref := d.spec.CredentialsSecretRef; ref != nil {
		secret := &corev1.Secret{}
		if err := f.Live.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, secret); err != nil {
			class.Skip = fmt.Sprintf("Secret %q: %v", ref.Name, err)
			return client.IgnoreNotFound(err)
		}
		given.Secret = maps.Clone(given.Secret)
		maps.Copy(given.Secret, secret.Data)
	}
	objects, err := translate.Request(given)
	if err != nil {
		class.Skip = err.Error()
		return nil
	}
	class.Class, class.Secret = objects.Class, objects.Secret
	return nil
}

// classKey is the same for all that describes the same VMs.
func classKey(namespace string, spec *infrav1.MillwrightMachineSpec, template, domain string) string {
	same := *spec
	same.ProviderID, same.FailureDomain = "", domain
	text, err := json.Marshal(struct {
		Namespace, Template string
		Spec                infrav1.MillwrightMachineSpec
	}{namespace, template, same})
	if err != nil {
		panic(err) // what came as JSON can be written as JSON
	}
	sum := sha256.Sum256(text)
	return "capi/" + hex.EncodeToString(sum[:16])
}
