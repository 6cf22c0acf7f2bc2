package vm

import (
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// Fields of the provider specification that determine on which hosts a VM can run.
const (
	hostSelectorField = "hostSelector"
	antiAffinityField = "antiAffinity"
	resourcesField    = "resources"
)

// maxHostLabels is the limit of a VirtualMachine.
const maxHostLabels = 16

// roleControlPlane is the role of VMs that are kept on different hosts by default.
const roleControlPlane = "control-plane"

// antiAffinity keeps VMs on different hosts.
type antiAffinity struct {
	Group string                      `json:"group,omitempty"`
	Mode  vmv1alpha1.AntiAffinityMode `json:"mode,omitempty"`
}

// antiAffinityNone is a mode of the provider specification: the VM may run on any host.
const antiAffinityNone vmv1alpha1.AntiAffinityMode = "None"

var antiAffinityModes = []vmv1alpha1.AntiAffinityMode{vmv1alpha1.AntiAffinityPreferred, vmv1alpha1.AntiAffinityRequired, antiAffinityNone}

// resources are the resources of the hypervisor's Pod.
type resources struct {
	Requests map[corev1.ResourceName]quantity `json:"requests,omitempty"`
	Limits   map[corev1.ResourceName]quantity `json:"limits,omitempty"`
}

// quantityPattern is that of the CRD of VirtualMachines. Large exponents would take long to parse.
var quantityPattern = regexp.MustCompile(`^(\+|-)?(([0-9]{1,30}(\.[0-9]{0,30})?)|(\.[0-9]{1,30}))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$`)

// quantity is the text of a quantity that may be invalid, so that an error can name its field.
type quantity string

// UnmarshalJSON implements json.Unmarshaler. A quantity is a string or a number. For other values, it is their JSON,
// which is not a valid quantity.
func (q *quantity) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		text = string(raw)
	}
	*q = quantity(text)
	return nil
}

func (s *providerSpec) validateHosts() field.ErrorList {
	var errs field.ErrorList
	path := specPath.Child(hostSelectorField)
	if len(s.HostSelector) > maxHostLabels {
		errs = append(errs, field.TooMany(path, len(s.HostSelector), maxHostLabels))
	}
	for _, key := range slices.Sorted(maps.Keys(s.HostSelector)) {
		for _, wrong := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(path, key, wrong))
		}
		for _, wrong := range validation.IsValidLabelValue(s.HostSelector[key]) {
			errs = append(errs, field.Invalid(path.Key(key), s.HostSelector[key], wrong))
		}
	}
	if apart := s.AntiAffinity; apart != nil {
		path := specPath.Child(antiAffinityField)
		for _, wrong := range validation.IsValidLabelValue(apart.Group) {
			errs = append(errs, field.Invalid(path.Child("group"), apart.Group, wrong))
		}
		if apart.Mode != "" && !slices.Contains(antiAffinityModes, apart.Mode) {
			errs = append(errs, field.NotSupported(path.Child("mode"), apart.Mode, antiAffinityModes))
		}
	}
	return append(errs, s.validateResources()...)
}

func (s *providerSpec) validateResources() field.ErrorList {
	if s.Resources == nil {
		return nil
	}
	path := specPath.Child(resourcesField)
	requests, errs := parseResources(path.Child("requests"), s.Resources.Requests)
	limits, wrong := parseResources(path.Child("limits"), s.Resources.Limits)
	if errs = append(errs, wrong...); len(errs) > 0 {
		return errs
	}
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		request := requests[name]
		if limit, limited := limits[name]; limited && request.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), request.String(), "must not be more than the limit "+limit.String()))
		}
	}
	// Otherwise, the kernel would terminate the hypervisor as soon as its guest uses its memory.
	guest, err := resource.ParseQuantity(s.guestMemory())
	if limit, limited := limits[corev1.ResourceMemory]; err == nil && limited && limit.Cmp(guest) <= 0 {
		errs = append(errs, field.Invalid(path.Child("limits").Key(string(corev1.ResourceMemory)), limit.String(),
			"must be more than the memory of the guest, which is "+guest.String()+"; leave memory for the hypervisor"))
	}
	return errs
}

func parseResources(path *field.Path, texts map[corev1.ResourceName]quantity) (corev1.ResourceList, field.ErrorList) {
	var errs field.ErrorList
	parsed := corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		for _, wrong := range validation.IsQualifiedName(string(name)) {
			errs = append(errs, field.Invalid(path, string(name), wrong))
		}
		value, err := parseQuantity(string(texts[name]))
		if err != nil {
			errs = append(errs, field.Invalid(path.Key(string(name)), string(texts[name]), err.Error()))
			continue
		}
		parsed[name] = value
	}
	return parsed, errs
}

func parseQuantity(text string) (resource.Quantity, error) {
	if !quantityPattern.MatchString(text) {
		return resource.Quantity{}, errors.New("must be like 500m or 2Gi")
	}
	value, err := resource.ParseQuantity(text)
	if err == nil && value.Sign() < 0 {
		err = errors.New("must not be negative")
	}
	return value, err
}

// podResources returns the resources of the hypervisor's Pod, or none if the VM controller chooses them. The
// specification is valid.
func (s *providerSpec) podResources() corev1.ResourceRequirements {
	if s.Resources == nil {
		return corev1.ResourceRequirements{}
	}
	requests, _ := parseResources(nil, s.Resources.Requests)
	limits, _ := parseResources(nil, s.Resources.Limits)
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// apart returns the anti-affinity of a new VM, or nil if it may run on any host. By default, the control plane of a
// cluster is on different hosts if possible.
func (s *providerSpec) apart() *vmv1alpha1.AntiAffinity {
	chosen := s.AntiAffinity
	if chosen == nil {
		if s.role() != roleControlPlane {
			return nil
		}
		chosen = &antiAffinity{}
	}
	group, mode := chosen.Group, chosen.Mode
	switch {
	case mode == antiAffinityNone:
		return nil
	case mode == "":
		mode = vmv1alpha1.AntiAffinityPreferred
	}
	if group == "" {
		group = labelValue(s.cluster() + "." + s.role()) // clusters may share a namespace
	}
	return &vmv1alpha1.AntiAffinity{Group: group, Mode: mode}
}
