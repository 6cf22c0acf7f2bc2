// Package migration decides the next step of a live migration.
//
// The package is pure: its input is the status of a VM, together with facts about Pods and reports from hypervisors,
// and its output is a changed status or a decision. The caller writes the status only if the object still has the
// resource version at which it was read, so each rule here applies to one migration at a time.
//
// The rules provide these guarantees, whichever process crashes at whatever time: a disk is deleted only when another
// disk is authoritative, and a VM starts only from the authoritative disk. The target's disk becomes authoritative
// only with the switchover, when the copy is complete.
package migration

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Reasons of a failed migration.
const (
	// ReasonUnschedulable means that no host had capacity for the target.
	ReasonUnschedulable = v1alpha1.ReasonUnschedulable
	// ReasonTargetEnded means that the target has terminated or is being deleted.
	ReasonTargetEnded = "TargetEnded"
	// ReasonTargetNotReady means that the target did not report in time.
	ReasonTargetNotReady = "TargetNotReady"
	// ReasonSourceEnded means that the source terminated before the switchover.
	ReasonSourceEnded = "SourceEnded"
	// ReasonCopyFailed means that the source gave up the migration.
	ReasonCopyFailed = "CopyFailed"
	// ReasonTimedOut means that the copy did not complete within its timeout.
	ReasonTimedOut = "TimedOut"
	// ReasonRefused means that the VM may not have another Pod with its current spec.
	ReasonRefused = "Refused"
	// ReasonCancelled means that the user withdrew the request for the migration.
	ReasonCancelled = "Cancelled"
)

// Obstacles are reasons of the condition LiveMigratable.
const (
	// ObstacleCold means that the user has disabled live migration.
	ObstacleCold = "Cold"
	// ObstacleHypervisor means that the hypervisor cannot migrate.
	ObstacleHypervisor = "HypervisorCannotMigrate"
	// ObstacleNotRunning means that the guest has not started.
	ObstacleNotRunning = "NotRunning"
	// ObstacleMixed means that only some of the disks are on volumes that several hosts may attach. Those disks would
	// be shared, and the others would be copied.
	ObstacleMixed = "MixedVolumes"
	// ObstacleUnlocked means that all disks are on such volumes, but nothing is known to exclude two hypervisors from
	// each other.
	ObstacleUnlocked = "VolumesNotLocked"
	// ObstacleSameNode means that the requested node is the one on which the VM already runs.
	ObstacleSameNode = "SameNode"
	// NoObstacle is the reason of the condition when it is true.
	NoObstacle = "Migratable"
)

const (
	// unschedulableTimeout is how long a target may be unschedulable before the migration fails.
	unschedulableTimeout = 30 * time.Second
	// readyTimeout is how long a target may take to report.
	readyTimeout = 5 * time.Minute
	// MaxFailures is how often a requested migration may fail.
	MaxFailures = 3
)

// UnderWay reports whether a migration is running: the VM has a target that may become authoritative.
func UnderWay(status *v1alpha1.VirtualMachineStatus) bool {
	record := status.Migration
	return record != nil && (record.Phase == v1alpha1.MigrationPreparing || record.Phase == v1alpha1.MigrationCopying) &&
		record.SourcePodName == status.ActivePodName
}

// IsTarget reports whether a Pod is the target of a running migration.
func IsTarget(status *v1alpha1.VirtualMachineStatus, pod string) bool {
	return UnderWay(status) && status.Migration.TargetPodName == pod
}

// Uses reports whether a running migration moves a VM from or to a node.
func Uses(vm *v1alpha1.VirtualMachine, node string) bool {
	record := vm.Status.Migration
	return vm.DeletionTimestamp.IsZero() && UnderWay(&vm.Status) && (record.SourceNodeName == node || record.TargetNodeName == node)
}

// Same reports whether two statuses have the same running migration, or both have none.
func Same(a, b *v1alpha1.VirtualMachineStatus) bool {
	return UnderWay(a) == UnderWay(b) && (!UnderWay(a) || a.Migration.TargetPodName == b.Migration.TargetPodName)
}

// Order is a user's request for a migration.
type Order struct {
	// Given reports whether a migration is requested.
	Given bool
	// Node is the node to migrate to. If empty, any node may be used.
	Node string
}

// OrderOf returns the request for the migration of a VM. It ignores requests for other Pods, which are outdated.
func OrderOf(vm *v1alpha1.VirtualMachine) Order {
	pod, node, _ := strings.Cut(vm.Annotations[v1alpha1.AnnotationMigrate], "/")
	if pod == "" || pod != vm.Status.ActivePodName || !vm.DeletionTimestamp.IsZero() {
		return Order{}
	}
	return Order{Given: true, Node: node}
}

// Obstacle returns why a VM cannot be migrated live, as the reason and message of the condition LiveMigratable. pod
// is the Pod of its hypervisor, and report the hypervisor's last report. If the VM can be migrated live, the reason
// is NoObstacle.
func Obstacle(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, report *vmpb.ReportStateRequest) (reason, message string) {
	state, sharing := report.GetState(), podspec.DiskSharing(pod)
	switch {
	case vm.Spec.MigrateStrategy == v1alpha1.MigrateCold:
		return ObstacleCold, "spec.migrateStrategy is Cold: the guest is shut down and restarted on another host."
	case !report.GetCanMigrate():
		return ObstacleHypervisor, "The hypervisor does not support live migration: the guest is shut down and restarted on another host."
	case sharing == podspec.Mixed:
		return ObstacleMixed, "Only some of the disks are on volumes with access mode ReadWriteMany, but a live migration must share or copy all disks: the guest is shut down and restarted on another host."
	case sharing == podspec.Unlocked:
		return ObstacleUnlocked, "The volumes have access mode ReadWriteMany, but their locks may not be effective between hosts: the guest is shut down and restarted on another host. Use leaseMode FullLeases to allow live migration."
	case state == vmpb.ReportStateRequest_STATE_PREPARING || state == vmpb.ReportStateRequest_STATE_WAITING:
		return ObstacleNotRunning, "The guest has not started yet."
	}
	return NoObstacle, ""
}

// Reserve begins a migration from the authoritative Pod. target becomes the name of the target Pod and, if the root
// disk is on a claim that is not shared, of the target's claim. The claims of data disks have names that are derived
// from it.
func Reserve(status *v1alpha1.VirtualMachineStatus, target string, source *corev1.Pod, order Order, now time.Time) {
	record := &v1alpha1.VirtualMachineMigration{
		Phase: v1alpha1.MigrationPreparing, StartTime: metav1.NewTime(now),
		SourcePodName: status.ActivePodName, SourceNodeName: source.Spec.NodeName,
		TargetPodName: target, TargetNodeName: order.Node,
	}
	record.TargetVolumeClaimName = podspec.TargetClaimName(status.VolumeClaimName, target, source)
	if last := status.Migration; last != nil && last.SourcePodName == record.SourcePodName {
		record.Failures = last.Failures
		if last.Phase == v1alpha1.MigrationFailed {
			record.Failures++
		}
	}
	status.Migration = record
	Describe(status, now)
}

// Mount stores the claims that the newly authoritative Pod uses for its data disks. Use it in the same write as Move.
func Mount(status *v1alpha1.VirtualMachineStatus, mounted []v1alpha1.DataDiskStatus) {
	for _, disk := range mounted {
		at := slices.IndexFunc(status.DataDisks, func(known v1alpha1.DataDiskStatus) bool { return known.Name == disk.Name })
		if at < 0 {
			status.DataDisks = append(status.DataDisks, disk)
		} else {
			status.DataDisks[at].VolumeClaimName = disk.VolumeClaimName
		}
	}
}

// Fail marks the running migration as failed. Its target is then treated like any other Pod without authority.
func Fail(status *v1alpha1.VirtualMachineStatus, reason, message string, now time.Time) {
	record := status.Migration
	record.Phase, record.Reason, record.Message = v1alpha1.MigrationFailed, reason, podstate.Truncate(message)
	end := metav1.NewTime(now)
	record.EndTime = &end
	Describe(status, now)
}

// Move changes the authority. If that decides the running migration, Move also completes it: as succeeded if the
// target has become authoritative, or as failed if another Pod has.
func Move(status *v1alpha1.VirtualMachineStatus, next v1alpha1.VirtualMachineAuthority, now time.Time) {
	underWay := UnderWay(status)
	status.VirtualMachineAuthority = next
	switch {
	case !underWay || next.ActivePodName == status.Migration.SourcePodName:
	case next.ActivePodName == status.Migration.TargetPodName:
		status.Migration.Phase = v1alpha1.MigrationSucceeded
		Describe(status, now)
	default:
		Fail(status, ReasonSourceEnded, "The source terminated before the switchover.", now)
	}
}

// Describe sets the condition Migrating to match the migration in the status.
func Describe(status *v1alpha1.VirtualMachineStatus, now time.Time) {
	record := status.Migration
	if record == nil {
		return
	}
	condition := metav1.Condition{
		Type: v1alpha1.ConditionMigrating, Status: metav1.ConditionFalse, Reason: string(record.Phase),
		LastTransitionTime: metav1.NewTime(now), ObservedGeneration: status.ObservedGeneration,
	}
	switch record.Phase {
	case v1alpha1.MigrationSucceeded:
		condition.Message = "Migrated from pod " + record.SourcePodName + "."
	case v1alpha1.MigrationFailed:
		condition.Reason, condition.Message = record.Reason, record.Message
	default:
		condition.Status, condition.Message = metav1.ConditionTrue, "Migrating to pod "+record.TargetPodName+convergence(record)+"."
	}
	condition.Message = podstate.Truncate(condition.Message)
	meta.SetStatusCondition(&status.Conditions, condition)
}

// convergence explains in a condition why the copy of a running migration takes long, and what happens next.
func convergence(record *v1alpha1.VirtualMachineMigration) string {
	switch record.Convergence {
	case v1alpha1.MigrationNotConverging:
		return "; the guest writes memory faster than it is copied, and spec.migration.completionTimeoutPolicy applies if this continues"
	case v1alpha1.MigrationForced:
		return "; the guest will be stopped for the last part of the copy, without regard to the downtime limit"
	}
	return ""
}

// progressSteps is the number of steps in which the copied bytes are stored. Each step is one write.
const progressSteps = 4

// Progress stores what the authoritative hypervisor has reported about a migration: the source about a running one,
// or the target about one that has succeeded. target is the target Pod; nil if it is unknown.
func Progress(status *v1alpha1.VirtualMachineStatus, report *vmpb.ReportStateRequest, target *corev1.Pod, now time.Time) {
	record, reported := status.Migration, report.GetMigration()
	switch {
	case record == nil || report.GetUs().GetPodName() != status.ActivePodName:
	case UnderWay(status) && reported.GetTargetPod() == record.TargetPodName:
		recordCopied(record, reported)
	case record.Phase == v1alpha1.MigrationSucceeded && record.TargetPodName == status.ActivePodName:
		if record.EndTime == nil {
			end := metav1.NewTime(now)
			record.EndTime = &end
		}
		if downtime := reported.GetDowntime(); downtime != nil && record.Downtime == nil {
			record.Downtime = &metav1.Duration{Duration: downtime.AsDuration()}
		}
	}
	if record != nil && target != nil && record.Phase != v1alpha1.MigrationPreparing && target.Spec.NodeName != "" {
		record.TargetNodeName = target.Spec.NodeName
	}
	Describe(status, now)
}

func recordCopied(record *v1alpha1.VirtualMachineMigration, reported *vmpb.ReportStateRequest_Migration) {
	phase := reported.GetPhase()
	if phase != vmpb.ReportStateRequest_Migration_PHASE_COPYING && phase != vmpb.ReportStateRequest_Migration_PHASE_STOPPED {
		return
	}
	record.Phase = v1alpha1.MigrationCopying
	switch {
	case reported.GetConvergence() == vmpb.ReportStateRequest_Migration_CONVERGENCE_FORCED:
		record.Convergence = v1alpha1.MigrationForced
	case reported.GetConvergence() == vmpb.ReportStateRequest_Migration_CONVERGENCE_FAILING && record.Convergence == "":
		record.Convergence = v1alpha1.MigrationNotConverging
	}
	done, total := max(0, int64(reported.GetDoneBytes())), max(0, int64(reported.GetTotalBytes()))
	if total > 0 && (record.TotalBytes == 0 || done-record.DoneBytes >= total/progressSteps) {
		record.DoneBytes, record.TotalBytes = done, total
	}
}

// Facts are the facts about a running migration.
type Facts struct {
	// Status is the status of the VM.
	Status *v1alpha1.VirtualMachineStatus
	// Source is the authoritative Pod; nil if it is gone.
	Source *corev1.Pod
	// Target is the target Pod; nil if it does not exist.
	Target *corev1.Pod
	// Claims reports whether all claims of the target exist and can be used. It is true if the target needs no
	// claims.
	Claims bool
	// Report is the source's last report about the migration; nil if there is none.
	Report *vmpb.ReportStateRequest_Migration
	// Incoming reports whether the target has reported.
	Incoming bool
	// Ordered reports whether a user requested the migration.
	Ordered bool
	// Now is the current time.
	Now time.Time
	// Known is when the caller first saw the migration, by a monotonic clock. If zero, only the start time in the
	// record is used, which may come from a clock that was ahead.
	Known time.Time
}

// Decision is the next step of a running migration.
type Decision struct {
	// Failure is the reason to fail the migration; empty if it continues.
	Failure string
	// Message explains the failure to users.
	Message string
	// CreateClaims, CreatePod and RecordPod are the next steps for the target. At most one is set.
	CreateClaims, CreatePod, RecordPod bool
	// After is the time after which the decision may change even if nothing else does; 0 if it never does.
	After time.Duration
}

// Next decides the next step of the running migration.
func Next(f Facts) Decision {
	record := f.Status.Migration
	if failed := failure(f); failed.Failure != "" {
		return failed
	}
	alive := podstate.Alive(f.Source)
	switch {
	case f.Target != nil && record.TargetPodUID == "":
		return Decision{RecordPod: true}
	case f.Target != nil || !alive: // without a source, there is no guest to migrate
	case !f.Claims:
		return Decision{CreateClaims: true, After: f.remaining(readyTimeout)}
	default:
		return Decision{CreatePod: true}
	}
	if f.Incoming {
		return Decision{}
	}
	if remaining := f.remaining(unschedulableTimeout); remaining > 0 {
		return Decision{After: remaining}
	}
	return Decision{After: f.remaining(readyTimeout)}
}

func failure(f Facts) Decision {
	record := f.Status.Migration
	noCapacity, unschedulable := unschedulable(f.Target)
	switch {
	case f.Report.GetPhase() == vmpb.ReportStateRequest_Migration_PHASE_FAILED && f.Report.GetTargetPod() == record.TargetPodName:
		return gaveUp(f)
	case record.TargetPodUID != "" && (f.Target == nil || f.Target.UID != record.TargetPodUID):
		return Decision{Failure: ReasonTargetEnded, Message: "The target's pod was deleted."}
	case f.Target != nil && podstate.Finished(f.Target):
		return Decision{Failure: ReasonTargetEnded, Message: podstate.EndOf(f.Target).Message}
	case f.Target != nil && !f.Target.DeletionTimestamp.IsZero():
		return Decision{Failure: ReasonTargetEnded, Message: "The target's pod is being deleted."}
	case unschedulable && f.expired(unschedulableTimeout):
		return Decision{Failure: ReasonUnschedulable, Message: noCapacity}
	case record.Phase == v1alpha1.MigrationPreparing && !f.Incoming && f.expired(readyTimeout):
		return Decision{Failure: ReasonTargetNotReady, Message: "The target did not report in time."}
	}
	return Decision{}
}

func unschedulable(pod *corev1.Pod) (message string, is bool) {
	if pod == nil {
		return "", false
	}
	return podstate.Unschedulable(pod)
}

// timedOutAdvice follows the message of a source that gave up because of ReasonTimedOut.
const timedOutAdvice = "; raise spec.migration.bandwidth or completionTimeoutSecondsPerGiB, or set completionTimeoutPolicy to Pause if it is Cancel, and retry"

// gaveUp returns why a source gave up: the copy did not complete in time, the VM no longer has to leave its host, or
// the copy failed.
func gaveUp(f Facts) Decision {
	message := f.Report.GetMessage()
	switch {
	case f.Report.GetTimedOut():
		return Decision{Failure: ReasonTimedOut, Message: message + timedOutAdvice}
	case !f.Ordered && f.Source != nil && f.Source.DeletionTimestamp.IsZero():
		return Decision{Failure: ReasonCancelled, Message: message}
	}
	return Decision{Failure: ReasonCopyFailed, Message: message}
}

func (f Facts) expired(limit time.Duration) bool {
	return f.remaining(limit) == 0
}

// remaining returns the time until a limit; 0 if the limit has passed.
func (f Facts) remaining(limit time.Duration) time.Duration {
	elapsed := f.Now.Sub(f.Status.Migration.StartTime.Time)
	if !f.Known.IsZero() {
		elapsed = max(elapsed, f.Now.Sub(f.Known))
	}
	return max(0, limit-elapsed)
}

// Final reports whether a requested migration is not retried after a failure.
func Final(record *v1alpha1.VirtualMachineMigration, reason string) bool {
	return reason == ReasonUnschedulable || reason == ReasonRefused || reason == ReasonTimedOut || record.Failures+1 >= MaxFailures
}

// InUse reports whether a claim belongs to a disk of the VM.
func InUse(status *v1alpha1.VirtualMachineStatus, claim string) bool {
	return claim == status.VolumeClaimName ||
		slices.ContainsFunc(status.DataDisks, func(disk v1alpha1.DataDiskStatus) bool { return disk.VolumeClaimName == claim })
}

// UnusedClaim reports whether a claim of the VM can be deleted. The claim must not belong to the disk or to a target,
// and no existing Pod may mount it. mounts returns the claims that a Pod mounts. Without an authority, no claim is
// unused.
func UnusedClaim(status *v1alpha1.VirtualMachineStatus, claim string, pods []*corev1.Pod, mounts func(*corev1.Pod) []string) bool {
	return status.VolumeClaimName != "" && unused(status, claim, pods, mounts)
}

// UnusedDataClaim is like UnusedClaim, for the claim of a data disk. If the status does not have the disk, or the
// claim in the status does not exist, any claim may belong to the disk, so none is unused. exists reports whether a
// claim exists.
func UnusedDataClaim(
	status *v1alpha1.VirtualMachineStatus, disk, claim string, exists func(claim string) bool, pods []*corev1.Pod, mounts func(*corev1.Pod) []string,
) bool {
	has := slices.ContainsFunc(status.DataDisks, func(known v1alpha1.DataDiskStatus) bool {
		return known.Name == disk && exists(known.VolumeClaimName)
	})
	return has && status.ActivePodName != "" && unused(status, claim, pods, mounts)
}

func unused(status *v1alpha1.VirtualMachineStatus, claim string, pods []*corev1.Pod, mounts func(*corev1.Pod) []string) bool {
	if status.Migration == nil || InUse(status, claim) ||
		UnderWay(status) && (claim == status.Migration.TargetVolumeClaimName || podspec.IsTargetDataClaim(status, claim)) {
		return false
	}
	return !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return slices.Contains(mounts(pod), claim) })
}
