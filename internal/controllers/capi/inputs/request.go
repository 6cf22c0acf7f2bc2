package inputs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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

// source has the objects from which a request is created.
type source struct {
	// Machine is the machine whose VM the request is about. Its spec.failureDomain is the failure domain of the VM.
	// Required.
	Machine *infrav1.MillwrightMachine
	// Class is the class that the Machine refers to; nil if there is none.
	Class *v1alpha1.MachineClass
	// Secret has the merged data of the Secrets of the class and of the Machine; nil if there are none.
	Secret map[string][]byte
	// Placer is the driver, if it supports failure domains; nil if it does not.
	Placer driver.FailureDomains
}

// Objects are the objects in a request to a driver.
type Objects struct {
	Machine *v1alpha1.Machine
	Class   *v1alpha1.MachineClass
	// Secret has no user data; see WithUserData.
	Secret *corev1.Secret
}

// errFailureDomain means that a machine's failure domain is neither in its spec nor known to the driver.
var errFailureDomain = errors.New("is not in spec.failureDomains")

// request creates the objects of a request. It does not access the cluster or the clock.
func request(ctx context.Context, given source) (Objects, error) {
	class := classOf(given)
	class.NodeTemplate = NodeTemplate(class.NodeTemplate, given.Machine.Spec.NodeTemplate)
	if domain := given.Machine.Spec.FailureDomain; domain != "" {
		spec, err := placed(ctx, class, given)
		if err != nil {
			return Objects{}, err
		}
		if class.NodeTemplate == nil {
			class.NodeTemplate = &v1alpha1.NodeTemplate{}
		}
		class.NodeTemplate.Zone, class.ProviderSpec = domain, spec
	}
	data := maps.Clone(given.Secret)
	delete(data, bootstrap.UserDataKey) // the user data of a class is for Machines of MCM's API
	delete(data, formatKey)
	return Objects{Machine: machineOf(given.Machine, class.Name), Class: class, Secret: &corev1.Secret{Data: data}}, nil
}

// machineOf returns the Machine of MCM's API for the driver. It has no labels, because drivers of MCM must not depend
// on Cluster API's labels.
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
	if location := driver.Location(of); location != "" {
		made.Annotations[driver.AnnotationLocation] = location
	}
	made.Status.LastKnownState = of.Status.LastKnownState
	setFailing(made, of)
	return made
}

// setFailing sets the status that a Machine of MCM's API has while its calls fail. After a restart, the instance
// engine uses it to spread the calls for such Machines over time.
func setFailing(made *v1alpha1.Machine, of *infrav1.MillwrightMachine) {
	ready := meta.FindStatusCondition(of.Status.Conditions, infrav1.ConditionReady)
	failures := []string{infrav1.ReasonCreationFailed, infrav1.ReasonInsufficientCapacity, infrav1.ReasonInvalidSpec}
	switch {
	case ready == nil:
	case !of.DeletionTimestamp.IsZero() && ready.Reason == infrav1.ReasonDeletionFailed:
		made.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
		made.Status.LastOperation.State = v1alpha1.MachineStateFailed
	case of.DeletionTimestamp.IsZero() && slices.Contains(failures, ready.Reason):
		made.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
	}
}

// classOf returns a copy of the class that the Machine refers to, or a class with the Machine's own spec. The latter
// has the name of the Machine's template, so that all machines of the template have the same class.
func classOf(given source) *v1alpha1.MachineClass {
	group := map[string]string{driver.AnnotationAPIGroup: driver.APIGroupClusterAPI}
	if given.Class != nil {
		class := given.Class.DeepCopy()
		class.Annotations, class.Labels = group, nil
		class.OwnerReferences, class.Finalizers, class.ManagedFields = nil, nil, nil
		class.SecretRef, class.CredentialsSecretRef = nil, nil
		return class
	}
	machine := given.Machine
	name := cmp.Or(machine.Annotations[core.AnnotationClonedFrom], machine.Name)
	class := &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: machine.Namespace, Annotations: group},
		Provider:   machine.Spec.Driver,
	}
	if machine.Spec.ProviderSpec != nil {
		class.ProviderSpec = *machine.Spec.ProviderSpec.DeepCopy()
	}
	return class
}

// placed returns the provider specification for a VM in the Machine's failure domain. It applies the patch in the
// Machine's spec or, if there is none, calls the driver.
func placed(ctx context.Context, class *v1alpha1.MachineClass, given source) (runtime.RawExtension, error) {
	spec := &given.Machine.Spec
	listed := slices.IndexFunc(spec.FailureDomains, func(p infrav1.Placement) bool { return p.Name == spec.FailureDomain })
	switch {
	case listed < 0:
		return placedByDriver(ctx, class, given)
	case spec.FailureDomains[listed].ProviderSpec == nil:
		return class.ProviderSpec, nil
	}
	patched, err := merge(class.ProviderSpec.Raw, spec.FailureDomains[listed].ProviderSpec.Raw)
	if err != nil {
		return runtime.RawExtension{}, fmt.Errorf("spec.failureDomains[%q].providerSpec: %w", spec.FailureDomain, err)
	}
	return runtime.RawExtension{Raw: patched}, nil
}

func placedByDriver(ctx context.Context, class *v1alpha1.MachineClass, given source) (runtime.RawExtension, error) {
	domain, code, message := given.Machine.Spec.FailureDomain, codes.Unimplemented, ""
	if given.Placer != nil {
		resp, err := given.Placer.PlaceMachine(ctx, &driver.PlaceMachineRequest{MachineClass: class, FailureDomain: domain})
		if err == nil {
			return resp.ProviderSpec, nil
		}
		failed, _ := status.FromError(err)
		code, message = failed.Code(), failed.Message()
	}
	switch code {
	case codes.Unimplemented:
		return runtime.RawExtension{}, fmt.Errorf("failure domain %q %w", domain, errFailureDomain)
	case codes.NotFound:
		return runtime.RawExtension{}, fmt.Errorf("failure domain %q %w, and the driver does not know it: %s", domain, errFailureDomain, message)
	default:
		return runtime.RawExtension{}, fmt.Errorf("placing the VM in failure domain %q: %s", domain, message)
	}
}

// merge applies a JSON merge patch (RFC 7396) to an object, which may be empty. Equal inputs have identical results.
func merge(object, patch []byte) ([]byte, error) {
	var target, change any
	for _, part := range []struct {
		raw  []byte
		into *any
	}{{object, &target}, {patch, &change}} {
		decoder := json.NewDecoder(bytes.NewReader(part.raw))
		decoder.UseNumber()
		if err := decoder.Decode(part.into); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("invalid JSON: %w", err)
		}
	}
	return json.Marshal(merged(target, change))
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

// formatKey is the key of the format of the user data in a request's Secret. It is set only if the format is known.
const formatKey = "userDataFormat"

// WithUserData returns the Secret of a request with the unchanged bootstrap data as its user data.
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

// NodeTemplate overlays the node template of a class with that of a machine or template. It returns nil if both are
// nil.
func NodeTemplate(class *v1alpha1.NodeTemplate, own *infrav1.NodeTemplate) *v1alpha1.NodeTemplate {
	made := class.DeepCopy()
	if own == nil {
		return made
	}
	if made == nil {
		made = &v1alpha1.NodeTemplate{}
	}
	if made.Capacity == nil && len(own.Capacity) > 0 {
		made.Capacity = corev1.ResourceList{}
	}
	maps.Copy(made.Capacity, own.Capacity)
	made.InstanceType = cmp.Or(own.InstanceType, made.InstanceType)
	made.Region = cmp.Or(own.Region, made.Region)
	made.Zone = cmp.Or(own.Zone, made.Zone)
	if own.Architecture != "" {
		made.Architecture = new(string(own.Architecture))
	}
	return made
}

// gpu is the resource name of accelerators in classes. nvidiaGPU is the corresponding resource of nodes that
// autoscalers use.
const (
	gpu       corev1.ResourceName = "gpu"
	nvidiaGPU corev1.ResourceName = "nvidia.com/gpu"
)

// architectures are the values that Cluster API allows.
var architectures = []infrav1.Architecture{"amd64", "arm64", "s390x", "ppc64le"}

// TemplateStatus returns the capacity and platform of a node, for autoscalers. It uses the node templates of a class
// and of a MillwrightMachineTemplate, both of which may be nil.
func TemplateStatus(class *v1alpha1.NodeTemplate, own *infrav1.NodeTemplate) infrav1.MillwrightMachineTemplateStatus {
	var status infrav1.MillwrightMachineTemplateStatus
	node := NodeTemplate(class, own)
	if node == nil {
		return status
	}
	for name, quantity := range node.Capacity {
		if name == gpu {
			if _, named := node.Capacity[nvidiaGPU]; named || quantity.IsZero() {
				continue
			}
			name = nvidiaGPU
		}
		if status.Capacity == nil {
			status.Capacity = corev1.ResourceList{}
		}
		status.Capacity[name] = quantity.DeepCopy()
	}
	var info infrav1.NodeInfo
	if own != nil {
		info.OperatingSystem = own.OperatingSystem
	}
	if node.Architecture != nil && slices.Contains(architectures, infrav1.Architecture(*node.Architecture)) {
		info.Architecture = infrav1.Architecture(*node.Architecture)
		info.OperatingSystem = cmp.Or(info.OperatingSystem, "linux")
	}
	if info != (infrav1.NodeInfo{}) {
		status.NodeInfo = &info
	}
	return status
}
