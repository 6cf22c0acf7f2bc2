package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineStatus is the observed state of a VM and what the VM controller has decided.
type VirtualMachineStatus struct {
	// VirtualMachineAuthority changes only as a whole.
	VirtualMachineAuthority `json:",inline"`
	// Phase summarizes the VM's state for users: "Creating", "Running", "Terminating", "Stopped" or "Lost".
	// Programs should use conditions.
	// +optional
	Phase VirtualMachinePhase `json:"phase,omitempty"`
	// ImagePrepared reports whether the disk was completed, including the initial image if there is one. It is
	// set before the first start. From then on, no hypervisor writes the image or creates the disk.
	// +optional
	ImagePrepared bool `json:"imagePrepared,omitempty"`
	// ShutDownPodUID is the UID of the last Pod whose guest shut itself down. With runStrategy RerunOnFailure, the
	// guest does not start again after this Pod.
	// +optional
	ShutDownPodUID types.UID `json:"shutDownPodUID,omitempty"`
	// NodeName is the node of the authoritative Pod.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// DataDisks are the data disks that the VM has or had. A disk that was prepared is never created again.
	// +listType=map
	// +listMapKey=name
	// +optional
	DataDisks []DataDiskStatus `json:"dataDisks,omitempty"`
	// GrowDisks are the sizes to which disks of the guest may grow while it runs, after their volumes have
	// grown. The VM controller sends them to the hypervisor of activePodName.
	// +listType=atomic
	// +optional
	GrowDisks []DiskSize `json:"growDisks,omitempty"`
	// Addresses of the guest, without prefix length. If empty, they are unknown.
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// Migration is the current or the last live migration. If absent, there was none.
	// +optional
	Migration *VirtualMachineMigration `json:"migration,omitempty"`
	// Lease is the lease of the authoritative hypervisor, written together with the authority. If absent, the
	// VM relies on storage locking.
	// +optional
	Lease *VirtualMachineLease `json:"lease,omitempty"`
	// DiskServer is the server of the disks, with diskAccess Served. If absent, there was none yet.
	// +optional
	DiskServer *DiskServerStatus `json:"diskServer,omitempty"`
	// Conditions of the VM, by type: "Ready", "Scheduled", "StorageLocking", "Migrating", "LiveMigratable",
	// "HypervisorCurrent", "RestartNeeded", "Fenced" and "DisksServed". If a type is absent, it does not apply.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the spec that this status belongs to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// DataDiskStatus is the observed state of a data disk.
type DataDiskStatus struct {
	// Name of the disk.
	Name string `json:"name"`
	// VolumeClaimName is the claim of the disk. A live migration copies the disk to another claim.
	VolumeClaimName string `json:"volumeClaimName"`
	// Prepared reports whether the disk was complete on a hypervisor. From then on, no hypervisor creates it.
	// +optional
	Prepared bool `json:"prepared,omitempty"`
}

// DiskSize is the size of a disk.
type DiskSize struct {
	// Name of the data disk. If empty, this is the disk from which the VM boots.
	// +optional
	Name string `json:"name,omitempty"`
	// Bytes is the size in bytes.
	Bytes int64 `json:"bytes"`
}

// VirtualMachineAuthority names the only hypervisor that may run the VM, and its disk. Its fields are written
// together, and only under the resource version at which they were read: the write is a compare-and-swap. If
// all are empty, no hypervisor may run the VM.
type VirtualMachineAuthority struct {
	// ActivePodName is the Pod of the authoritative hypervisor.
	// +optional
	ActivePodName string `json:"activePodName,omitempty"`
	// ActivePodUID is the UID of that Pod, since a name can be reused.
	// +optional
	ActivePodUID types.UID `json:"activePodUID,omitempty"`
	// ActiveRunID is the run_id of the authoritative process in the Pod: an unsigned 64-bit decimal number. It
	// is a string because many JSON parsers lose precision in such numbers. If empty, the process has not
	// called yet.
	// +kubebuilder:validation:Pattern=`^[0-9]{1,20}$`
	// +optional
	ActiveRunID string `json:"activeRunID,omitempty"`
	// VolumeClaimName is the claim of the disk. If empty, the disk is ephemeral.
	// +optional
	VolumeClaimName string `json:"volumeClaimName,omitempty"`
}

// VirtualMachineLease is a lease that expires. Leases are granted only while its state is Open.
type VirtualMachineLease struct {
	// State of the lease: "Open", "Suspected", "Revoked" or "Released".
	State LeaseState `json:"state"`
	// Transitions counts changes of the state or the holder.
	Transitions int64 `json:"transitions"`
	// FencingToken is the number of the holder. It is higher than those of all earlier holders.
	FencingToken int64 `json:"fencingToken"`
	// DurationSeconds is how long the holder's leases last.
	DurationSeconds int32 `json:"durationSeconds"`
	// TransitionTime is when the state or the holder last changed. It is informative only.
	TransitionTime metav1.Time `json:"transitionTime"`
}

// DiskServerStatus is the stored state of the server of a VM's disks.
type DiskServerStatus struct {
	// PodName is the Pod of the server. It is stored before the Pod exists.
	PodName string `json:"podName"`
	// PodUID is the UID of that Pod. If empty, the Pod does not exist yet.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
	// RevokedToken is the highest fencing token that the server is known to have revoked: a hypervisor that
	// attached the disks with this token or a lower one can no longer change them. Only the hypervisor whose
	// lease has the next token can attach the disks; others wait.
	// +optional
	RevokedToken int64 `json:"revokedToken,omitempty"`
}

// LeaseState is the state of a lease.
//
// +kubebuilder:validation:Enum=Open;Suspected;Revoked;Released
type LeaseState string

const (
	// LeaseOpen means that the holder gets the lease whenever it requests it.
	LeaseOpen LeaseState = "Open"
	// LeaseSuspected means that the holder has not renewed its lease for a long time. It can still do so. When
	// the lease must have expired, the VM is started elsewhere.
	LeaseSuspected LeaseState = "Suspected"
	// LeaseRevoked means that the holder gets no more leases, since its Pod has terminated or is gone.
	LeaseRevoked LeaseState = "Revoked"
	// LeaseReleased means that the holder has reported that its guest has terminated.
	LeaseReleased LeaseState = "Released"
)

// VirtualMachineMigration is a live migration. Its names are reserved before the objects exist, under the
// resource version at which the VM was read, so that there is only one target at a time.
type VirtualMachineMigration struct {
	// Phase of the migration: "Preparing", "Copying", "Succeeded" or "Failed".
	Phase MigrationPhase `json:"phase"`
	// SourcePodName is the Pod that the VM leaves.
	SourcePodName string `json:"sourcePodName"`
	// SourceNodeName is the node of that Pod.
	// +optional
	SourceNodeName string `json:"sourceNodeName,omitempty"`
	// TargetPodName is the Pod that waits for the VM. It becomes authoritative only at the end.
	TargetPodName string `json:"targetPodName"`
	// TargetPodUID is the UID of that Pod. If empty, the Pod does not exist yet.
	// +optional
	TargetPodUID types.UID `json:"targetPodUID,omitempty"`
	// TargetNodeName is the node of that Pod, or the node that the user chose.
	// +optional
	TargetNodeName string `json:"targetNodeName,omitempty"`
	// TargetVolumeClaimName is the claim to which the VM's disk is copied, or the VM's own claim if its disks
	// are shared. If empty, the disk is ephemeral. Claims of data disks that are copied are named after that
	// Pod and the disk.
	// +optional
	TargetVolumeClaimName string `json:"targetVolumeClaimName,omitempty"`
	// TargetFencingToken is the token with which the target attaches the disks, and the token of its lease once
	// it has the VM. If 0, the target has disks of its own.
	// +optional
	TargetFencingToken int64 `json:"targetFencingToken,omitempty"`
	// Reason is why the migration failed, in CamelCase. It is empty unless the migration failed.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message explains the reason for users.
	// +optional
	Message string `json:"message,omitempty"`
	// Failures is the number of consecutive earlier migrations from this source that failed.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// DoneBytes is how many bytes of memory and disks have been copied. Data that the guest writes again is
	// counted again. It is updated in steps.
	// +optional
	DoneBytes int64 `json:"doneBytes,omitempty"`
	// TotalBytes is how many bytes there are to copy, as far as known. 0 means unknown.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// Convergence is "NotConverging" after the guest wrote memory faster than it was copied, and "Forced" after the
	// hypervisor began to stop the guest for the last part of the copy without regard to the downtime limit. It is
	// empty if neither has happened.
	// +optional
	Convergence MigrationConvergence `json:"convergence,omitempty"`
	// StartTime is when the target was reserved.
	StartTime metav1.Time `json:"startTime"`
	// EndTime is when the migration failed, or when the VM controller observed that the target runs the guest.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
	// Downtime is how long the guest was stopped. If absent, it was not measured.
	// +optional
	Downtime *metav1.Duration `json:"downtime,omitempty"`
}

// MigrationPhase is the progress of a live migration.
//
// +kubebuilder:validation:Enum=Preparing;Copying;Succeeded;Failed
type MigrationPhase string

const (
	// MigrationPreparing means that the target is being created.
	MigrationPreparing MigrationPhase = "Preparing"
	// MigrationCopying means that memory and disk are being copied.
	MigrationCopying MigrationPhase = "Copying"
	// MigrationSucceeded means that the target is authoritative.
	MigrationSucceeded MigrationPhase = "Succeeded"
	// MigrationFailed means that the VM stayed with its source. The target is removed.
	MigrationFailed MigrationPhase = "Failed"
)

// MigrationConvergence reports whether a copy catches up with what the guest writes.
//
// +kubebuilder:validation:Enum=NotConverging;Forced
type MigrationConvergence string

const (
	// MigrationNotConverging means that the guest writes memory faster than it is copied.
	MigrationNotConverging MigrationConvergence = "NotConverging"
	// MigrationForced means that the guest is stopped for the last part of the copy as soon as possible, without
	// regard to the downtime limit.
	MigrationForced MigrationConvergence = "Forced"
)

// VirtualMachinePhase summarizes a VM's state.
//
// +kubebuilder:validation:Enum=Creating;Running;Terminating;Stopped;Lost
type VirtualMachinePhase string

const (
	// PhaseCreating means that the VM has not run yet.
	PhaseCreating VirtualMachinePhase = "Creating"
	// PhaseRunning means that a hypervisor runs the VM, or holds it paused.
	PhaseRunning VirtualMachinePhase = "Running"
	// PhaseTerminating means that the VM is being deleted.
	PhaseTerminating VirtualMachinePhase = "Terminating"
	// PhaseStopped means that no hypervisor runs the VM.
	PhaseStopped VirtualMachinePhase = "Stopped"
	// PhaseLost means that the authoritative hypervisor cannot be reached. The VM may still be running.
	PhaseLost VirtualMachinePhase = "Lost"
)

const (
	// ConditionReady reports whether the VM runs as its spec requests.
	ConditionReady = "Ready"

	// ConditionScheduled reports whether the authoritative Pod has a node. It is False with reason
	// ReasonUnschedulable while no host has enough capacity.
	ConditionScheduled = "Scheduled"

	// ConditionStorageLocking reports whether the lock of LeaseStorageLocking prevents a second guest of the VM
	// from running on any host. It is False with reason ReasonEphemeralDisk, and Unknown if it depends on a
	// volume about which the VM controller does not know enough.
	ConditionStorageLocking = "StorageLocking"

	// ConditionMigrating reports whether a live migration is in progress. Its reason is the phase of
	// status.migration, or why the migration failed. If absent, there was no migration.
	ConditionMigrating = "Migrating"

	// ConditionLiveMigratable reports whether the VM would be migrated live if it had to leave its host now.
	ConditionLiveMigratable = "LiveMigratable"

	// ConditionHypervisorCurrent reports whether the hypervisor has the image that a new hypervisor would have.
	// It is absent while there is no hypervisor.
	ConditionHypervisorCurrent = "HypervisorCurrent"

	// ConditionRestartNeeded reports that the guest lacks something of the spec: CPUs, memory, data disks, or
	// the size of a disk. The guest gets it when the VM's next hypervisor starts, unless the message reports an
	// error. If absent, the guest lacks nothing, or there is no hypervisor.
	ConditionRestartNeeded = "RestartNeeded"

	// ConditionFenced reports whether the VM was taken from a host because of AnnotationFence, or why the last
	// such annotation had no effect. If absent, there was no annotation.
	ConditionFenced = "Fenced"

	// ConditionDisksServed reports whether the hypervisor can attach the disks at their server. If absent, the
	// VM has no disk server.
	ConditionDisksServed = "DisksServed"
	// ConditionGuestsUnreachable reports whether hypervisors of other VMs do not respond, so that the guest cannot reach
	// their guests. It is set only in this case, to True. Its message names the UDP endpoints.
	ConditionGuestsUnreachable = "GuestsUnreachable"
	// ConditionGuestReady reports whether the guest is ready for the connections of Services, according to
	// spec.readinessProbe. If absent, the hypervisor has no ports.
	ConditionGuestReady = "GuestReady"

	// ReasonDiskServerStarting is the reason of ConditionDisksServed while the disk server is starting, and of
	// ConditionReady while a hypervisor waits for it.
	ReasonDiskServerStarting = "DiskServerStarting"

	// ReasonDiskServerUnreachable is the reason of ConditionDisksServed when the VM controller cannot make the
	// disk server serve the disks to the hypervisor.
	ReasonDiskServerUnreachable = "DiskServerUnreachable"

	// ReasonStorageNotRevoked is the reason of ConditionDisksServed and ConditionReady while the disk server
	// has not confirmed that earlier hypervisors can no longer change the disks. Until then, no other
	// hypervisor gets the VM.
	ReasonStorageNotRevoked = "StorageNotRevoked"

	// ReasonHostUnreachable is the reason of ConditionReady when the VM's host does not respond, so that the
	// guest may still be running. See AnnotationFence.
	ReasonHostUnreachable = "HostUnreachable"

	// ReasonEphemeralDisk is the reason of ConditionStorageLocking when each hypervisor has a disk of its own,
	// so that a lock does not exclude another hypervisor.
	ReasonEphemeralDisk = "EphemeralDisk"

	// ReasonUnschedulable is the reason of ConditionScheduled when no host has enough capacity for the VM. The
	// message is the scheduler's.
	ReasonUnschedulable = "Unschedulable"

	// ReasonImagePullFailed is the reason of ConditionReady while the host cannot pull the image of the
	// hypervisor.
	ReasonImagePullFailed = "ImagePullFailed"

	// ReasonNoSpace is the reason of ConditionReady when the storage of the disk is full. If the VM was
	// running, its guest is paused until space becomes available.
	ReasonNoSpace = "NoSpace"

	// ReasonStorageFailed is the reason of ConditionReady when the guest is paused because its disk cannot be
	// read or written. It continues when the disk works again.
	ReasonStorageFailed = "StorageFailed"

	// ReasonSuspended is the reason of ConditionReady when the guest has suspended itself.
	ReasonSuspended = "Suspended"

	// ReasonDiskLocked is the reason of ConditionReady when another process holds the lock of the
	// disk.
	ReasonDiskLocked = "DiskLocked"

	// ReasonDiskLost is the reason of ConditionReady when the VM's volume no longer holds its disk. See
	// AnnotationReplaceDisk.
	ReasonDiskLost = "DiskLost"

	// ReasonLeaseExpiring is the reason of ConditionReady while a new hypervisor waits for the last one's lease
	// to expire, since the last one may still run the guest.
	ReasonLeaseExpiring = "LeaseExpiring"

	// ReasonAwaitingRestore is the reason of ConditionReady while a VM that was restored from a backup waits for the
	// claims of its disks. See AnnotationUID.
	ReasonAwaitingRestore = "AwaitingRestore"

	// ReasonAddressPoolExhausted is the reason of ConditionReady while a VM is not started because an IP address pool of
	// spec.addressesFromPools has no free address.
	ReasonAddressPoolExhausted = "AddressPoolExhausted"

	// ReasonLeaseCapacity is the reason of ConditionReady while a VM with LeaseFullLeases is not started because the
	// leases of all VMs together would need more renewals than the VM controller has capacity for.
	ReasonLeaseCapacity = "LeaseCapacityExceeded"

	// ReasonHalted is the reason of ConditionReady when spec.runStrategy is RunHalted and the guest has ended.
	ReasonHalted = "Halted"

	// ReasonCompleted is the reason of ConditionReady when the guest has ended and spec.runStrategy does not start it
	// again. See AnnotationRestart.
	ReasonCompleted = "Completed"

	// ReasonVolumeLost is the reason of ConditionReady when the claim of the disk is gone or is being deleted.
	// See AnnotationReplaceDisk.
	ReasonVolumeLost = "VolumeLost"
)
