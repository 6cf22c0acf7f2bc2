package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineKind is the kind of a VirtualMachine.
const VirtualMachineKind = "VirtualMachine"

// VirtualMachine is a virtual machine that a hypervisor process in a Pod runs.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=vm
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.nodeName`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.addresses[0]`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.activePodName`,priority=1
// +kubebuilder:printcolumn:name="CPUs",type=integer,JSONPath=`.spec.cpus`,priority=1
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.spec.memory`,priority=1
// +kubebuilder:printcolumn:name="UUID",type=string,JSONPath=`.spec.uuid`,priority=1
type VirtualMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec is the desired state.
	Spec VirtualMachineSpec `json:"spec"`
	// Status is what the VM controller observed and decided.
	// +optional
	Status VirtualMachineStatus `json:"status,omitempty"`
}

// VirtualMachineList is a list of VirtualMachines.
//
// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachine `json:"items"`
}

// VirtualMachineSpec is the desired state of a VM. Changes of mode and migrateStrategy take
// effect at once, other changes when the next hypervisor of the VM starts.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.uuid) || has(self.uuid) && self.uuid == oldSelf.uuid",message="uuid cannot be changed once it is set",fieldPath=".uuid"
type VirtualMachineSpec struct {
	// InitialImage is written to the VM's disk before the first start, and never
	// again. Without one the VM starts from the disk as the storage delivers it.
	// +optional
	InitialImage *InitialImage `json:"initialImage,omitempty"`
	// HypervisorImage is the container image of the hypervisor process. Empty: the
	// VM controller's default.
	// +optional
	HypervisorImage string `json:"hypervisorImage,omitempty"`
	// Resources of the hypervisor's Pod. CPUs are not pinned: with fractions of a CPU,
	// or more CPUs than the host has, VMs share cores and can learn more of each other
	// through side channels.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// CPUs is the number of virtual CPUs of the guest. Default: the CPUs of
	// resources.limits rounded up, else 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	CPUs int32 `json:"cpus,omitempty"`
	// Memory of the guest. Default: the memory of resources.limits less what the
	// hypervisor itself needs, else 512Mi.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="memory must be more than 0"
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// VolumeClaimTemplate describes the claim for the VM's disk. Without one the disk
	// is ephemeral: it lives as long as the Pod.
	// +optional
	VolumeClaimTemplate *VolumeClaimTemplate `json:"volumeClaimTemplate,omitempty"`
	// VMIPs are the guest's addresses, at most one of each IP version. The notation is
	// CIDR with the full prefix length (10.0.0.5/32); a plain address means the same.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(ip, isIP(ip) || isCIDR(ip) && cidr(ip).prefixLength() == (cidr(ip).ip().family() == 4 ? 32 : 128))",message="vmIPs must be IP addresses, alone or with the prefix length /32 (IPv4) or /128 (IPv6)"
	// +kubebuilder:validation:XValidation:rule="self.filter(ip, ip.contains(':')).size() <= 1 && self.filter(ip, !ip.contains(':')).size() <= 1",message="vmIPs must have at most one address of each IP version"
	// +listType=atomic
	// +optional
	VMIPs []string `json:"vmIPs,omitempty"`
	// FailureDomain limits the hosts of the VM to those whose label
	// topology.kubernetes.io/zone has this value, and the host without that label whose
	// label kubernetes.io/hostname has it. Empty: all hosts.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// MigrateStrategy is how the VM leaves a host.
	// +kubebuilder:default=Live
	// +optional
	MigrateStrategy MigrateStrategy `json:"migrateStrategy,omitempty"`
	// Mode is whether the guest runs.
	// +kubebuilder:default=Run
	// +optional
	Mode VirtualMachineMode `json:"mode,omitempty"`
	// LeaseMode is what prevents two hypervisors from running this VM at the same time.
	// +kubebuilder:default=StorageLocking
	// +optional
	LeaseMode LeaseMode `json:"leaseMode,omitempty"`
	// UUID of the VM, which the guest sees as its system UUID. If it is empty, the VM
	// controller sets a random one. It cannot be changed once it is set.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +optional
	UUID string `json:"uuid,omitempty"`
	// UserData is configuration that the guest reads at its first boot, from a NoCloud
	// volume. Without it there is no such volume.
	// +optional
	UserData *UserData `json:"userData,omitempty"`
	// KernelBoot starts a kernel directly, without firmware and boot loader. Without
	// it the guest boots from its disk.
	// +optional
	KernelBoot *KernelBoot `json:"kernelBoot,omitempty"`
}

// MigrateStrategy is how a VM leaves a host.
//
// +kubebuilder:validation:Enum=Live;Cold
type MigrateStrategy string

const (
	// MigrateLive moves the running guest. It is the default.
	MigrateLive MigrateStrategy = "Live"
	// MigrateCold shuts the guest down and starts it on another host.
	MigrateCold MigrateStrategy = "Cold"
)

// VirtualMachineMode is whether a guest runs.
//
// +kubebuilder:validation:Enum=Run;Pause
type VirtualMachineMode string

const (
	// ModeRun lets the guest run. It is the default.
	ModeRun VirtualMachineMode = "Run"
	// ModePause stops the guest's CPUs. The hypervisor keeps running, with the memory.
	ModePause VirtualMachineMode = "Pause"
)

// LeaseMode is what prevents two hypervisors from running one VM.
//
// +kubebuilder:validation:Enum=StorageLocking;FullLeases
type LeaseMode string

const (
	// LeaseStorageLocking relies on a lock of the storage. For local disks. A VM that
	// is cut off from its controller runs on. It is the default.
	LeaseStorageLocking LeaseMode = "StorageLocking"
	// LeaseFullLeases relies on leases that expire. For distributed storage. A VM that
	// is cut off from its controller is killed.
	LeaseFullLeases LeaseMode = "FullLeases"
)

const (
	// Finalizer keeps a VirtualMachine until its hypervisor has ended and its disk is
	// deleted.
	Finalizer = "vm.metropolis.monogon.dev/vm-controller"

	// LabelVM is a label of the Pods and claims of a VM: the VirtualMachine's name.
	LabelVM = "vm.metropolis.monogon.dev/name"

	// HostKey is the key of a label and a taint (NoSchedule) of hosts: only Pods of
	// hypervisors run there, and they run nowhere else.
	HostKey = "vm.metropolis.monogon.dev/host"

	// AnnotationAddresses has the addresses of a VirtualMachine without spec.vmIPs,
	// separated by commas. It is written once, before the first Pod is created.
	AnnotationAddresses = "vm.metropolis.monogon.dev/addresses"
)
