// Package validation validates Machines, MachineSets, MachineDeployments and MachineClasses. It refuses what
// MCM refuses, and what can never work.
package validation

import (
	"fmt"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

var spec = field.NewPath("spec")

// Machine validates a Machine.
func Machine(machine *v1alpha1.Machine) field.ErrorList {
	return append(class(machine.Spec.Class, spec.Child("class")), configuration(machine.Spec.MachineConfiguration)...)
}

// configuration refuses negative values. With negative values, MCM gives up a Machine immediately.
func configuration(config *v1alpha1.MachineConfiguration) field.ErrorList {
	if config == nil {
		return nil
	}
	var errs field.ErrorList
	for _, timeout := range []struct {
		name  string
		value *metav1.Duration
	}{
		{"drainTimeout", config.MachineDrainTimeout},
		{"healthTimeout", config.MachineHealthTimeout},
		{"creationTimeout", config.MachineCreationTimeout},
		{"inPlaceUpdateTimeout", config.MachineInPlaceUpdateTimeout},
		{"machinePreserveTimeout", config.MachinePreserveTimeout},
	} {
		if timeout.value != nil && timeout.value.Duration < 0 {
			errs = append(errs, field.Invalid(spec.Child(timeout.name), timeout.value.Duration.String(), "must not be negative"))
		}
	}
	if retries := config.MaxEvictRetries; retries != nil && *retries < 0 {
		errs = append(errs, field.Invalid(spec.Child("maxEvictRetries"), *retries, "must not be negative"))
	}
	return errs
}

func class(class v1alpha1.ClassSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if class.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), "the kind of the class, normally MachineClass"))
	}
	if class.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "the name of the class"))
	}
	return errs
}

// MachineSet validates a MachineSet.
func MachineSet(set *v1alpha1.MachineSet) field.ErrorList {
	return replicated(set.Spec.Replicas, set.Spec.Selector, &set.Spec.Template)
}

// MachineDeployment validates a MachineDeployment.
func MachineDeployment(deployment *v1alpha1.MachineDeployment) field.ErrorList {
	errs := replicated(deployment.Spec.Replicas, deployment.Spec.Selector, &deployment.Spec.Template)
	errs = append(errs, strategy(&deployment.Spec.Strategy, spec.Child("strategy"))...)
	errs = append(errs, excess(deployment)...)
	errs = append(errs, fallback(deployment)...)
	errs = append(errs, replacement(deployment)...)
	return append(errs, limits(&deployment.Spec)...)
}

// excess validates the excess replicas, in the field or in the equivalent annotation.
func excess(deployment *v1alpha1.MachineDeployment) field.ErrorList {
	path, value := spec.Child("excessReplicas"), deployment.Spec.ExcessReplicas
	if text, given := deployment.Annotations[v1alpha1.AnnotationKeyExcessReplicas]; given && value == nil {
		path, value = field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationKeyExcessReplicas), ptr.To(intstr.FromString(text))
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			value = ptr.To(intstr.FromInt32(int32(n)))
		}
	}
	if value == nil {
		return nil
	}
	number, err := intstr.GetScaledValueFromIntOrPercent(value, 100, true)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, value.String(), "must be a number or a percentage such as 20%")}
	case number < 0:
		return field.ErrorList{field.Invalid(path, value.String(), "must not be below zero")}
	case value.Type == intstr.String && number > 100:
		return field.ErrorList{field.Invalid(path, value.String(), "must not be above 100%")}
	case number > 999_999_999:
		return field.ErrorList{field.Invalid(path, value.String(), "must have at most nine digits")}
	}
	return nil
}

// limits refuses negative values, which MCM accepts.
func limits(of *v1alpha1.MachineDeploymentSpec) field.ErrorList {
	var errs field.ErrorList
	for _, limit := range []struct {
		name  string
		value *int32
	}{
		{"minReadySeconds", &of.MinReadySeconds},
		{"revisionHistoryLimit", of.RevisionHistoryLimit},
		{"progressDeadlineSeconds", of.ProgressDeadlineSeconds},
	} {
		if limit.value != nil && *limit.value < 0 {
			errs = append(errs, field.Invalid(spec.Child(limit.name), *limit.value, "must not be negative"))
		}
	}
	return errs
}

func replicated(replicas int32, selector *metav1.LabelSelector, template *v1alpha1.MachineTemplateSpec) field.ErrorList {
	var errs field.ErrorList
	if replicas < 0 {
		errs = append(errs, field.Invalid(spec.Child("replicas"), replicas, "must not be negative"))
	}
	errs = append(errs, selects(selector, template)...)
	return append(errs, class(template.Spec.Class, spec.Child("template", "spec", "class"))...)
}

func selects(selector *metav1.LabelSelector, template *v1alpha1.MachineTemplateSpec) field.ErrorList {
	path := spec.Child("selector")
	if selector == nil {
		return field.ErrorList{field.Required(path, "the labels that select the machines, for example matchLabels: {name: POOL}")}
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return field.ErrorList{field.Invalid(path, selector, err.Error())}
	}
	if !parsed.Matches(labels.Set(template.Labels)) {
		return field.ErrorList{field.Invalid(spec.Child("template", "metadata", "labels"), template.Labels, fmt.Sprintf("the selector %q does not match them", parsed))}
	}
	return nil
}

// strategy validates the strategy. An empty type means RollingUpdate.
func strategy(strategy *v1alpha1.MachineDeploymentStrategy, path *field.Path) field.ErrorList {
	switch strategy.Type {
	case "", v1alpha1.RollingUpdateMachineDeploymentStrategyType:
		if strategy.RollingUpdate == nil {
			return nil
		}
		return bounds(&strategy.RollingUpdate.UpdateConfiguration, path.Child("rollingUpdate"))
	case v1alpha1.RecreateMachineDeploymentStrategyType:
		return nil
	case v1alpha1.InPlaceUpdateMachineDeploymentStrategyType:
		return inPlace(strategy.InPlaceUpdate, path.Child("inPlaceUpdate"))
	default:
		return field.ErrorList{field.NotSupported(path.Child("type"), strategy.Type, []v1alpha1.MachineDeploymentStrategyType{
			v1alpha1.RollingUpdateMachineDeploymentStrategyType,
			v1alpha1.RecreateMachineDeploymentStrategyType,
			v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
		})}
	}
}

func inPlace(update *v1alpha1.InPlaceUpdateMachineDeployment, path *field.Path) field.ErrorList {
	if update == nil {
		return field.ErrorList{field.Required(path, "required by strategy InPlaceUpdate")}
	}
	errs := bounds(&update.UpdateConfiguration, path)
	if update.OrchestrationType != v1alpha1.OrchestrationTypeAuto && update.OrchestrationType != v1alpha1.OrchestrationTypeManual {
		errs = append(errs, field.NotSupported(path.Child("orchestrationType"), update.OrchestrationType,
			[]v1alpha1.OrchestrationType{v1alpha1.OrchestrationTypeAuto, v1alpha1.OrchestrationTypeManual}))
	}
	return errs
}

func bounds(update *v1alpha1.UpdateConfiguration, path *field.Path) field.ErrorList {
	return append(bound(update.MaxUnavailable, path.Child("maxUnavailable")), bound(update.MaxSurge, path.Child("maxSurge"))...)
}

func bound(value *intstr.IntOrString, path *field.Path) field.ErrorList {
	if value == nil {
		return nil
	}
	number, err := intstr.GetScaledValueFromIntOrPercent(value, 100, true)
	if err != nil {
		return field.ErrorList{field.Invalid(path, value.String(), "must be a number or a percentage such as 20%")}
	}
	if number < 0 || number > math.MaxInt32 {
		return field.ErrorList{field.Invalid(path, value.String(), fmt.Sprintf("must be between 0 and %d", math.MaxInt32))}
	}
	return nil
}

// MachineClass validates a MachineClass.
func MachineClass(class *v1alpha1.MachineClass) field.ErrorList {
	template := class.NodeTemplate
	if template == nil {
		return nil
	}
	path := field.NewPath("nodeTemplate")
	var errs field.ErrorList
	for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, "gpu", corev1.ResourceMemory} {
		if _, ok := template.Capacity[resource]; !ok {
			errs = append(errs, field.Required(path.Child("capacity").Key(string(resource)), "needed to scale from zero"))
		}
	}
	for _, f := range []struct{ name, value string }{
		{"instanceType", template.InstanceType}, {"region", template.Region}, {"zone", template.Zone},
	} {
		if f.value == "" {
			errs = append(errs, field.Required(path.Child(f.name), "needed to scale from zero"))
		}
	}
	return errs
}
