package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineStatus is what the VM controller found and decided.
type VirtualMachineStatus struct {
	// VirtualMachineAuthority is changed as a whole, or not at all.
	VirtualMachineAuthority `json:",inline"`
	// Phase sums up the VM's state for people. Programs read conditions.
	// +optional
	Phase VirtualMachinePhase `json:"phase,omitempty"`
	// ImagePrepared says that the initial image is on the disk completely. It is set
	// before the first start, and from then on no hypervisor writes the image again.
	// +optional
	ImagePrepared bool `json:"imagePrepared,omitempty"`
	// NodeName is the node on which the authoritative Pod is.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// Addresses of the guest, as far as they are known, without prefix length.
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// Conditions of the VM, by type.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is that of the spec which the rest of the status answers.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// VirtualMachineAuthority names the hypervisor that may run the VM, and the disk that it
// runs on. Its fields are written together, and only under the resource version at
// which they were read: the write is a compare-and-swap. All empty: nobody may.
type VirtualMachineAuthority struct {
	// ActivePodName is the Pod of the authoritative hypervisor.
	// +optional
	ActivePodName string `json:"activePodName,omitempty"`
	// ActivePodUID is the UID of that Pod, as a name can be used again.
	// +optional
	ActivePodUID types.UID `json:"activePodUID,omitempty"`
	// ActiveRunID is the run_id of the authoritative process in the Pod: a number of
	// 64 bits without sign in decimal. It is a string because many readers of JSON
	// cannot tell such numbers apart. Empty: the process did not yet call.
	// +kubebuilder:validation:Pattern=`^[0-9]{1,20}$`
	// +optional
	ActiveRunID string `json:"activeRunID,omitempty"`
	// VolumeClaimName is the claim of the disk. Empty if the disk is ephemeral.
	// +optional
	VolumeClaimName string `json:"volumeClaimName,omitempty"`
}

// VirtualMachinePhase sums up a VM's state.
//
// +kubebuilder:validation:Enum=Creating;Running;Terminating;Stopped;Lost
type VirtualMachinePhase string

const (
	// PhaseCreating: the VM has not run yet.
	PhaseCreating VirtualMachinePhase = "Creating"
	// PhaseRunning: a hypervisor has the VM, which runs or is paused.
	PhaseRunning VirtualMachinePhase = "Running"
	// PhaseTerminating: the VM is being deleted.
	PhaseTerminating VirtualMachinePhase = "Terminating"
	// PhaseStopped: no hypervisor has the VM, and it is known that none runs it.
	PhaseStopped VirtualMachinePhase = "Stopped"
	// PhaseLost: the authoritative hypervisor does not answer. Nothing can be said
	// about the VM; it may well be running.
	PhaseLost VirtualMachinePhase = "Lost"
)

// ConditionReady is the type of the condition that reports whether the VM runs as its
// spec wants it.
const ConditionReady = "Ready"
