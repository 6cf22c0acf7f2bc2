// Package fieldindex defines the indexes of the cache.
package fieldindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// The indexes, for client.MatchingFields.
const (
	// MachineByNode is the name of the Machine's Node.
	MachineByNode = "machine.node"
	// MachineByProviderID is the provider ID of the Machine's VM.
	MachineByProviderID = "machine.providerID"
	// MachineByClass is the name of the MachineClass, or the value of OlderClass.
	MachineByClass = "machine.class"
	// ByController is the UID of the controller of a Machine or MachineSet, or Orphan.
	ByController = "controller"
	// MachineSetBySelector is the SelectorLabel of the set's selector.
	MachineSetBySelector = "machineset.selector"
	// MachineSetByTemplate is the labels of the set's template, as "key=value".
	MachineSetByTemplate = "machineset.template"
	// ClassBySecret is the Secrets of a MachineClass, as "namespace/name".
	ClassBySecret = "class.secret"
)

// Orphan is the value of ByController for objects without a controller.
const Orphan = "none"

// Add adds all indexes to a cache.
func Add(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		name   string
		values client.IndexerFunc
	}{
		{&v1alpha1.Machine{}, MachineByNode, machineByNode},
		{&v1alpha1.Machine{}, MachineByProviderID, machineByProviderID},
		{&v1alpha1.Machine{}, MachineByClass, machineByClass},
		{&v1alpha1.Machine{}, ByController, byController},
		{&v1alpha1.MachineSet{}, ByController, byController},
		{&v1alpha1.MachineSet{}, MachineSetBySelector, machineSetBySelector},
		{&v1alpha1.MachineSet{}, MachineSetByTemplate, machineSetByTemplate},
		{&v1alpha1.MachineClass{}, ClassBySecret, classBySecret},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.values); err != nil {
			return fmt.Errorf("adding the index %s: %w", index.name, err)
		}
	}
	return nil
}

func machineByNode(object client.Object) []string {
	if node := object.(*v1alpha1.Machine).NodeName(); node != "" {
		return []string{node}
	}
	return nil
}

func machineByProviderID(object client.Object) []string {
	if id := object.(*v1alpha1.Machine).Spec.ProviderID; id != "" {
		return []string{id}
	}
	return nil
}

func machineByClass(object client.Object) []string {
	class := object.(*v1alpha1.Machine).Spec.Class
	if class.Kind != v1alpha1.MachineClassKind {
		return []string{OlderClass(class.Kind, class.Name)}
	}
	return []string{class.Name}
}

// OlderClass returns the value of MachineByClass for Machines whose class is not a MachineClass.
func OlderClass(kind, name string) string { return kind + "/" + name }

func byController(object client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return []string{string(owner.UID)}
	}
	return []string{Orphan}
}

func machineSetBySelector(object client.Object) []string {
	return []string{SelectorLabel(object.(*v1alpha1.MachineSet).Spec.Selector)}
}

func machineSetByTemplate(object client.Object) []string {
	return Labels(object.(*v1alpha1.MachineSet).Spec.Template.Labels)
}

// Labels formats labels as "key=value", unordered.
func Labels(of map[string]string) []string {
	pairs := make([]string, 0, len(of))
	for key, value := range of {
		pairs = append(pairs, key+"="+value)
	}
	return pairs
}

// NoLabel is the value of MachineSetBySelector for selectors without matchLabels.
const NoLabel = "none"

// SelectorLabel returns a label of a selector as "key=value", or NoLabel. It prefers a label that few objects
// are likely to share: the template's hash, or else the label with the longest value.
func SelectorLabel(selector *metav1.LabelSelector) string {
	if selector == nil || len(selector.MatchLabels) == 0 {
		return NoLabel
	}
	const hash = v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	if value, ok := selector.MatchLabels[hash]; ok {
		return hash + "=" + value
	}
	best := ""
	for key, value := range selector.MatchLabels {
		_, longest, _ := strings.Cut(best, "=")
		if order := cmp.Compare(len(value), len(longest)); best == "" || order > 0 || order == 0 && key+"="+value < best {
			best = key + "=" + value
		}
	}
	return best
}

func classBySecret(object client.Object) []string {
	var keys []string
	for _, key := range SecretsOf(object.(*v1alpha1.MachineClass)) {
		keys = append(keys, key.String())
	}
	return keys
}

// SecretsOf returns the Secrets of a class in the order in which their data is merged. A reference without a
// namespace means the namespace of the class.
func SecretsOf(class *v1alpha1.MachineClass) []types.NamespacedName {
	var keys []types.NamespacedName
	for _, ref := range []*corev1.SecretReference{class.SecretRef, class.CredentialsSecretRef} {
		if ref == nil || ref.Name == "" {
			continue
		}
		key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
		if key.Namespace == "" {
			key.Namespace = class.Namespace
		}
		keys = append(keys, key)
	}
	return keys
}

// MergedSecret merges the data of the class's Secrets. If a Secret is missing, it returns a message instead of
// an error.
func MergedSecret(ctx context.Context, from client.Reader, class *v1alpha1.MachineClass) (secret *corev1.Secret, missing string, err error) {
	merged := &corev1.Secret{Data: map[string][]byte{}}
	for _, key := range SecretsOf(class) {
		if key.Namespace != class.Namespace {
			return merged, fmt.Sprintf("Secret %q of MachineClass %q must be in the namespace of the class, %q", key, class.Name, class.Namespace), nil
		}
		secret := &corev1.Secret{}
		err := from.Get(ctx, key, secret)
		if apierrors.IsNotFound(err) {
			return merged, fmt.Sprintf("Secret %q of MachineClass %q not found", key, class.Name), nil
		}
		if err != nil {
			return merged, "", fmt.Errorf("reading Secret %s of MachineClass %s: %w", key, class.Name, err)
		}
		maps.Copy(merged.Data, secret.Data)
	}
	return merged, "", nil
}

// Machines finds Machines. The Machines belong to the cache and must not be changed.
type Machines interface {
	// ControlledBy returns the Machines in a namespace that have the given UID as controller, or Orphan. The
	// order is undefined.
	ControlledBy(ctx context.Context, namespace, controller string) ([]*v1alpha1.Machine, error)
}

// Listed returns a Machines that uses a reader with the indexes. It makes a shallow copy of each Machine.
func Listed(reader client.Reader) Machines { return listed{reader} }

type listed struct{ client.Reader }

func (l listed) ControlledBy(ctx context.Context, namespace, controller string) ([]*v1alpha1.Machine, error) {
	list := &v1alpha1.MachineList{}
	err := l.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{ByController: controller}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing machines: %w", err)
	}
	machines := make([]*v1alpha1.Machine, len(list.Items))
	for i := range list.Items {
		machines[i] = &list.Items[i]
	}
	return machines, nil
}

// Informers finds Machines in the informers of a cache that uses NewInformer. It makes no copies, which would
// be most of the allocations of passes over large sets.
type Informers struct {
	mu       sync.Mutex
	machines []toolscache.SharedIndexInformer
}

// NewInformer is for cache.Options.NewInformer.
func (i *Informers) NewInformer(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	informer := toolscache.NewSharedIndexInformer(from, object, resync, indexers)
	if _, ok := object.(*v1alpha1.Machine); ok {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.machines = append(i.machines, informer) // one for each namespace of the cache
	}
	return informer
}

var errNotSynced = errors.New("the cache of machines has not synced yet")

// ControlledBy implements Machines. The index ByController must have been added to the cache.
func (i *Informers) ControlledBy(_ context.Context, namespace, controller string) ([]*v1alpha1.Machine, error) {
	i.mu.Lock()
	informers := slices.Clone(i.machines)
	i.mu.Unlock()
	if len(informers) == 0 {
		return nil, errNotSynced
	}
	var machines []*v1alpha1.Machine
	for _, informer := range informers {
		if !informer.HasSynced() {
			return nil, errNotSynced
		}
		// This is how controller-runtime names the index of a field and its values.
		found, err := informer.GetIndexer().ByIndex("field:"+ByController, namespace+"/"+controller)
		if err != nil {
			return nil, fmt.Errorf("looking up machines: %w", err)
		}
		machines = slices.Grow(machines, len(found))
		for _, object := range found {
			machines = append(machines, object.(*v1alpha1.Machine))
		}
	}
	return machines, nil
}
