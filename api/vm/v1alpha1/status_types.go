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
	// ImagePrepared reports whether the initial image is completely on the disk. It is
	// set before the first start; from then on no hypervisor writes the image.
	// +optional
	ImagePrepared bool `json:"imagePrepared,omitempty"`
	// NodeName is the node on which the authoritative Pod is.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// Addresses of the guest, without prefix length. Empty: unknown.
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// Conditions of the VM, by type.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the spec to which the status belongs.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
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

// VirtualMachinePhase summarises a VM's state.
//
// +kubebuilder:validation:Enum=Creating;Running;Terminating;Stopped;Lost
type VirtualMachinePhase string

const (
	// PhaseCreating: the VM has not run yet.
	PhaseCreating VirtualMachinePhase = "Creating"
	// PhaseRunning: a hypervisor runs the VM, or holds it paused.
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

	// ReasonUnschedulable is the reason of ConditionScheduled when no host has room for
	// the VM. The message is the scheduler's.
	ReasonUnschedulable = "Unschedulable"
)
