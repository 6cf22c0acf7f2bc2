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
// +genclient
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
// +kubebuilder:validation:XValidation:rule="(has(self.diskAccess) && self.diskAccess == 'Served') == (has(oldSelf.diskAccess) && oldSelf.diskAccess == 'Served')",message="diskAccess cannot be changed"
// +kubebuilder:validation:XValidation:rule="!has(self.diskAccess) || self.diskAccess != 'Served' || has(self.leaseMode) && self.leaseMode == 'FullLeases'",message="diskAccess Served needs leaseMode FullLeases"
// +kubebuilder:validation:XValidation:rule="!has(self.diskAccess) || self.diskAccess != 'Served' || has(self.volumeClaimTemplate)",message="diskAccess Served needs a volumeClaimTemplate: a disk that lives as long as a Pod is not served"
// +kubebuilder:validation:XValidation:rule="!has(self.diskAccess) || self.diskAccess != 'Served' || (!has(self.volumeClaimTemplate) || !has(self.volumeClaimTemplate.spec.volumeMode) || self.volumeClaimTemplate.spec.volumeMode != 'Block') && (!has(self.dataDisks) || self.dataDisks.all(disk, !has(disk.volumeClaimTemplate.spec.volumeMode) || disk.volumeClaimTemplate.spec.volumeMode != 'Block'))",message="diskAccess Served needs disks of volumeMode Filesystem"
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
	// DataDisks are further disks of the guest. One that is added, or taken from the list, is so for the guest when
	// its next hypervisor starts. The claim of one that is taken from the list stays as long as the VM, and
	// a disk of its name finds it again.
	// +kubebuilder:validation:MaxItems=12
	// +listType=map
	// +listMapKey=name
	// +optional
	DataDisks []DataDisk `json:"dataDisks,omitempty"`
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
	// HostSelector limits the hosts of the VM to those whose Nodes have all of these labels. Empty: all
	// hosts.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	HostSelector map[string]string `json:"hostSelector,omitempty"`
	// AntiAffinity keeps the VM from hosts of other VMs. Absent: it may be on any.
	// +optional
	AntiAffinity *AntiAffinity `json:"antiAffinity,omitempty"`
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
	// LeaseDurationSeconds is how long leases last, with leaseMode FullLeases: a guest that is cut off
	// from the VM controller ends before, and after a little more it can start elsewhere. Empty: 60.
	// +kubebuilder:validation:Minimum=6
	// +kubebuilder:validation:Maximum=600
	// +optional
	LeaseDurationSeconds int32 `json:"leaseDurationSeconds,omitempty"`
	// DiskAccess is how hypervisors reach the disks of this VM. Empty: Direct. It cannot be changed.
	// +optional
	DiskAccess DiskAccess `json:"diskAccess,omitempty"`
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

// AntiAffinity keeps the VMs of a group, in a namespace, on different hosts.
type AntiAffinity struct {
	// Group is a name that the VMs have in common.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Group string `json:"group"`
	// Mode says what happens if there are not enough hosts.
	// +kubebuilder:default=Preferred
	// +optional
	Mode AntiAffinityMode `json:"mode,omitempty"`
}

// AntiAffinityMode says how strictly VMs are kept on different hosts.
//
// +kubebuilder:validation:Enum=Preferred;Required
type AntiAffinityMode string

const (
	// AntiAffinityPreferred puts several VMs of the group on a host if no other one has room. It is the default.
	AntiAffinityPreferred AntiAffinityMode = "Preferred"
	// AntiAffinityRequired never does that: a VM waits for a host. One that must leave its host while no other
	// one is free is shut down.
	AntiAffinityRequired AntiAffinityMode = "Required"
)

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
	// LeaseFullLeases relies on leases that expire. For storage that several hosts can attach. A
	// VM that is cut off from its controller is killed, and starts on another host by itself.
	LeaseFullLeases LeaseMode = "FullLeases"
)

// DiskAccess is how hypervisors reach the disks of a VM.
//
// +kubebuilder:validation:Enum=Direct;Served
type DiskAccess string

const (
	// DiskAccessDirect mounts the disks into the Pods of hypervisors. It is the default.
	DiskAccessDirect DiskAccess = "Direct"
	// DiskAccessServed mounts them into a Pod of their own, which serves them to the hypervisor with the current fencing
	// token and refuses those with earlier ones. Only with LeaseFullLeases, and disks that are files on volumes of claims.
	DiskAccessServed DiskAccess = "Served"
)

const (
	// Finalizer keeps a VirtualMachine until its hypervisor has ended and its disk is
	// deleted.
	Finalizer = "vm.metropolis.monogon.dev/vm-controller"

	// LabelVM is a label of the Pods and claims of a VM: the VirtualMachine's name.
	LabelVM = "vm.metropolis.monogon.dev/name"

	// LabelDataDisk is a label of the claims of data disks: the disk's name.
	LabelDataDisk = "vm.metropolis.monogon.dev/data-disk"

	// LabelDiskServer is a label of the Pods that serve the disks of a VM, with DiskAccessServed: "true". Hypervisors have
	// none.
	LabelDiskServer = "vm.metropolis.monogon.dev/disk-server"

	// LabelAntiAffinityGroup is a label of the Pods of a VM with spec.antiAffinity: its group.
	LabelAntiAffinityGroup = "vm.metropolis.monogon.dev/anti-affinity-group"

	// HostKey is the key of a label and a taint (NoSchedule) of hosts: only Pods of
	// hypervisors run there, and they run nowhere else.
	HostKey = "vm.metropolis.monogon.dev/host"

	// AnnotationReplaceDisk gives up disks that are lost (ReasonDiskLost, ReasonVolumeLost): the
	// VM gets new ones, with their initial images. The value is status.activePodName, so that it
	// holds once. A disk that exists is kept.
	AnnotationReplaceDisk = "vm.metropolis.monogon.dev/replace-disk"

	// AnnotationMigrate orders a live migration. The value is status.activePodName, so that it holds
	// for one migration; after a slash there may be the name of the node to go to. The VM controller
	// removes it when it gives up; a user who removes it cancels the migration.
	AnnotationMigrate = "vm.metropolis.monogon.dev/migrate"

	// AnnotationFence says that the host of a VM is fenced, as by switching off its power: what runs there
	// cannot run on, nor write to the disk. With LeaseStorageLocking the VM then starts on another host without
	// waiting until the Node is deleted. The value is status.activePodName, a slash and status.nodeName: the
	// hypervisor and the host that is fenced. The VM controller removes it. If it names another hypervisor or
	// another host, or if that answers, it does nothing but set ConditionFenced.
	AnnotationFence = "vm.metropolis.monogon.dev/fence"

	// AnnotationController names the VM controller that works for a VirtualMachine, as NAMESPACE/NAME of its
	// lease. The first one that finds none writes its own. Others leave the VirtualMachine alone, with an event. Who
	// changes it hands the VirtualMachine over; without it, the next one to see that takes it.
	AnnotationController = "vm.metropolis.monogon.dev/controller"

	// AnnotationAddresses has the addresses of a VirtualMachine without spec.vmIPs,
	// separated by commas. It is written once, before the first Pod is created.
	AnnotationAddresses = "vm.metropolis.monogon.dev/addresses"
)

// InitialImage is the first content of a VM's disk.
type InitialImage struct {
	// URL of the image: http, https or file. A file is one in the folder of images of the
	// hypervisor's host.
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

// DataDisk is a disk beside the one from which the VM starts.
type DataDisk struct {
	// Name of the disk. The guest sees it as its serial number, so Linux has it at /dev/disk/by-id/virtio-NAME.
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// InitialImage is written to the disk when it is new, and never again. Without one it is blank.
	// +optional
	InitialImage *InitialImage `json:"initialImage,omitempty"`
	// VolumeClaimTemplate describes the claim for the disk.
	VolumeClaimTemplate VolumeClaimTemplate `json:"volumeClaimTemplate"`
}

// VolumeClaimTemplate is a template for the PersistentVolumeClaim of a disk. The size that it requests may become
// larger: see ConditionRestartNeeded.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec.resources) || !has(oldSelf.spec.resources.requests) || !('storage' in oldSelf.spec.resources.requests) || !has(self.spec.resources) || !has(self.spec.resources.requests) || !('storage' in self.spec.resources.requests) || (type(self.spec.resources.requests['storage']) == string && type(oldSelf.spec.resources.requests['storage']) == string ? !quantity(self.spec.resources.requests['storage']).isLessThan(quantity(oldSelf.spec.resources.requests['storage'])) : type(self.spec.resources.requests['storage']) != int || type(oldSelf.spec.resources.requests['storage']) != int || self.spec.resources.requests['storage'] >= oldSelf.spec.resources.requests['storage'])",message="a disk cannot become smaller",fieldPath=".spec"
// +kubebuilder:validation:XValidation:rule="(has(self.spec.volumeMode) && self.spec.volumeMode == 'Block') == (has(oldSelf.spec.volumeMode) && oldSelf.spec.volumeMode == 'Block')",message="the volumeMode of a disk cannot change",fieldPath=".spec"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.volumeMode) || self.spec.volumeMode == 'Block' || self.spec.volumeMode == 'Filesystem'",message="volumeMode must be Filesystem or Block",fieldPath=".spec"
type VolumeClaimTemplate struct {
	// Metadata of the claim.
	// +optional
	Metadata VolumeClaimMetadata `json:"metadata,omitempty"`
	// Spec of the claim. With volumeMode Filesystem, the default, the disk is a file on the volume; with Block it is the
	// volume itself, and the claim must be for one host at a time (ReadWriteOnce, the default) unless leaseMode is
	// FullLeases. The mode cannot be changed.
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
