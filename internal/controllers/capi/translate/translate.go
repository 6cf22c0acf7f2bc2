// Package translate makes the objects that a driver's request carries from a MillwrightMachine.
// It is pure: it reads no cluster and no clock.
package translate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
)

// Given is all that is known of a machine.
type Given struct {
	// Machine whose VM it is. Required.
	Machine *infrav1.MillwrightMachine
	// Class that the Machine refers to; nil if it refers to none.
	Class *v1alpha1.MachineClass
	// Secret has the merged data of the Secrets of the class and of the Machine; nil if
	// there are none.
	Secret map[string][]byte
	// FailureDomain in which the VM shall be; empty if it does not matter.
	FailureDomain string
	// Placer is the driver, if it knows how a VM gets into a failure domain of which the
	// Machine says nothing; nil if it does not. It is asked for nothing else.
	Placer driver.FailureDomains
}

// Objects are what a request to a driver carries.
type Objects struct {
	Machine *v1alpha1.Machine
	Class   *v1alpha1.MachineClass
	// Secret has no user data; see WithUserData.
	Secret *corev1.Secret
}

// ErrFailureDomain is the error about a failure domain of which the Machine says nothing, and
// that the driver does not know either.
var ErrFailureDomain = errors.New("is not in spec.failureDomains")

// Request makes what a request to a driver carries.
func Request(given Given) (Objects, error) {
	spec := &given.Machine.Spec
	class := classOf(given)
	class.NodeTemplate = NodeTemplate(class.NodeTemplate, spec.NodeTemplate)
	if err := place(class, given); err != nil {
		return Objects{}, err
	}
	data := maps.Clone(given.Secret)
	delete(data, bootstrap.UserDataKey) // that of a class is not for machines of this face,
	delete(data, formatKey)             // nor what it says of them
	return Objects{Machine: machineOf(given.Machine, class.Name), Class: class, Secret: &corev1.Secret{Data: data}}, nil
}

// machineOf is the Machine that stands for a MillwrightMachine. It keeps what a failed call
// may depend on, and no name or label that would tell the two apart.
func machineOf(of *infrav1.MillwrightMachine, class string) *v1alpha1.Machine {
	made := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Name: of.Name, Namespace: of.Namespace, UID: of.UID, Generation: of.Generation,
			CreationTimestamp: of.CreationTimestamp, DeletionTimestamp: of.DeletionTimestamp.DeepCopy(),
			Annotations: map[string]string{driver.AnnotationAPIGroup: driver.APIGroupClusterAPI},
		},
		Spec: v1alpha1.MachineSpec{
			Class:      v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class},
			ProviderID: of.Spec.ProviderID,
		},
	}
	made.Status.LastKnownState = of.Status.LastKnownState
	failing(made, of)
	return made
}

// classOf is a copy of the class that the Machine refers to, or one that says what the
// Machine itself does.
func classOf(given Given) *v1alpha1.MachineClass {
	face := map[string]string{driver.AnnotationAPIGroup: driver.APIGroupClusterAPI}
	if given.Class != nil {
		class := given.Class.DeepCopy()
		class.Annotations, class.Labels = face, nil
		class.OwnerReferences, class.Finalizers, class.ManagedFields = nil, nil, nil
		class.SecretRef, class.CredentialsSecretRef = nil, nil
		return class
	}
	machine := given.Machine
	class := &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Name: className(machine), Namespace: machine.Namespace, Annotations: face},
		Provider:   machine.Spec.Driver,
	}
	if machine.Spec.ProviderSpec != nil {
		class.ProviderSpec = *machine.Spec.ProviderSpec.DeepCopy()
	}
	return class
}

// className is the same for all machines of one template, as far as that is known.
func className(machine *infrav1.MillwrightMachine) string {
	if template := machine.Annotations[core.AnnotationClonedFrom]; template != "" {
		return template
	}
	return machine.Name
}

// place changes the class so that its VM gets into the failure domain. What the Machine says
// counts more than what the driver does.
func place(class *v1alpha1.MachineClass, given Given) error {
	domain := given.FailureDomain
	if domain == "" {
		return nil
	}
	spec, err := placed(class, given)
	if err != nil {
		return err
	}
	if class.NodeTemplate == nil {
		class.NodeTemplate = &v1alpha1.NodeTemplate{}
	}
	class.NodeTemplate.Zone, class.ProviderSpec = domain, spec
	return nil
}

// placed is the provider specification of a VM in the failure domain.
func placed(class *v1alpha1.MachineClass, given Given) (runtime.RawExtension, error) {
	domain := given.FailureDomain
	for _, placement := range given.Machine.Spec.FailureDomains {
		switch {
		case placement.Name != domain:
			continue
		case placement.ProviderSpec == nil:
			return class.ProviderSpec, nil
		}
		patched, err := merge(class.ProviderSpec.Raw, placement.ProviderSpec.Raw)
		if err != nil {
			return runtime.RawExtension{}, fmt.Errorf("spec.failureDomains[%q].providerSpec: %w", domain, err)
		}
		return runtime.RawExtension{Raw: patched}, nil
	}
	if given.Placer == nil {
		return runtime.RawExtension{}, fmt.Errorf("failure domain %q %w", domain, ErrFailureDomain)
	}
	return placedByDriver(class, given)
}

func placedByDriver(class *v1alpha1.MachineClass, given Given) (runtime.RawExtension, error) {
	resp, err := given.Placer.PlaceMachine(&driver.PlaceMachineRequest{MachineClass: class, FailureDomain: given.FailureDomain})
	said, _ := status.FromError(err)
	switch said.Code() {
	case codes.OK:
		return resp.ProviderSpec, nil
	case codes.Unimplemented:
		return runtime.RawExtension{}, fmt.Errorf("failure domain %q %w", given.FailureDomain, ErrFailureDomain)
	case codes.NotFound:
		return runtime.RawExtension{}, fmt.Errorf("failure domain %q %w, and the driver says: %s", given.FailureDomain, ErrFailureDomain, said.Message())
	default:
		return runtime.RawExtension{}, fmt.Errorf("placing the VM in failure domain %q: %s", given.FailureDomain, said.Message())
	}
}

// NodeTemplate lays what a machine or a template says of its node over what its class
// says; nil if neither says anything.
func NodeTemplate(class *v1alpha1.NodeTemplate, own *infrav1.NodeTemplate) *v1alpha1.NodeTemplate {
	if own == nil {
		return class.DeepCopy()
	}
	made := class.DeepCopy()
	if made == nil {
		made = &v1alpha1.NodeTemplate{}
	}
	if made.Capacity == nil && len(own.Capacity) > 0 {
		made.Capacity = corev1.ResourceList{}
	}
	maps.Copy(made.Capacity, own.Capacity)
	for _, field := range []struct {
		to   *string
		from string
	}{{&made.InstanceType, own.InstanceType}, {&made.Region, own.Region}, {&made.Zone, own.Zone}} {
		if field.from != "" {
			*field.to = field.from
		}
	}
	if own.Architecture != "" {
		made.Architecture = new(string(own.Architecture))
	}
	return made
}

// formatKey is the key of the Secret in a request under which the format of the user data
// stands, if it is known.
const formatKey = "userDataFormat"

// WithUserData is the Secret of a request with the data of a Secret with bootstrap data: as
// they are, byte by byte.
func WithUserData(secret *corev1.Secret, data map[string][]byte) *corev1.Secret {
	made := secret.DeepCopy()
	if made.Data == nil {
		made.Data = map[string][]byte{}
	}
	made.Data[bootstrap.UserDataKey] = bytes.Clone(data[core.BootstrapData])
	if format := data[core.BootstrapFormat]; len(format) > 0 {
		made.Data[formatKey] = bytes.Clone(format)
	}
	return made
}

// merge lays a JSON merge patch (RFC 7396) over a JSON object.
func merge(object, patch []byte) ([]byte, error) {
	var target, change any
	for _, part := range []struct {
		raw  []byte
		into *any
	}{{object, &target}, {patch, &change}} {
		if len(bytes.TrimSpace(part.raw)) == 0 {
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(part.raw))
		decoder.UseNumber()
		if err := decoder.Decode(part.into); err != nil {
			return nil, fmt.Errorf("is not JSON: %w", err)
		}
	}
	merged, err := json.Marshal(merged(target, change))
	if err != nil {
		return nil, fmt.Errorf("writing JSON: %w", err)
	}
	return merged, nil
}

func merged(target, change any) any {
	changes, isObject := change.(map[string]any)
	if !isObject {
		return change
	}
	fields, isObject := target.(map[string]any)
	if !isObject {
		fields = map[string]any{}
	}
	for name, value := range changes {
		if value == nil {
			delete(fields, name)
			continue
		}
		fields[name] = merged(fields[name], value)
	}
	return fields
}
