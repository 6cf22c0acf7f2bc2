package v1alpha1

// Network connects a network interface of the guest to a secondary network.
type Network struct {
	// Name of the network, which is unique in the VM.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Multus describes how Multus connects the hypervisor's Pod to the network.
	Multus MultusNetwork `json:"multus"`
	// MACAddress is the Ethernet address of the guest's interface, such as 02:00:00:12:34:56. It must not be a group
	// address. Defaults to an address that is derived from the VM's UUID and the name of the network.
	// +kubebuilder:validation:Pattern=`^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$`
	// +kubebuilder:validation:XValidation:rule="self != '00:00:00:00:00:00'",message="macAddress must not be zero"
	// +kubebuilder:validation:MaxLength=17
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
}

// MultusNetwork is a network to which Multus, or another implementation of the Network Plumbing Working Group's
// specification, connects Pods.
type MultusNetwork struct {
	// NetworkName is the NetworkAttachmentDefinition of the network, as NAMESPACE/NAME, or NAME in the VM's namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	NetworkName string `json:"networkName"`
}
