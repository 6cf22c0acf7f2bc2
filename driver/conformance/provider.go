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

// Provider is a driver with the values that its requests need.
type Provider struct {
	// Driver to check.
	Driver driver.Driver
	// Class of the machines, which must be valid for the driver. Required.
	Class *v1alpha1.MachineClass
	// Secret of the requests, with the data of both Secrets of the class. If nil, requests have a Secret without
	// data.
	Secret *corev1.Secret
	// Uninitialized states that VMs of Class need InitializeMachine. If false, the rules about initialization are
	// skipped.
	Uninitialized bool
	// Variants of the class and the Secret. Optional.
	Variants Variants
	// Hooks into the provider. Optional.
	Hooks Hooks
}

// Variants are other classes, Secrets and volumes. Each is optional; a rule is skipped if one that it needs is
// missing.
type Variants struct {
	// OtherCluster is the class with the tags of another cluster. If nil, it is derived from Class, provided that
	// a field "tags" of Class, at any depth, has a tag such as kubernetes.io/cluster/NAME.
	OtherCluster *v1alpha1.MachineClass
	// Changed is the class with other parameters, so that a VM of Class does not fit it.
	Changed *v1alpha1.MachineClass
	// Updated is the class with parameters that UpdateMachine can change in a VM of Class, and no others.
	Updated *v1alpha1.MachineClass
	// Classes that the driver rejects, by the reason for the rejection.
	Classes map[Refusal]*v1alpha1.MachineClass
	// SlowDeletion is the class with VMs that still exist for a while after DeleteMachine has returned.
	SlowDeletion *v1alpha1.MachineClass
	// BadSecret is a Secret that the provider does not accept.
	BadSecret *corev1.Secret
	// OtherAccount is a Secret with which the driver reaches other VMs than with the Secret of the provider.
	OtherAccount *corev1.Secret
	// Volumes whose IDs the driver knows, by ID.
	Volumes map[string]*corev1.PersistentVolumeSpec
}

// Refusal is the reason why the driver rejects a class.
type Refusal string

// The refusals.
const (
	// Invalid specifications lack a field, or have an invalid value.
	Invalid Refusal = "invalid"
	// OutOfRange specifications have a size outside its valid range.
	OutOfRange Refusal = "out of range"
	// Full means that a quota is exhausted, or that the provider has no capacity.
	Full Refusal = "full"
)

// Hooks access the provider without the driver. Each is optional.
type Hooks struct {
	// Instances returns the provider IDs of all existing VMs of all clusters, including those that are being
	// deleted. Without it, the checks rely on ListMachines.
	Instances func(ctx context.Context) ([]string, error)
	// Restart returns a new driver for the same provider, as after a restart of the process.
	Restart func() (driver.Driver, error)
	// Duplicate creates a second VM for a machine that has one, as a faulty program might.
	Duplicate func(ctx context.Context, namespace, machine string, class *v1alpha1.MachineClass) error
}

// clusterTags are the prefixes of tags that name a cluster. Some providers do not allow slashes.
var clusterTags = []string{"kubernetes.io/cluster/", "kubernetes.io-cluster-", "kubernetes-io-cluster-"}

// otherCluster returns the class with the tags of another cluster, or nil if the class has no such tags.
func (p Provider) otherCluster() *v1alpha1.MachineClass {
	if p.Variants.OtherCluster != nil {
		return p.Variants.OtherCluster
	}
	fields := fieldsOf(p.Class)
	renameClusters(fields)
	other := withFields(p.Class, fields)
	if string(other.ProviderSpec.Raw) == string(withFields(p.Class, fieldsOf(p.Class)).ProviderSpec.Raw) {
		return nil
	}
	return other
}

// renameClusters renames the cluster in all fields "tags" of a value, at any depth.
func renameClusters(value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			if name == "tags" {
				renameTags(field)
			} else {
				renameClusters(field)
			}
		}
	case []any:
		for _, item := range value {
			renameClusters(item)
		}
	}
}

// renameTags renames the cluster in tags, which are an object or a list of strings.
func renameTags(tags any) {
	switch tags := tags.(type) {
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
}

func isClusterTag(text string) bool {
	return slices.ContainsFunc(clusterTags, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// refused returns invalid classes by the reason why they are invalid: those derived from the class, and the one in
// the variants.
func (p Provider) refused() map[string]*v1alpha1.MachineClass {
	classes := p.unidentified()
	for name := range fieldsOf(p.Class) {
		classes[retyped(name)] = p.retype(name)
	}
	if class := p.Variants.Classes[Invalid]; class != nil {
		classes["the invalid class"] = class
	}
	return classes
}

// unidentified returns the refused classes that do not identify their VMs, whichever fields a driver uses to identify them.
func (p Provider) unidentified() map[string]*v1alpha1.MachineClass {
	list := p.Class.DeepCopy()
	list.ProviderSpec = runtime.RawExtension{Raw: []byte(`[]`)}
	classes := map[string]*v1alpha1.MachineClass{"a providerSpec that is a list": list}
	if _, has := fieldsOf(p.Class)["tags"]; has {
		classes[retyped("tags")] = p.retype("tags")
	}
	return classes
}

// retyped describes the result of retype.
func retyped(name string) string {
	return fmt.Sprintf("a providerSpec whose field %s has a value of another type", name)
}

// retype returns the class with a value of another type in a field.
func (p Provider) retype(name string) *v1alpha1.MachineClass {
	fields := fieldsOf(p.Class)
	switch fields[name].(type) {
	case map[string]any, []any:
		fields[name] = "text"
	default:
		fields[name] = map[string]any{"unexpected": "object"}
	}
	return withFields(p.Class, fields)
}

// newer returns the class with a field that only a later version of the driver might know.
func (p Provider) newer() *v1alpha1.MachineClass {
	fields := map[string]any{"unknownToDriver": true}
	maps.Copy(fields, fieldsOf(p.Class))
	return withFields(p.Class, fields)
}

// fieldsOf decodes the provider specification of a class. It returns nil if it is not an object.
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
		panic(err) // the fields were decoded from JSON
	}
	other.ProviderSpec = runtime.RawExtension{Raw: raw}
	return other
}

// secrets returns all Secrets that requests may have. Some may be nil.
func (p Provider) secrets() []*corev1.Secret {
	return []*corev1.Secret{p.Secret, p.Variants.BadSecret, p.Variants.OtherAccount}
}

// secretTexts returns the values of the Secrets that must not appear anywhere: values that are long enough not to
// occur by chance, and their long lines.
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
