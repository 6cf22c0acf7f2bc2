package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineKind is the kind of a VirtualMachine.
const VirtualMachineKind = "VirtualMachine"

// VirtualMachine is a virtual machine that runs in the Pod of a hypervisor.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=mwvm,categories=millwright
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
	// Status is the observed state and what the VM controller has decided.
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

// VirtualMachineSpec is the desired state of a VM. Changes of mode and migrateStrategy take effect immediately,
// changes of migration with the next live migration, and other changes when the VM's next hypervisor starts.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.uuid) || has(self.uuid) && self.uuid == oldSelf.uuid",message="uuid cannot be changed once it is set",fieldPath=".uuid"
// +kubebuilder:validation:XValidation:rule="(has(self.diskAccess) && self.diskAccess == 'Served') == (has(oldSelf.diskAccess) && oldSelf.diskAccess == 'Served')",message="diskAccess cannot be changed"
// +kubebuilder:validation:XValidation:rule="!has(self.diskAccess) || self.diskAccess != 'Served' || has(self.leaseMode) && self.leaseMode == 'FullLeases'",message="diskAccess Served needs leaseMode FullLeases"
// +kubebuilder:validation:XValidation:rule="!has(self.diskAccess) || self.diskAccess != 'Served' || has(self.volumeClaimTemplate)",message="diskAccess Served needs a volumeClaimTemplate: an ephemeral disk cannot be served"
// +kubebuilder:validation:XValidation:rule="!has(self.diskAccess) || self.diskAccess != 'Served' || (!has(self.volumeClaimTemplate) || !has(self.volumeClaimTemplate.spec.volumeMode) || self.volumeClaimTemplate.spec.volumeMode != 'Block') && (!has(self.dataDisks) || self.dataDisks.all(disk, !has(disk.volumeClaimTemplate.spec.volumeMode) || disk.volumeClaimTemplate.spec.volumeMode != 'Block'))",message="diskAccess Served needs disks of volumeMode Filesystem"
// +kubebuilder:validation:XValidation:rule="(has(self.firmware) && self.firmware == 'UEFI') == (has(oldSelf.firmware) && oldSelf.firmware == 'UEFI')",message="firmware cannot be changed",fieldPath=".firmware"
// +kubebuilder:validation:XValidation:rule="!has(self.firmware) || self.firmware != 'UEFI' || !has(self.kernelBoot)",message="firmware UEFI cannot be combined with kernelBoot, which boots without firmware",fieldPath=".firmware"
// +kubebuilder:validation:XValidation:rule="(has(self.display) && self.display == 'VNC') == (has(oldSelf.display) && oldSelf.display == 'VNC')",message="display cannot be changed",fieldPath=".display"
// +kubebuilder:validation:XValidation:rule="(has(self.networks) ? self.networks : []) == (has(oldSelf.networks) ? oldSelf.networks : [])",message="networks cannot be changed",fieldPath=".networks"
// +kubebuilder:validation:XValidation:rule="!has(self.readinessProbe) || has(self.ports)",message="readinessProbe needs ports"
// +kubebuilder:validation:XValidation:rule="!has(self.ports) || size(self.ports) == 0 || self.ports.exists(p, !has(p.protocol) || p.protocol == 'TCP') || has(self.readinessProbe) && has(self.readinessProbe.port)",message="readinessProbe.port is required if ports has no TCP port, because the guest is checked over TCP",fieldPath=".readinessProbe.port"
// +kubebuilder:validation:XValidation:rule="!has(self.addressesFromPools) || size(self.addressesFromPools) == 0 || !has(self.vmIPs) || size(self.vmIPs) == 0",message="addressesFromPools cannot be combined with vmIPs",fieldPath=".addressesFromPools"
type VirtualMachineSpec struct {
	// InitialImage is written to the VM's disk before the first start, and never again. If unset, the VM boots
	// from the disk as the storage provides it.
	// +optional
	InitialImage *InitialImage `json:"initialImage,omitempty"`
	// HypervisorImage is the container image of the hypervisor: one that the VM controller permits. Defaults to
	// the VM controller's setting.
	// +optional
	HypervisorImage string `json:"hypervisorImage,omitempty"`
	// Resources of the hypervisor's Pod. CPUs are not pinned: if they are fractional, or more than the host
	// has, VMs share cores and can learn more about each other through side channels.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// CPUs is the number of virtual CPUs of the guest. Defaults to the CPUs in resources.limits rounded up, or
	// 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	CPUs int32 `json:"cpus,omitempty"`
	// Memory of the guest. Defaults to the memory in resources.limits minus the hypervisor's overhead, or
	// 512Mi.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="memory must be more than 0"
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// VolumeClaimTemplate describes the claim for the VM's disk. If unset, the disk is ephemeral: it exists as
	// long as the Pod.
	// +optional
	VolumeClaimTemplate *VolumeClaimTemplate `json:"volumeClaimTemplate,omitempty"`
	// DataDisks are additional disks of the guest. The guest sees added and removed disks when its next
	// hypervisor starts. The claim of a removed disk is kept as long as the VM exists; a new disk of the same
	// name gets it back.
	// +kubebuilder:validation:MaxItems=12
	// +listType=map
	// +listMapKey=name
	// +optional
	DataDisks []DataDisk `json:"dataDisks,omitempty"`
	// VMIPs are the guest's addresses, at most one of each IP version. They are in CIDR notation with the full
	// prefix length (10.0.0.5/32) or plain addresses, which mean the same.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(ip, isIP(ip) || isCIDR(ip) && cidr(ip).prefixLength() == (cidr(ip).ip().family() == 4 ? 32 : 128))",message="vmIPs must be IP addresses, alone or with the prefix length /32 (IPv4) or /128 (IPv6)"
	// +kubebuilder:validation:XValidation:rule="self.filter(ip, ip.contains(':')).size() <= 1 && self.filter(ip, !ip.contains(':')).size() <= 1",message="vmIPs must have at most one address of each IP version"
	// +listType=atomic
	// +optional
	VMIPs []string `json:"vmIPs,omitempty"`
	// AddressesFromPools are the IP address pools from which the guest gets its addresses, one pool for each IP version.
	// The VM keeps an address until it is deleted. A changed pool takes effect when the VM is started again.
	// This needs Cluster API's IPAddressClaims and an IPAM provider in the cluster. It cannot be combined with vmIPs.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a == b))",message="each pool can be listed only once"
	// +listType=atomic
	// +optional
	AddressesFromPools []IPPoolReference `json:"addressesFromPools,omitempty"`
	// Networks are secondary networks, such as VLANs, to which the guest is connected in addition to the VM network. The
	// guest has an additional network interface for each of them. The VM controller must permit them. They cannot be
	// changed.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b.name == a.name))",message="the names of networks must be unique"
	// +listType=atomic
	// +optional
	Networks []Network `json:"networks,omitempty"`
	// Ports are TCP and UDP ports of the guest to which Services can lead. While the guest is ready, the Pod of its hypervisor
	// has these ports, and the VM's labels whose prefix is vm.metropolis.monogon.dev/, for selectors. Changes of ports
	// apply when the VM's next hypervisor starts, for example by a live migration. Local clusters ignore this field.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b.port == a.port && (has(b.protocol) && b.protocol == 'UDP') == (has(a.protocol) && a.protocol == 'UDP')))",message="each port can be listed only once for each protocol"
	// +listType=map
	// +listMapKey=name
	// +optional
	Ports []Port `json:"ports,omitempty"`
	// ReadinessProbe determines when the guest is ready for the connections of Services. If unset, it is ready while it
	// accepts connections to the first TCP port of ports.
	// +optional
	ReadinessProbe *ReadinessProbe `json:"readinessProbe,omitempty"`
	// FailureDomain limits the hosts of the VM to those whose label topology.kubernetes.io/zone has this value.
	// A host without that label matches by its label kubernetes.io/hostname. If empty, all hosts match.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// HostSelector limits the hosts of the VM to those whose Nodes have all of these labels. If empty, all
	// hosts match.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	HostSelector map[string]string `json:"hostSelector,omitempty"`
	// AntiAffinity keeps the VM off the hosts of other VMs. If unset, the VM may run on any host.
	// +optional
	AntiAffinity *AntiAffinity `json:"antiAffinity,omitempty"`
	// MigrateStrategy determines how the VM leaves a host: "Live" moves the running guest; "Cold" shuts the
	// guest down and starts it on another host.
	// +kubebuilder:default=Live
	// +optional
	MigrateStrategy MigrateStrategy `json:"migrateStrategy,omitempty"`
	// Migration limits what a live migration may cost the guest and the network, and determines what happens if it
	// does not converge. Changes apply to the next live migration. Unset fields default to the VM controller's
	// settings.
	// +optional
	Migration *MigrationSettings `json:"migration,omitempty"`
	// TerminationGracePeriodSeconds is how long the guest may take to shut down, when the VM is deleted or leaves its
	// host with migrateStrategy Cold, before it is terminated. A longer time applies when the VM's next hypervisor
	// starts. Defaults to 20.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	TerminationGracePeriodSeconds int32 `json:"terminationGracePeriodSeconds,omitempty"`
	// RunStrategy determines when the guest runs: "Always" starts it again whenever it stops; "RerunOnFailure"
	// starts it again unless it shuts itself down; "Once" starts it once only; "Halted" shuts it down and does not
	// start it. A guest with an ephemeral disk loses the disk when it stops. See AnnotationRestart.
	// +kubebuilder:default=Always
	// +optional
	RunStrategy RunStrategy `json:"runStrategy,omitempty"`
	// Mode determines whether the guest runs ("Run") or its CPUs are stopped while its hypervisor keeps its
	// memory ("Pause").
	// +kubebuilder:default=Run
	// +optional
	Mode VirtualMachineMode `json:"mode,omitempty"`
	// LeaseMode determines what prevents two hypervisors from running this VM at the same time:
	// "StorageLocking" relies on a lock of the storage, for local disks; "FullLeases" relies on leases that
	// expire, for storage that several hosts can attach. A VM that is cut off from its controller keeps running
	// with StorageLocking; with FullLeases it is killed and automatically restarted on another host.
	// +kubebuilder:default=StorageLocking
	// +optional
	LeaseMode LeaseMode `json:"leaseMode,omitempty"`
	// LeaseDurationSeconds is how long leases last with leaseMode FullLeases. A guest that is cut off from the
	// VM controller stops before its lease expires, and can start elsewhere shortly after that. Defaults to 60.
	// +kubebuilder:validation:Minimum=6
	// +kubebuilder:validation:Maximum=600
	// +optional
	LeaseDurationSeconds int32 `json:"leaseDurationSeconds,omitempty"`
	// DiskAccess determines how hypervisors access the disks of this VM: "Direct" mounts the disks into the
	// Pods of hypervisors; "Served" mounts them into a separate Pod, which serves them to the hypervisor with
	// the current fencing token and rejects earlier ones. Served requires leaseMode FullLeases and claims with
	// volumeMode Filesystem. Defaults to Direct. It cannot be changed.
	// +optional
	DiskAccess DiskAccess `json:"diskAccess,omitempty"`
	// UUID of the VM, which the guest sees as its system UUID. If empty, the VM controller sets a random one.
	// It cannot be changed once it is set.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +optional
	UUID string `json:"uuid,omitempty"`
	// UserData is configuration that the guest reads at its first boot from a NoCloud volume. If unset, there
	// is no such volume.
	// +optional
	UserData *UserData `json:"userData,omitempty"`
	// Firmware determines how the guest boots from its disk: "BIOS" executes the boot program in the first
	// sector; "UEFI" starts the program EFI/BOOT/BOOTX64.EFI on the EFI system partition. UEFI variables, such
	// as boot entries, are lost when the guest's hypervisor terminates. Defaults to BIOS. It cannot be changed.
	// +optional
	Firmware Firmware `json:"firmware,omitempty"`
	// KernelBoot boots a kernel directly, without firmware and boot loader. If unset, the guest boots from its
	// disk.
	// +optional
	KernelBoot *KernelBoot `json:"kernelBoot,omitempty"`
	// Display determines whether the guest has a graphics card, a keyboard and a pointing device: "VNC" adds them, for
	// VNC viewers and screenshots; with "None", the guest has only the serial console. Defaults to None. It cannot be
	// changed.
	// +optional
	Display Display `json:"display,omitempty"`
}

// AntiAffinity keeps the VMs of a group in a namespace on different hosts.
type AntiAffinity struct {
	// Group is the name of the group.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Group string `json:"group"`
	// Mode determines what happens if there are not enough hosts: "Preferred" places several VMs of the group
	// on one host; "Required" makes a VM wait for a host.
	// +kubebuilder:default=Preferred
	// +optional
	Mode AntiAffinityMode `json:"mode,omitempty"`
}

// AntiAffinityMode determines how strictly VMs are kept on different hosts.
//
// +kubebuilder:validation:Enum=Preferred;Required
type AntiAffinityMode string

const (
	// AntiAffinityPreferred places several VMs of the group on one host if no other host has capacity. It is
	// the default.
	AntiAffinityPreferred AntiAffinityMode = "Preferred"
	// AntiAffinityRequired makes a VM wait for a host without VMs of its group. A VM that must leave its host
	// while no other host is available is shut down.
	AntiAffinityRequired AntiAffinityMode = "Required"
)

// MigrateStrategy determines how a VM leaves a host.
//
// +kubebuilder:validation:Enum=Live;Cold
type MigrateStrategy string

const (
	// MigrateLive moves the running guest. It is the default.
	MigrateLive MigrateStrategy = "Live"
	// MigrateCold shuts the guest down and starts it on another host.
	MigrateCold MigrateStrategy = "Cold"
)

// RunStrategy determines when a guest runs.
//
// +kubebuilder:validation:Enum=Always;RerunOnFailure;Once;Halted
type RunStrategy string

const (
	// RunAlways starts the guest again whenever it stops. It is the default.
	RunAlways RunStrategy = "Always"
	// RunRerunOnFailure starts the guest again unless it has shut itself down.
	RunRerunOnFailure RunStrategy = "RerunOnFailure"
	// RunOnce starts the guest once only. It starts again if its hypervisor has never run.
	RunOnce RunStrategy = "Once"
	// RunHalted shuts the guest down, if it runs, and does not start it.
	RunHalted RunStrategy = "Halted"
)

// VirtualMachineMode determines whether a guest runs.
//
// +kubebuilder:validation:Enum=Run;Pause
type VirtualMachineMode string

const (
	// ModeRun runs the guest. It is the default.
	ModeRun VirtualMachineMode = "Run"
	// ModePause stops the guest's CPUs. The hypervisor keeps running and keeps the guest's memory.
	ModePause VirtualMachineMode = "Pause"
)

// LeaseMode determines what prevents two hypervisors from running one VM.
//
// +kubebuilder:validation:Enum=StorageLocking;FullLeases
type LeaseMode string

const (
	// LeaseStorageLocking relies on a lock of the storage. It is meant for local disks. A VM that is cut off
	// from its controller keeps running. It is the default.
	LeaseStorageLocking LeaseMode = "StorageLocking"
	// LeaseFullLeases relies on leases that expire. It is meant for storage that several hosts can attach. A VM
	// that is cut off from its controller is killed and automatically restarted on another host.
	LeaseFullLeases LeaseMode = "FullLeases"
)

// DiskAccess determines how hypervisors access the disks of a VM.
//
// +kubebuilder:validation:Enum=Direct;Served
type DiskAccess string

const (
	// DiskAccessDirect mounts the disks into the Pods of hypervisors. It is the default.
	DiskAccessDirect DiskAccess = "Direct"
	// DiskAccessServed mounts the disks into a separate Pod, which serves them to the hypervisor with the
	// current fencing token and rejects earlier ones. It requires LeaseFullLeases and disks that are files on
	// claimed volumes.
	DiskAccessServed DiskAccess = "Served"
)

// Firmware determines how a guest boots from its disk.
//
// +kubebuilder:validation:Enum=BIOS;UEFI
type Firmware string

const (
	// FirmwareBIOS executes the boot program in the first sector of the disk. It is the default.
	FirmwareBIOS Firmware = "BIOS"
	// FirmwareUEFI starts the default boot program on the EFI system partition of the disk.
	FirmwareUEFI Firmware = "UEFI"
)

// Display determines whether a guest has a display.
//
// +kubebuilder:validation:Enum=None;VNC
type Display string

const (
	// DisplayNone means that the guest has only the serial console. It is the default.
	DisplayNone Display = "None"
	// DisplayVNC means that the guest has a display for VNC viewers.
	DisplayVNC Display = "VNC"
)

const (
	// Finalizer keeps a VirtualMachine until its hypervisor has terminated and its disk is deleted.
	Finalizer = "vm.metropolis.monogon.dev/vm-controller"

	// LabelVM is a label of the Pods and claims of a VM: the VirtualMachine's name.
	LabelVM = "vm.metropolis.monogon.dev/name"

	// LabelDataDisk is a label of the claims of data disks: the disk's name.
	LabelDataDisk = "vm.metropolis.monogon.dev/data-disk"

	// LabelDiskServer, "true", is a label of the Pods that serve the disks of a VM, with DiskAccessServed.
	// Hypervisors do not have it.
	LabelDiskServer = "vm.metropolis.monogon.dev/disk-server"

	// LabelAntiAffinityGroup is a label of the Pods of a VM with spec.antiAffinity: its group.
	LabelAntiAffinityGroup = "vm.metropolis.monogon.dev/anti-affinity-group"

	// HostKey is the key of a label and a taint (NoSchedule) of hosts: only Pods of hypervisors run there, and
	// those run nowhere else.
	HostKey = "vm.metropolis.monogon.dev/host"

	// AnnotationReplaceDisk gives up disks that are lost (ReasonDiskLost, ReasonVolumeLost): the VM gets new
	// ones with their initial images. The value is status.activePodName, so that the annotation takes effect
	// only once. Existing disks are kept.
	AnnotationReplaceDisk = "vm.metropolis.monogon.dev/replace-disk"

	// AnnotationRestart shuts the guest down, if it runs, and starts it again. It also starts a guest that has ended
	// and that spec.runStrategy does not start again, except for RunHalted. The value is status.activePodName, so
	// that the annotation takes effect only once.
	AnnotationRestart = "vm.metropolis.monogon.dev/restart"

	// AnnotationUID is the UID of the VirtualMachine when the VM controller first saw it. Another UID means that the
	// VM was restored from a backup: it starts only when the claims of all of its disks were restored, too, and the
	// VM controller then corrects the annotation. Without the annotation, missing claims are created.
	AnnotationUID = "vm.metropolis.monogon.dev/uid"

	// AnnotationUUID on a claim is spec.uuid of its VM. A restored VM gets its claims back by it.
	AnnotationUUID = "vm.metropolis.monogon.dev/uuid"

	// AnnotationMigrate requests a live migration. The value is status.activePodName, so that it applies to one
	// migration, optionally followed by a slash and the name of the target node. The VM controller removes the
	// annotation when it gives up; a user who removes it cancels the migration.
	AnnotationMigrate = "vm.metropolis.monogon.dev/migrate"

	// AnnotationFence declares that the host of a VM is fenced, for example by switching off its power: its
	// processes can neither continue nor write to the disk. With LeaseStorageLocking, the VM then starts on
	// another host without waiting until the Node is deleted. The value is status.activePodName, a slash and
	// status.nodeName: the hypervisor and the host that is fenced. The VM controller removes the annotation. If
	// it names another hypervisor or host, or if the hypervisor responds, only ConditionFenced is set.
	AnnotationFence = "vm.metropolis.monogon.dev/fence"

	// AnnotationController names the VM controller that manages a VirtualMachine, as NAMESPACE/NAME of its
	// lease. The first controller that finds no annotation writes its own. Others do not touch the
	// VirtualMachine and emit an event. To hand the VirtualMachine over, change the annotation; if you remove
	// it, the next controller that sees the VirtualMachine takes it.
	AnnotationController = "vm.metropolis.monogon.dev/controller"

	// AnnotationAddresses holds the addresses of a VirtualMachine without spec.vmIPs, separated by commas. It
	// is written before the first Pod is created, and again only if spec.addressesFromPools gives other addresses.
	AnnotationAddresses = "vm.metropolis.monogon.dev/addresses"

	// AnnotationRotateAuthority, on the Secret of the VM controller's certificate authority, requests that the
	// authority is replaced. The value has no meaning. The VM controller removes the annotation when the rotation
	// begins.
	AnnotationRotateAuthority = "vm.metropolis.monogon.dev/rotate-authority"

	// AnnotationAuthorityRotation, on that Secret, describes the progress of a rotation for users. The VM
	// controller writes it, and removes it when the rotation is complete.
	AnnotationAuthorityRotation = "vm.metropolis.monogon.dev/authority-rotation"

	// AnnotationAuthoritySwitched, on that Secret, is when the previous authority issued its last certificate, in
	// RFC 3339 format.
	AnnotationAuthoritySwitched = "vm.metropolis.monogon.dev/authority-switched"
)

// ChecksumPattern is the regular expression of the checksums of InitialImage and BootFile. The empty checksum, which
// is also valid, does not match it.
const ChecksumPattern = `^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`

// InitialImage is the initial content of a disk.
type InitialImage struct {
	// URL of the image, with the scheme http, https or file. A file URL names a file in the image directory of
	// the hypervisor's host.
	// +kubebuilder:validation:Pattern=`^(https?|file)://.+`
	URL string `json:"url"`
	// Checksum of the content of the URL: "sha256:" and 64, or "sha512:" and 128, lower-case hexadecimal digits.
	// The VM does not start from an image that does not match. If empty, the image is not checked.
	// +kubebuilder:validation:Pattern=`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`
	// +optional
	Checksum string `json:"checksum,omitempty"`
	// Format of the content of the URL: "Raw" or "QCOW2". If empty, it is detected from the first bytes: content
	// that is compressed with gzip, xz or zstd is decompressed, and archives, texts and other formats of disk images
	// are rejected.
	// +optional
	Format ImageFormat `json:"format,omitempty"`
}

// ImageFormat is the encoding of a disk image.
//
// +kubebuilder:validation:Enum=Raw;QCOW2
type ImageFormat string

const (
	// FormatRaw is a byte-for-byte copy of the disk.
	FormatRaw ImageFormat = "Raw"
	// FormatQCOW2 is QEMU's copy-on-write format. An image that refers to another file is rejected.
	FormatQCOW2 ImageFormat = "QCOW2"
)

// DataDisk is a disk in addition to the one from which the VM boots.
type DataDisk struct {
	// Name of the disk. The guest sees it as the serial number of the disk, which Linux shows as
	// /dev/disk/by-id/virtio-NAME.
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// InitialImage is written to the disk when it is created, and never again. If unset, the disk is blank.
	// +optional
	InitialImage *InitialImage `json:"initialImage,omitempty"`
	// VolumeClaimTemplate describes the claim for the disk.
	VolumeClaimTemplate VolumeClaimTemplate `json:"volumeClaimTemplate"`
}

// VolumeClaimTemplate is a template for the PersistentVolumeClaim of a disk. The requested size may be
// increased: see the condition RestartNeeded.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec.resources) || !has(oldSelf.spec.resources.requests) || !('storage' in oldSelf.spec.resources.requests) || !has(self.spec.resources) || !has(self.spec.resources.requests) || !('storage' in self.spec.resources.requests) || (type(self.spec.resources.requests['storage']) == string && type(oldSelf.spec.resources.requests['storage']) == string ? !quantity(self.spec.resources.requests['storage']).isLessThan(quantity(oldSelf.spec.resources.requests['storage'])) : type(self.spec.resources.requests['storage']) != int || type(oldSelf.spec.resources.requests['storage']) != int || self.spec.resources.requests['storage'] >= oldSelf.spec.resources.requests['storage'])",message="a disk cannot become smaller",fieldPath=".spec"
// +kubebuilder:validation:XValidation:rule="(has(self.spec.volumeMode) && self.spec.volumeMode == 'Block') == (has(oldSelf.spec.volumeMode) && oldSelf.spec.volumeMode == 'Block')",message="the volumeMode of a disk cannot change",fieldPath=".spec"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.volumeMode) || self.spec.volumeMode == 'Block' || self.spec.volumeMode == 'Filesystem'",message="volumeMode must be Filesystem or Block",fieldPath=".spec"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.dataSource) && !has(self.spec.dataSourceRef) && !has(self.spec.selector) && !has(self.spec.volumeAttributesClassName) && !has(self.spec.volumeName)",message="only accessModes, resources.requests.storage, storageClassName and volumeMode can be set",fieldPath=".spec"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.resources) || !has(self.spec.resources.limits) && (!has(self.spec.resources.requests) || size(self.spec.resources.requests) == ('storage' in self.spec.resources.requests ? 1 : 0))",message="only resources.requests.storage can be set",fieldPath=".spec.resources"
type VolumeClaimTemplate struct {
	// Metadata of the claim.
	// +optional
	Metadata VolumeClaimMetadata `json:"metadata,omitempty"`
	// Spec of the claim: accessModes, resources.requests.storage, storageClassName and volumeMode. Other fields
	// are rejected. With volumeMode Filesystem, the default, the disk is a file on the volume; with Block it is
	// the volume itself, and the claim must be for one host at a time (ReadWriteOnce, the default) unless
	// leaseMode is FullLeases. The mode cannot be changed.
	Spec corev1.PersistentVolumeClaimSpec `json:"spec"`
}

// VolumeClaimMetadata is the metadata of a claim. The VM controller chooses its name.
type VolumeClaimMetadata struct {
	// Labels of the claim.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the claim. Keys with a prefix, such as example.com/key, are rejected, because storage
	// drivers may obey them.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// UserData refers to the guest's configuration, which usually contains credentials.
type UserData struct {
	// SecretRef names the Secret, in the VirtualMachine's namespace.
	SecretRef SecretKeyReference `json:"secretRef"`
	// HostName is the guest's host name, which it reads together with the configuration. If empty, it is the name of
	// the VirtualMachine.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +optional
	HostName string `json:"hostName,omitempty"`
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
	// Initrd is the initial RAM disk. If unset, there is none.
	// +optional
	Initrd *BootFile `json:"initrd,omitempty"`
	// CommandLine of the kernel.
	// +optional
	CommandLine string `json:"commandLine,omitempty"`
}

// BootFile is a file that KernelBoot needs.
type BootFile struct {
	// URL of the file, with the scheme http, https or file. A file URL names a file of the hypervisor's host.
	// +kubebuilder:validation:Pattern=`^(https?|file)://.+`
	URL string `json:"url"`
	// Checksum of the content of the URL, as in initialImage.
	// +kubebuilder:validation:Pattern=`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`
	// +optional
	Checksum string `json:"checksum,omitempty"`
}
