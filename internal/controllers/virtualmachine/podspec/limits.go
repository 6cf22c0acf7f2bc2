package podspec

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// MigrationDefaults are the defaults of v1alpha1.MigrationSettings.
type MigrationDefaults struct {
	// DowntimeLimit is how long a guest may be stopped for the last part of its memory. If 0, DefaultDowntimeLimit is
	// used.
	DowntimeLimit time.Duration
	// NoAutoConverge leaves the CPUs of a guest alone that writes memory faster than it is copied.
	NoAutoConverge bool
	// CompletionTimeoutPerGiB is how long a copy may take for each GiB. If 0, DefaultCompletionTimeoutPerGiB is used.
	CompletionTimeoutPerGiB time.Duration
	// CompletionTimeoutPolicy is what happens after that. If empty, it is Pause.
	CompletionTimeoutPolicy v1alpha1.CompletionTimeoutPolicy
}

const (
	// DefaultDowntimeLimit is the default of MigrationDefaults.DowntimeLimit. QEMU has the same default.
	DefaultDowntimeLimit = 300 * time.Millisecond
	// MaxDowntimeLimit is the maximum of MigrationSettings.DowntimeLimitMilliseconds: hypervisors stop a guest no longer
	// than about this even if the copy is forced to complete.
	MaxDowntimeLimit = 20 * time.Second
	// DefaultCompletionTimeoutPerGiB is the default of MigrationDefaults.CompletionTimeoutPerGiB. KubeVirt has the same
	// default.
	DefaultCompletionTimeoutPerGiB = 150 * time.Second
	// MaxCompletionTimeoutPerGiB is the maximum of MigrationSettings.CompletionTimeoutSecondsPerGiB.
	MaxCompletionTimeoutPerGiB = time.Hour

	gibi = 1 << 30
)

// MigrationLimits returns the limits of a live migration from a source Pod. report is the source's last report; nil if
// there is none.
func MigrationLimits(vm *v1alpha1.VirtualMachine, source *corev1.Pod, report *vmpb.ReportStateRequest, m Migration) *vmpb.MigrationLimits {
	has, _ := specOf(source) // without a spec, there is no target; see Target
	bytes := has.GetResources().GetMemoryBytes()
	if DiskSharing(source) == Copied && !has.GetDisksServed() {
		for _, disk := range report.GetDisks() {
			bytes += disk.GetBytes()
		}
	}
	set := vm.Spec.Migration
	if set == nil {
		set = &v1alpha1.MigrationSettings{}
	}
	perGiB := cmp.Or(time.Duration(set.CompletionTimeoutSecondsPerGiB)*time.Second, m.CompletionTimeoutPerGiB, DefaultCompletionTimeoutPerGiB)
	limits := &vmpb.MigrationLimits{
		Bandwidth:         m.Bandwidth,
		Downtime:          durationpb.New(cmp.Or(time.Duration(set.DowntimeLimitMilliseconds)*time.Millisecond, m.DowntimeLimit, DefaultDowntimeLimit)),
		NoAutoConverge:    m.NoAutoConverge,
		CompletionTimeout: durationpb.New(perGiB * time.Duration(max(1, (bytes+gibi-1)/gibi))),
	}
	if set.Bandwidth != nil {
		limits.Bandwidth = uint64(max(1, set.Bandwidth.Value()))
		if m.Bandwidth > 0 {
			limits.Bandwidth = min(limits.Bandwidth, m.Bandwidth)
		}
	}
	if set.AllowAutoConverge != nil {
		limits.NoAutoConverge = !*set.AllowAutoConverge
	}
	if cmp.Or(set.CompletionTimeoutPolicy, m.CompletionTimeoutPolicy) == v1alpha1.CompletionTimeoutCancel {
		limits.TimeoutPolicy = vmpb.MigrationLimits_TIMEOUT_POLICY_CANCEL
	}
	return limits
}
