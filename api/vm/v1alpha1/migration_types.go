package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// MigrationSettings are the settings of the live migrations of a VM.
type MigrationSettings struct {
	// Bandwidth limits the copy of the memory, and that of each disk, in bytes per second: 64Ki to 1Ti. The lower
	// one of this limit and the VM controller's applies. It does not apply to the last part of the copy, for which
	// the guest is stopped. Defaults to the VM controller's setting, or else to 128Mi for the memory and no limit
	// for disks.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Ki')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="bandwidth must be 64Ki to 1Ti bytes per second"
	// +optional
	Bandwidth *resource.Quantity `json:"bandwidth,omitempty"`
	// DowntimeLimitMilliseconds is how long the guest may be stopped for the last part of the memory. Defaults to
	// the VM controller's setting, usually 300.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20000
	// +optional
	DowntimeLimitMilliseconds int32 `json:"downtimeLimitMilliseconds,omitempty"`
	// AllowAutoConverge permits the hypervisor to slow down the guest's CPUs while the guest writes memory faster
	// than it is copied. Defaults to the VM controller's setting, usually true.
	// +optional
	AllowAutoConverge *bool `json:"allowAutoConverge,omitempty"`
	// CompletionTimeoutSecondsPerGiB is how long the copy may take for each GiB of memory and of disks that are
	// copied, before completionTimeoutPolicy applies. Defaults to the VM controller's setting, usually 150.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	CompletionTimeoutSecondsPerGiB int32 `json:"completionTimeoutSecondsPerGiB,omitempty"`
	// CompletionTimeoutPolicy determines what happens to a copy that takes longer: "Pause" stops the guest for the
	// last part of the copy as soon as this takes no more than about 20 seconds; "Cancel" gives the migration up, and
	// the guest continues on its host. If the VM must leave its host, the copy is completed as with Pause before the
	// Pod's grace period expires. Defaults to the VM controller's setting, usually Pause.
	// +optional
	CompletionTimeoutPolicy CompletionTimeoutPolicy `json:"completionTimeoutPolicy,omitempty"`
}

// CompletionTimeoutPolicy determines what happens to a live migration that does not complete in time.
//
// +kubebuilder:validation:Enum=Pause;Cancel
type CompletionTimeoutPolicy string

const (
	// CompletionTimeoutPause stops the guest for the last part of the copy as soon as this takes no more than about
	// 20 seconds. If that does not happen within the same time again, the migration fails.
	CompletionTimeoutPause CompletionTimeoutPolicy = "Pause"
	// CompletionTimeoutCancel gives the migration up. The guest continues on its host, unless the VM must leave it.
	CompletionTimeoutCancel CompletionTimeoutPolicy = "Cancel"
)
