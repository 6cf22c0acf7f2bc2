package podspec

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// labelPrefix is the prefix of the labels of a VM that its Pod gets. With others, the author of a VM could receive
	// the connections of other Services of the namespace.
	labelPrefix = "vm.metropolis.monogon.dev/"
	// firstUnprivilegedPort is the first port on which every process may listen.
	firstUnprivilegedPort = 1024
	// sysctlUnprivilegedPorts makes more ports available. Pod Security "restricted" permits it.
	sysctlUnprivilegedPorts = "net.ipv4.ip_unprivileged_port_start"
)

// ServiceLabels returns the labels of a VM that Services and NetworkPolicies can select.
func ServiceLabels(vm *v1alpha1.VirtualMachine) map[string]string {
	own := []string{v1alpha1.LabelVM, v1alpha1.LabelDataDisk, v1alpha1.LabelDiskServer, v1alpha1.LabelAntiAffinityGroup, v1alpha1.HostKey}
	labels := maps.Clone(vm.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return !strings.HasPrefix(key, labelPrefix) || slices.Contains(own, key) })
	return labels
}

// HasPorts reports whether clients can connect to the guest at a Pod.
func HasPorts(pod *corev1.Pod) bool {
	container := Hypervisor(pod)
	return container != nil && len(container.Ports) > 0
}

// addPorts lets clients connect to the guest at its Pod.
func addPorts(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) {
	if len(vm.Spec.Ports) == 0 {
		return
	}
	container := &pod.Spec.Containers[0]
	var tcp, udp []string
	for _, port := range vm.Spec.Ports {
		container.Ports = append(container.Ports, corev1.ContainerPort{
			Name: port.Name, ContainerPort: port.Port, Protocol: cmp.Or(port.Protocol, corev1.ProtocolTCP),
		})
		if number := strconv.Itoa(int(port.Port)); port.IsUDP() {
			udp = append(udp, number)
		} else {
			tcp = append(tcp, number)
		}
		if port.Port < firstUnprivilegedPort {
			allowPrivilegedPorts(pod)
		}
	}
	for _, each := range []corev1.EnvVar{
		{Name: vmpb.EnvPorts, Value: strings.Join(tcp, ",")}, {Name: vmpb.EnvUDPPorts, Value: strings.Join(udp, ",")},
		{Name: vmpb.EnvProbe, Value: strings.ReplaceAll(probeURL(&vm.Spec), "$", "$$")},
	} {
		if each.Value != "" {
			container.Env = append(container.Env, each)
		}
	}
}

// portRefusal returns which port a VM must not have, or "" if it may have all of them.
func portRefusal(vm *v1alpha1.VirtualMachine, s Settings) string {
	for i, port := range vm.Spec.Ports {
		if port.IsUDP() && port.Port == int32(s.Overlay.Port) {
			return fmt.Sprintf("spec.ports[%d]: hypervisors use UDP port %d for the network between guests; use another port, or ask an operator to change --vm-overlay-port of the VM controller", i, port.Port)
		}
	}
	return ""
}

// probeURL returns the check of a guest with ports, as in EnvProbe.
func probeURL(spec *v1alpha1.VirtualMachineSpec) string {
	probe := cmp.Or(spec.ReadinessProbe, &v1alpha1.ReadinessProbe{})
	first := max(0, slices.IndexFunc(spec.Ports, func(port v1alpha1.Port) bool { return !port.IsUDP() }))
	check := url.URL{Scheme: "tcp", Host: net.JoinHostPort("", strconv.Itoa(int(cmp.Or(probe.Port, spec.Ports[first].Port))))}
	if probe.HTTPPath == "" {
		return check.String()
	}
	check.Scheme = strings.ToLower(string(cmp.Or(probe.Scheme, corev1.URISchemeHTTP)))
	return check.String() + probe.HTTPPath
}

func allowPrivilegedPorts(pod *corev1.Pod) {
	if pod.Spec.SecurityContext == nil {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	pod.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: sysctlUnprivilegedPorts, Value: "0"}}
}
