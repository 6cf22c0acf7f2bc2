package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// Provider is a driver, and what its requests need.
type Provider struct {
	// Driver to check.
	Driver driver.Driver
	// Class of the machines, valid for the driver. Required.
	Class *v1alpha1.MachineClass
	// Secret of the requests: the data of both Secrets of the class. Nil means one without data.
	Secret *corev1.Secret
	// Uninitialized says that VMs of Class need InitializeMachine. Otherwise the rules about it
	// are skipped.
	Uninitialized bool
	// Variants of the class and the Secret. Optional.
	Variants Variants
	// Hooks into the provider. Optional.
	Hooks Hooks
}

// Variants are other classes, Secrets and volumes. Each is optional; rules that need one that is
// missing are skipped.
type Variants struct {
	// OtherCluster is the class with the tags of another cluster. Nil means that it is made from
	// the class, if that has a tag such as kubernetes.io/cluster/NAME.
	OtherCluster *v1alpha1.MachineClass
	// Changed is the class with other parameters: a VM of the class does not fit it.
	Changed *v1alpha1.MachineClass
	// Updated is the class with parameters that UpdateMachine can change in a VM of the class, and no others.
	Updated *v1alpha1.MachineClass
	// Classes that the driver refuses, by what is wrong with them.
	Classes map[Refusal]*v1alpha1.MachineClass
	// SlowDeletion is the class with VMs that exist for a while after DeleteMachine has answered.
	SlowDeletion *v1alpha1.MachineClass
	// BadSecret is a Secret that the provider does not accept.
	BadSecret *corev1.Secret
	// OtherAccount is a Secret that leads to other VMs than the Secret of the provider.
	OtherAccount *corev1.Secret
	// Volumes whose IDs the driver knows, by their ID.
	Volumes map[string]*corev1.PersistentVolumeSpec
}

// Refusal is why a class is refused.
type Refusal string

// The refusals.
const (
	// Invalid specifications lack something, or have a value that is not possible.
	Invalid Refusal = "invalid"
	// OutOfRange specifications have a size that is out of its valid range.
	OutOfRange Refusal = "out of range"
	// Full means that a quota is used up, or that the provider has no capacity.
	Full Refusal = "full"
)

// Hooks reach the provider without the driver. Each is optional.
type Hooks struct {
	// Instances returns the provider IDs of all VMs that exist, of all clusters, also of those
	// that are being deleted. Without it, ListMachines is believed.
	Instances func(ctx context.Context) ([]string, error)
	// Restart returns another driver of the same provider, as after a restart of the process.
	Restart func() (driver.Driver, error)
	// Duplicate makes a second VM of a machine that has one, as a faulty program would.
	Duplicate func(ctx context.Context, namespace, machine string, class *v1alpha1.MachineClass) error
}

// clusterTags are the prefixes of the tags that name a cluster; not every provider allows slashes.
var clusterTags = []string{"kubernetes.io/cluster/", "kubernetes.io-cluster-", "kubernetes-io-cluster-"}

// otherCluster is the class with the tags of another cluster; nil if it has no such tags.
func (p Provider) otherCluster() *v1alpha1.MachineClass {
	if p.Variants.OtherCluster != nil {
		return p.Variants.OtherCluster
	}
	fields := fieldsOf(p.Class)
	switch tags := fields["tags"].(type) {
	case map[string]any:
		for key, value := range maps.Clone(tags) {
			if isClusterTag(key) {
				delete(tags, key)
				tags[key+"-other"] = value
			}
		}
	case []any:
		for i, tag := range tags {
			if text, ok := tag.(string); ok && isClusterTag(text) {
				tags[i] = text + "-other"
			}
		}
	}
	other := withFields(p.Class, fields)
	if string(other.ProviderSpec.Raw) == string(withFields(p.Class, fieldsOf(p.Class)).ProviderSpec.Raw) {
		return nil
	}
	return other
}

func isClusterTag(text string) bool {
	return slices.ContainsFunc(clusterTags, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// refused returns invalid classes by what is wrong with them: those that can be made from the class,
// and the one of the variants.
func (p Provider) refused() map[string]*v1alpha1.MachineClass {
	list := p.Class.DeepCopy()
	list.ProviderSpec = runtime.RawExtension{Raw: []byte(`[]`)}
	classes := map[string]*v1alpha1.MachineClass{"a providerSpec that is a list": list}
	for name, value := range fieldsOf(p.Class) {
		fields := fieldsOf(p.Class)
		switch value.(type) {
		case map[string]any, []any:
			fields[name] = "text"
		default:
			fields[name] = map[string]any{"unexpected": "object"}
		}
		classes[fmt.Sprintf("a providerSpec whose field %s has a value of another type", name)] = withFields(p.Class, fields)
	}
	if class := p.Variants.Classes[Invalid]; class != nil {
		classes["the invalid class"] = class
	}
	return classes
}

// fieldsOf decodes the provider specification of a class; nothing if it is no object.
func fieldsOf(class *v1alpha1.MachineClass) map[string]any {
	fields := map[string]any{}
	if json.Unmarshal(class.ProviderSpec.Raw, &fields) != nil {
		return nil
	}
	return fields
}

func withFields(class *v1alpha1.MachineClass, fields map[string]any) *v1alpha1.MachineClass {
	other := class.DeepCopy()
	raw, err := json.Marshal(fields)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	other.ProviderSpec = runtime.RawExtension{Raw: raw}
	return other
}

// secrets are all Secrets that requests may have. Some may be nil.
func (p Provider) secrets() []*corev1.Secret {
	return []*corev1.Secret{p.Secret, p.Variants.BadSecret, p.Variants.OtherAccount}
}

// secretTexts are the values of the Secrets that must not appear anywhere: those that are long enough
// not to occur by chance, and their long lines.
func (p Provider) secretTexts() []string {
	var texts []string
	for _, secret := range p.secrets() {
		if secret == nil {
			continue
		}
		for _, value := range secret.Data {
			for _, line := range append(strings.Split(string(value), "\n"), string(value)) {
				if line = strings.TrimSpace(line); len(line) >= 8 {
					texts = append(texts, line)
				}
			}
		}
	}
	return texts
}
