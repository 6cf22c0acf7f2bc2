package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineStatus is what the VM controller observed and decided.
type VirtualMachineStatus struct {
	// VirtualMachineAuthority only changes as a whole.
	VirtualMachineAuthority `json:",inline"`
	// Phase summarises the VM's state for users. Programs should use conditions.
	// +optional
	Phase VirtualMachinePhase `json:"phase,omitempty"`
	// ImagePrepared reports whether the disk was completed, with the initial image if there is
	// one; then it is set before the first start. From then on no hypervisor writes the image or
	// creates the disk.
	// +optional
	ImagePrepared bool `json:"imagePrepared,omitempty"`
	// NodeName is the node on which the authoritative Pod is.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// DataDisks are the data disks that the VM has or had. One that was prepared is never created again.
	// +listType=map
	// +listMapKey=name
	// +optional
	DataDisks []DataDiskStatus `json:"dataDisks,omitempty"`
	// GrowDisks are the sizes to which disks of the guest may grow while it runs, as their volumes have grown. The
	// hypervisor of activePodName is told.
	// +listType=atomic
	// +optional
	GrowDisks []DiskSize `json:"growDisks,omitempty"`
	// Addresses of the guest, without prefix length. Empty: unknown.
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// Migration is the live migration under way, or the last one. Absent: there was none.
	// +optional
	Migration *VirtualMachineMigration `json:"migration,omitempty"`
	// Lease is that of the authoritative hypervisor, written like the authority. Absent: it has none, as
	// it relies on storage locking.
	// +optional
	Lease *VirtualMachineLease `json:"lease,omitempty"`
	// DiskServer is the server of the disks, with diskAccess Served. Absent: there was none yet.
	// +optional
	DiskServer *DiskServerStatus `json:"diskServer,omitempty"`
	// Conditions of the VM, by type.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the spec to which the status belongs.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// DataDiskStatus is what is known of a data disk.
type DataDiskStatus struct {
	// Name of the disk.
	Name string `json:"name"`
	// VolumeClaimName is its claim. A live migration copies the disk to another one.
	VolumeClaimName string `json:"volumeClaimName"`
	// Prepared reports whether a hypervisor has had the disk complete. From then on none creates it.
	// +optional
	Prepared bool `json:"prepared,omitempty"`
}

// DiskSize is the size of a disk.
type DiskSize struct {
	// Name of the data disk. Empty: the disk from which the VM starts.
	// +optional
	Name string `json:"name,omitempty"`
	// Bytes is the size.
	Bytes int64 `json:"bytes"`
}

// VirtualMachineAuthority names the only hypervisor that may run the VM, and its disk. Its
// fields are written together, and only under the resource version at which they were
// read: the write is a compare-and-swap. If all are empty, none may.
type VirtualMachineAuthority struct {
	// ActivePodName is the Pod of the authoritative hypervisor.
	// +optional
	ActivePodName string `json:"activePodName,omitempty"`
	// ActivePodUID is the UID of that Pod, as a name can be used again.
	// +optional
	ActivePodUID types.UID `json:"activePodUID,omitempty"`
	// ActiveRunID is the run_id of the authoritative process in the Pod: an unsigned
	// 64-bit number in decimal. It is a string because many JSON parsers lose precision
	// in such numbers. Empty: the process has not called yet.
	// +kubebuilder:validation:Pattern=`^[0-9]{1,20}$`
	// +optional
	ActiveRunID string `json:"activeRunID,omitempty"`
	// VolumeClaimName is the claim of the disk. Empty if the disk is ephemeral.
	// +optional
	VolumeClaimName string `json:"volumeClaimName,omitempty"`
}

// VirtualMachineLease is a lease that expires. Leases are granted only while it is Open.
type VirtualMachineLease struct {
	// State of the lease.
	State LeaseState `json:"state"`
	// Transitions is how often state or holder changed.
	Transitions int64 `json:"transitions"`
	// FencingToken is a number of the holder that is higher than those of all holders before.
	FencingToken int64 `json:"fencingToken"`
	// DurationSeconds is how long the holder's leases last.
	DurationSeconds int32 `json:"durationSeconds"`
	// TransitionTime is when state or holder changed last. Nothing is decided on it.
	TransitionTime metav1.Time `json:"transitionTime"`
}

// DiskServerStatus is what is stored of the server of a VM's disks.
type DiskServerStatus struct {
	// PodName is the Pod of the server. It is stored before the Pod exists.
	PodName string `json:"podName"`
	// PodUID is the UID of that Pod. Empty: it does not exist yet.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
	// RevokedToken is the highest fencing token that the server has revoked, as far as is known: who attached the disks
	// with one up to it cannot change them any more. The hypervisor whose lease has the next token gets it; others wait.
	// +optional
	RevokedToken int64 `json:"revokedToken,omitempty"`
}

// LeaseState is the state of a lease.
//
// +kubebuilder:validation:Enum=Open;Suspected;Revoked;Released
type LeaseState string

const (
	// LeaseOpen means that the holder gets the lease whenever it asks.
	LeaseOpen LeaseState = "Open"
	// LeaseSuspected means that the holder has not asked for long. It can still renew its lease. When it
	// must have expired, the VM is started elsewhere.
	LeaseSuspected LeaseState = "Suspected"
	// LeaseRevoked means that the holder gets no lease any more, as its Pod has ended or is gone.
	LeaseRevoked LeaseState = "Revoked"
	// LeaseReleased means that the holder has said that its guest has ended.
	LeaseReleased LeaseState = "Released"
)

// VirtualMachineMigration is a live migration. Its names are reserved before the objects exist, under
// the resource version at which the VM was read, so there is one target at a time.
type VirtualMachineMigration struct {
	// Phase of the migration.
	Phase MigrationPhase `json:"phase"`
	// SourcePodName is the Pod that the VM leaves.
	SourcePodName string `json:"sourcePodName"`
	// SourceNodeName is the node of that Pod.
	// +optional
	SourceNodeName string `json:"sourceNodeName,omitempty"`
	// TargetPodName is the Pod that waits for the VM. It is not authoritative before the end.
	TargetPodName string `json:"targetPodName"`
	// TargetPodUID is the UID of that Pod. Empty: it does not exist yet.
	// +optional
	TargetPodUID types.UID `json:"targetPodUID,omitempty"`
	// TargetNodeName is the node of that Pod, or the one that it was ordered to.
	// +optional
	TargetNodeName string `json:"targetNodeName,omitempty"`
	// TargetVolumeClaimName is the claim of the disk to which the VM's is copied; that of the VM itself if
	// its disks are shared. Empty if the disk is ephemeral. Claims of data disks that are copied have the
	// names of that Pod and of the disk.
	// +optional
	TargetVolumeClaimName string `json:"targetVolumeClaimName,omitempty"`
	// TargetFencingToken is the token with which the target attaches the disks, and that of its lease when it has got the VM.
	// 0: it has disks of its own.
	// +optional
	TargetFencingToken int64 `json:"targetFencingToken,omitempty"`
	// Reason is why the migration failed, in one word. Empty while it has not.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message says more, for users.
	// +optional
	Message string `json:"message,omitempty"`
	// Failures is how many migrations from this source failed before, one after the other.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// DoneBytes is how much of memory and disks is copied. What the guest writes again counts again.
	// It is updated in steps.
	// +optional
	DoneBytes int64 `json:"doneBytes,omitempty"`
	// TotalBytes is how much there is to copy, as far as is known. 0: unknown.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// StartTime is when the target was reserved.
	StartTime metav1.Time `json:"startTime"`
	// EndTime is when the migration failed, or the VM controller noticed that the target runs the guest.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
	// Downtime is how long the guest stood still. Absent: not measured.
	// +optional
	Downtime *metav1.Duration `json:"downtime,omitempty"`
}

// MigrationPhase is how far a live migration is.
//
// +kubebuilder:validation:Enum=Preparing;Copying;Succeeded;Failed
type MigrationPhase string

const (
	// MigrationPreparing: the target is being created.
	MigrationPreparing MigrationPhase = "Preparing"
	// MigrationCopying: memory and disk are being copied.
	MigrationCopying MigrationPhase = "Copying"
	// MigrationSucceeded: the target is authoritative.
	MigrationSucceeded MigrationPhase = "Succeeded"
	// MigrationFailed: the VM stayed with its source. The target is removed.
	MigrationFailed MigrationPhase = "Failed"
)

// VirtualMachinePhase summarises a VM's state.
//
// +kubebuilder:validation:Enum=Creating;Running;Terminating;Stopped;Lost
type VirtualMachinePhase string

const (
	// PhaseCreating: the VM has not run yet.
	PhaseCreating VirtualMachinePhase = "Creating"
	// PhaseRunning: a hypervisor runs the VM, or holds it stopped.
	PhaseRunning VirtualMachinePhase = "Running"
	// PhaseTerminating: the VM is being deleted.
	PhaseTerminating VirtualMachinePhase = "Terminating"
	// PhaseStopped: no hypervisor runs the VM.
	PhaseStopped VirtualMachinePhase = "Stopped"
	// PhaseLost: the authoritative hypervisor cannot be reached. The VM may be running.
	PhaseLost VirtualMachinePhase = "Lost"
)

const (
	// ConditionReady is the type of the condition that reports whether the VM runs as its
	// spec wants it.
	ConditionReady = "Ready"

	// ConditionScheduled reports whether the authoritative Pod has a node. It is False
	// with reason ReasonUnschedulable while no host has room.
	ConditionScheduled = "Scheduled"

	// ConditionStorageLocking reports whether the lock of LeaseStorageLocking keeps a second
	// guest of the VM from running on any host. It is False with reason ReasonEphemeralDisk, and
	// Unknown where it depends on a volume about which the VM controller knows too little.
	ConditionStorageLocking = "StorageLocking"

	// ConditionMigrating reports whether a live migration is under way. Its reason is the phase of
	// status.migration, or why that failed. Absent: there was none.
	ConditionMigrating = "Migrating"

	// ConditionLiveMigratable reports whether the VM would be migrated live if it had to leave its
	// host now.
	ConditionLiveMigratable = "LiveMigratable"

	// ConditionHypervisorCurrent reports whether the hypervisor has the image that the next one would have.
	// It is absent while there is none.
	ConditionHypervisorCurrent = "HypervisorCurrent"

	// ConditionRestartNeeded reports that the guest lacks something of the spec: CPUs, memory, data disks, the size of
	// a disk. It gets it when the next hypervisor of the VM starts, unless the message says what is wrong.
	// Absent: it lacks nothing, or there is no hypervisor.
	ConditionRestartNeeded = "RestartNeeded"

	// ConditionFenced reports whether the VM was taken from a host because of AnnotationFence, or why the last
	// such annotation did nothing. Absent: there was none.
	ConditionFenced = "Fenced"

	// ConditionDisksServed reports whether the hypervisor can attach the disks at their server. Absent: the VM has no server
	// of disks.
	ConditionDisksServed = "DisksServed"

	// ReasonDiskServerStarting is the reason of ConditionDisksServed, and of ConditionReady while a hypervisor waits for it,
	// when the server of the disks does not serve yet.
	ReasonDiskServerStarting = "DiskServerStarting"

	// ReasonDiskServerUnreachable is the reason of ConditionDisksServed when the VM controller cannot have the server of
	// the disks serve them to the hypervisor.
	ReasonDiskServerUnreachable = "DiskServerUnreachable"

	// ReasonStorageNotRevoked is the reason of ConditionDisksServed and ConditionReady while the server of the disks has not
	// confirmed that hypervisors of before cannot change them any more. Until then no other one gets the VM.
	ReasonStorageNotRevoked = "StorageNotRevoked"

	// ReasonHostUnreachable is the reason of ConditionReady when the host of the VM does not answer, so that
	// the guest may be running. See AnnotationFence.
	ReasonHostUnreachable = "HostUnreachable"

	// ReasonEphemeralDisk is the reason of ConditionStorageLocking when each hypervisor has a
	// disk of its own, so that a lock excludes no other.
	ReasonEphemeralDisk = "EphemeralDisk"

	// ReasonUnschedulable is the reason of ConditionScheduled when no host has room for
	// the VM. The message is the scheduler's.
	ReasonUnschedulable = "Unschedulable"

	// ReasonImagePullFailed is the reason of ConditionReady while the host cannot get the image of the
	// hypervisor.
	ReasonImagePullFailed = "ImagePullFailed"

	// ReasonNoSpace is the reason of ConditionReady when the storage of the disk is full. If the
	// VM was running, its guest is stopped, and goes on when there is room.
	ReasonNoSpace = "NoSpace"

	// ReasonStorageFailed is the reason of ConditionReady when the guest is stopped because its
	// disk cannot be read or written. It goes on when that is over.
	ReasonStorageFailed = "StorageFailed"

	// ReasonSuspended is the reason of ConditionReady when the guest sleeps.
	ReasonSuspended = "Suspended"

	// ReasonDiskLocked is the reason of ConditionReady when another process holds the lock of the
	// disk.
	ReasonDiskLocked = "DiskLocked"

	// ReasonDiskLost is the reason of ConditionReady when the volume of the VM no longer has its
	// disk. See AnnotationReplaceDisk.
	ReasonDiskLost = "DiskLost"

	// ReasonLeaseExpiring is the reason of ConditionReady while another hypervisor must wait until the
	// lease of the last one has expired, as that may still run the guest.
	ReasonLeaseExpiring = "LeaseExpiring"

	// ReasonVolumeLost is the reason of ConditionReady when the claim of the disk is gone or is
	// being deleted. See AnnotationReplaceDisk.
	ReasonVolumeLost = "VolumeLost"
)
