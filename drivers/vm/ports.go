package vm

import (
	"cmp"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

const (
	maxPorts    = 16
	maxPort     = 65535
	maxHTTPPath = 1024
)

// httpPath matches the path of a readiness probe, as the CRD of VirtualMachines does.
var httpPath = regexp.MustCompile(`^/([!-$&-~]|%[0-9A-Fa-f]{2})*$`)

func (s *providerSpec) validatePorts() field.ErrorList {
	var errs field.ErrorList
	path, names, numbers := specPath.Child("ports"), map[string]bool{}, map[vmv1alpha1.Port]bool{}
	if len(s.Ports) > maxPorts {
		errs = append(errs, field.TooMany(path, len(s.Ports), maxPorts))
	}
	for i, port := range s.Ports {
		at := path.Index(i)
		for _, problem := range validation.IsValidPortName(port.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), port.Name, problem))
		}
		if names[port.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
		}
		errs = append(errs, validatePort(at.Child("port"), port.Port)...)
		if known := []corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP}; !slices.Contains(known, port.Protocol) {
			errs = append(errs, field.NotSupported(at.Child("protocol"), port.Protocol, known[1:]))
		}
		number := vmv1alpha1.Port{Port: port.Port, Protocol: cmp.Or(port.Protocol, corev1.ProtocolTCP)}
		if numbers[number] {
			errs = append(errs, field.Duplicate(at.Child("port"), port.Port))
		}
		names[port.Name], numbers[number] = true, true
	}
	return errs
}

func (s *providerSpec) validateProbe() field.ErrorList {
	path, probe := specPath.Child("readinessProbe"), s.ReadinessProbe
	var errs field.ErrorList
	onlyUDP := len(s.Ports) > 0 && !slices.ContainsFunc(s.Ports, func(port vmv1alpha1.Port) bool { return !port.IsUDP() })
	if onlyUDP && (probe == nil || probe.Port == 0) {
		errs = append(errs, field.Required(path.Child("port"), "ports has no TCP port, and the guest is checked over TCP"))
	}
	if probe == nil {
		return errs
	}
	if len(s.Ports) == 0 {
		errs = append(errs, field.Forbidden(path, "needs ports"))
	}
	if probe.Port != 0 {
		errs = append(errs, validatePort(path.Child("port"), probe.Port)...)
	}
	if probe.HTTPPath != "" && !httpPath.MatchString(probe.HTTPPath) {
		errs = append(errs, field.Invalid(path.Child("httpPath"), probe.HTTPPath, "must be an encoded path such as /healthz"))
	}
	if len(probe.HTTPPath) > maxHTTPPath {
		errs = append(errs, field.TooLong(path.Child("httpPath"), "", maxHTTPPath))
	}
	if known := []corev1.URIScheme{"", corev1.URISchemeHTTP, corev1.URISchemeHTTPS}; !slices.Contains(known, probe.Scheme) {
		errs = append(errs, field.NotSupported(path.Child("scheme"), probe.Scheme, known[1:]))
	}
	return errs
}

func validatePort(path *field.Path, port int32) field.ErrorList {
	if port < 1 || port > maxPort {
		return field.ErrorList{field.Invalid(path, port, "must be between 1 and 65535").WithOrigin(originRange)}
	}
	return nil
}
