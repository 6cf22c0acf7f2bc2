package v1alpha1

import corev1 "k8s.io/api/core/v1"

// InitialImage is the first content of a VM's disk.
type InitialImage struct {
	// URL of the image: http, https or file. A file is one of the hypervisor's host.
	// +kubebuilder:validation:Pattern=`^(https?|file)://.+`
	URL string `json:"url"`
	// Checksum of the content of the URL: "sha256:" and 64 lower-case hexadecimal digits.
	// The VM does not start from an image that does not match. Empty: not checked.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +optional
	Checksum string `json:"checksum,omitempty"`
	// Format of the content of the URL. Empty: detected from its first bytes.
	// +optional
	Format ImageFormat `json:"format,omitempty"`
}

// ImageFormat is an encoding of a disk's content.
//
// +kubebuilder:validation:Enum=Raw;QCOW2
type ImageFormat string

const (
	// FormatRaw is the bytes of the disk, one to one.
	FormatRaw ImageFormat = "Raw"
	// FormatQCOW2 is QEMU's copy-on-write format. An image that refers to another file
	// is refused.
	FormatQCOW2 ImageFormat = "QCOW2"
)

// VolumeClaimTemplate is a template for the PersistentVolumeClaim of a disk.
type VolumeClaimTemplate struct {
	// Metadata of the claim.
	// +optional
	Metadata VolumeClaimMetadata `json:"metadata,omitempty"`
	// Spec of the claim. Unless volumeMode says Block, the disk is a file on the
	// volume.
	Spec corev1.PersistentVolumeClaimSpec `json:"spec"`
}

// VolumeClaimMetadata is the metadata of a claim. The VM controller chooses its name.
type VolumeClaimMetadata struct {
	// Labels of the claim.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the claim.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// UserData refers to the guest's configuration, which usually contains credentials.
type UserData struct {
	// SecretRef names the Secret, in the VirtualMachine's namespace.
	SecretRef SecretKeyReference `json:"secretRef"`
}

// SecretKeyReference names one value of a Secret in the same namespace.
type SecretKeyReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Key of the value in the Secret.
	// +kubebuilder:default=userData
	// +optional
	Key string `json:"key,omitempty"`
}

// KernelBoot is a kernel that the hypervisor loads into the guest at every start.
type KernelBoot struct {
	// Kernel to start.
	Kernel BootFile `json:"kernel"`
	// Initrd is the initial RAM disk. None if it is absent.
	// +optional
	Initrd *BootFile `json:"initrd,omitempty"`
	// CommandLine of the kernel.
	// +optional
	CommandLine string `json:"commandLine,omitempty"`
}

// BootFile is a file that KernelBoot needs.
type BootFile struct {
	// URL of the file: http, https or file. A file is one of the hypervisor's host.
	// +kubebuilder:validation:Pattern=`^(https?|file)://.+`
	URL string `json:"url"`
	// Checksum is like that of an InitialImage.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +optional
	Checksum string `json:"checksum,omitempty"`
}
