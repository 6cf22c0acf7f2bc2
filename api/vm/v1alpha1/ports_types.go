package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Port is a TCP or UDP port of the guest.
type Port struct {
	// Name of the port: at most 15 lower-case letters, digits and hyphens, with at least one letter.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^([a-z0-9]+-)*[a-z0-9]+$`
	// +kubebuilder:validation:XValidation:rule="self.matches('[a-z]')",message="must contain a letter"
	Name string `json:"name"`
	// Port is the number of the port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Protocol of the port: TCP or UDP. Defaults to TCP.
	// +kubebuilder:validation:Enum=TCP;UDP
	// +optional
	Protocol corev1.Protocol `json:"protocol,omitempty"`
}

// IsUDP reports whether the protocol of the port is UDP.
func (p Port) IsUDP() bool { return p.Protocol == corev1.ProtocolUDP }

// ReadinessProbe is a check of the guest by its hypervisor: every two seconds until the guest is ready, and then every ten
// seconds. A guest is not ready any more after three consecutive failures. A check fails after four seconds.
type ReadinessProbe struct {
	// Port to connect to, over TCP. Defaults to the first TCP port of ports.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`
	// HTTPPath is the path to request, which must result in a status from 200 to 399. If empty, it is sufficient that
	// the guest accepts the connection.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/([!-$&-~]|%[0-9A-Fa-f]{2})*$`
	// +optional
	HTTPPath string `json:"httpPath,omitempty"`
	// Scheme of the request: HTTP or HTTPS, without verifying the certificate. Defaults to HTTP.
	// +kubebuilder:validation:Enum=HTTP;HTTPS
	// +optional
	Scheme corev1.URIScheme `json:"scheme,omitempty"`
}
