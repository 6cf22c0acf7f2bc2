// Package index names the indexes of the cache, so that no controller lists everything
// to find something.
package index

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// The indexes, to be used with client.MatchingFields.
const (
	// MachineByNode finds the Machine of a Node by the Node's name.
	MachineByNode = "machine.node"
	// MachineByProviderID finds the Machines that have a VM, by its provider ID.
	MachineByProviderID = "machine.providerID"
	// MachineByClass finds the Machines of a MachineClass by its name.
	MachineByClass = "machine.class"
	// ByController finds Machines and MachineSets by the UID of what controls them;
	// those that nothing controls are found under Orphan.
	ByController = "controller"
	// ClassBySecret finds the MachineClasses that refer to a Secret, by
	// "namespace/name".
	ClassBySecret = "class.secret"
)

// Orphan is the value of ByController for objects that nothing controls.
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
		{&v1alpha1.MachineClass{}, ClassBySecret, classBySecret},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.values); err != nil {
			return fmt.Errorf("adding the index %s: %w", index.name, err)
		}
	}
	return nil
}

func machineByNode(object client.Object) []string {
	if node := object.GetLabels()[v1alpha1.NodeLabelKey]; node != "" {
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
		return nil
	}
	return []string{class.Name}
}

func byController(object client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return []string{string(owner.UID)}
	}
	return []string{Orphan}
}

func classBySecret(object client.Object) []string {
	var keys []string
	for _, key := range SecretsOf(object.(*v1alpha1.MachineClass)) {
		keys = append(keys, key.String())
	}
	return keys
}

// SecretsOf names the Secrets that a class refers to, in the order in which their data
// is laid over one another. A reference without a namespace means the class's own.
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
