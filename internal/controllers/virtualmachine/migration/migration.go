// Package migration decides what becomes of a live migration.
//
// It is pure: a VM's status goes in, with what is known of the Pods and from hypervisors, and a
// changed status or a decision comes out. Who calls it writes the status under the resource version
// at which it was read, so every rule here holds for one migration at a time.
//
// What the rules guarantee, whoever dies when: a disk goes only when another is authoritative, a VM
// starts only from the authoritative disk, and that is the target's only after the switchover, by
// which the copy is complete.
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

// Reasons of a migration that failed.
const (
	// ReasonUnschedulable means that no host had room for the target.
	ReasonUnschedulable = v1alpha1.ReasonUnschedulable
	// ReasonTargetEnded means that the target ended, or is being deleted.
	ReasonTargetEnded = "TargetEnded"
	// ReasonTargetNotReady means that the target did not report in time.
	ReasonTargetNotReady = "TargetNotReady"
	// ReasonSourceEnded means that the source ended before the switchover.
	ReasonSourceEnded = "SourceEnded"
	// ReasonCopyFailed means that the source gave up.
	ReasonCopyFailed = "CopyFailed"
	// ReasonCancelled means that the user did not want the migration any more.
	ReasonCancelled = "Cancelled"
)

// Obstacles are reasons of the condition LiveMigratable.
const (
	// ObstacleCold means that the user wants no live migration.
	ObstacleCold = "Cold"
	// ObstacleHypervisor means that the hypervisor cannot migrate.
	ObstacleHypervisor = "HypervisorCannotMigrate"
	// ObstacleNotRunning means that the guest has not started.
	ObstacleNotRunning = "NotRunning"
	// ObstacleMixed means that a part of the disks is on volumes that several hosts may have at once: those would not be
	// copied, and the others would.
	ObstacleMixed = "MixedVolumes"
	// ObstacleUnlocked means that all are, and nothing is known to keep two hypervisors apart.
	ObstacleUnlocked = "VolumesNotLocked"
	// ObstacleSameNode means that the VM is ordered to where it is.
	ObstacleSameNode = "SameNode"
	// NoObstacle is the reason for True.
	NoObstacle = "Migratable"
)

const (
	// unschedulableLimit is how long no host may have room.
	unschedulableLimit = 30 * time.Second
	// readyLimit is how long a target may take to report.
	readyLimit = 5 * time.Minute
	// MaxFailures is how often an ordered migration may fail.
	MaxFailures = 3
)

// UnderWay reports whether a VM has a target that may become authoritative.
func UnderWay(status *v1alpha1.VirtualMachineStatus) bool {
	record := status.Migration
	return record != nil && (record.Phase == v1alpha1.MigrationPreparing || record.Phase == v1alpha1.MigrationCopying) &&
		record.SourcePodName == status.ActivePodName
}

// IsTarget reports whether a Pod is the target of a migration under way.
func IsTarget(status *v1alpha1.VirtualMachineStatus, pod string) bool {
	return UnderWay(status) && status.Migration.TargetPodName == pod
}

// Uses reports whether a VM leaves or enters a node.
func Uses(vm *v1alpha1.VirtualMachine, node string) bool {
	record := vm.Status.Migration
	return vm.DeletionTimestamp.IsZero() && UnderWay(&vm.Status) && (record.SourceNodeName == node || record.TargetNodeName == node)
}

// Same reports whether two statuses have the same target, in the same phase.
func Same(a, b *v1alpha1.VirtualMachineStatus) bool {
	return UnderWay(a) == UnderWay(b) && (!UnderWay(a) || a.Migration.TargetPodName == b.Migration.TargetPodName)
}

// Order is what a user wants.
type Order struct {
	// Given reports whether the VM shall be migrated.
	Given bool
	// Node is where to. Empty: any.
	Node string
}

// OrderOf returns the order for a VM. One for another Pod is old.
func OrderOf(vm *v1alpha1.VirtualMachine) Order {
	pod, node, _ := strings.Cut(vm.Annotations[v1alpha1.AnnotationMigrate], "/")
	if pod == "" || pod != vm.Status.ActivePodName || !vm.DeletionTimestamp.IsZero() {
		return Order{}
	}
	return Order{Given: true, Node: node}
}

// Obstacle returns why a VM whose hypervisor, in that Pod, has reported this is not migrated live, as reason and message of
// the condition LiveMigratable; NoObstacle if nothing keeps it from that.
func Obstacle(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, report *vmpb.ReportStateRequest) (reason, message string) {
	state, sharing := report.GetState(), podspec.DiskSharing(pod)
	switch {
	case vm.Spec.MigrateStrategy == v1alpha1.MigrateCold:
		return ObstacleCold, "spec.migrateStrategy is Cold: the guest is shut down, and started on another host."
	case !report.GetCanMigrate():
		return ObstacleHypervisor, "The hypervisor cannot migrate: the guest is shut down, and started on another host."
	case sharing == podspec.Mixed:
		return ObstacleMixed, "Of the disks a part only is on volumes with access mode ReadWriteMany: a migration copies all disks or none. The guest is shut down, and started on another host."
	case sharing == podspec.Unlocked:
		return ObstacleUnlocked, "The volumes have access mode ReadWriteMany, and it is not known whether their locks hold between hosts: with leaseMode FullLeases the virtual machine would migrate. The guest is shut down, and started on another host."
	case state == vmpb.ReportStateRequest_STATE_PREPARING || state == vmpb.ReportStateRequest_STATE_WAITING:
		return ObstacleNotRunning, "The guest has not started yet."
	}
	return NoObstacle, ""
}

// Reserve begins a migration from the authoritative Pod. The Pod of the target gets that name; so does its
// claim, if the disk is on one that is not shared. Those of data disks follow from it.
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

// Mount stores the claims of the data disks that the Pod has to which the authority goes. It belongs to the write of Move.
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

// Fail ends the migration under way. From then on the target is a Pod like any other without authority.
func Fail(status *v1alpha1.VirtualMachineStatus, reason, message string, now time.Time) {
	record := status.Migration
	record.Phase, record.Reason, record.Message = v1alpha1.MigrationFailed, reason, podstate.Truncate(message)
	end := metav1.NewTime(now)
	record.EndTime = &end
	Describe(status, now)
}

// Move gives the VM to another authority, and ends the migration that this decides: the target has
// got the VM, or another process than the source has.
func Move(status *v1alpha1.VirtualMachineStatus, next v1alpha1.VirtualMachineAuthority, now time.Time) {
	underWay := UnderWay(status)
	status.VirtualMachineAuthority = next
	switch {
	case !underWay || next.ActivePodName == status.Migration.SourcePodName:
	case next.ActivePodName == status.Migration.TargetPodName:
		status.Migration.Phase = v1alpha1.MigrationSucceeded
		Describe(status, now)
	default:
		Fail(status, ReasonSourceEnded, "The source ended before the switchover.", now)
	}
}

// Describe sets the condition Migrating as the status has it.
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
		condition.Message = "From pod " + record.SourcePodName + "."
	case v1alpha1.MigrationFailed:
		condition.Reason, condition.Message = record.Reason, record.Message
	default:
		condition.Status, condition.Message = metav1.ConditionTrue, "To pod "+record.TargetPodName+"."
	}
	meta.SetStatusCondition(&status.Conditions, condition)
}

// progressSteps is in how many steps the copied bytes are stored: each is a write.
const progressSteps = 4

// Progress stores what the authoritative hypervisor reported of a migration: the source of one under way, or
// the target of one that succeeded. target is the Pod of the target, nil if it is not known.
func Progress(status *v1alpha1.VirtualMachineStatus, report *vmpb.ReportStateRequest, target *corev1.Pod, now time.Time) {
	record, news := status.Migration, report.GetMigration()
	switch {
	case record == nil || report.GetUs().GetPodName() != status.ActivePodName:
	case UnderWay(status) && news.GetTargetPod() == record.TargetPodName:
		copied(record, news)
	case record.Phase == v1alpha1.MigrationSucceeded && record.TargetPodName == status.ActivePodName:
		if record.EndTime == nil {
			end := metav1.NewTime(now)
			record.EndTime = &end
		}
		if downtime := news.GetDowntime(); downtime != nil && record.Downtime == nil {
			record.Downtime = &metav1.Duration{Duration: downtime.AsDuration()}
		}
	}
	if record != nil && target != nil && record.Phase != v1alpha1.MigrationPreparing && target.Spec.NodeName != "" {
		record.TargetNodeName = target.Spec.NodeName
	}
	Describe(status, now)
}

func copied(record *v1alpha1.VirtualMachineMigration, news *vmpb.ReportStateRequest_Migration) {
	phase := news.GetPhase()
	if phase != vmpb.ReportStateRequest_Migration_PHASE_COPYING && phase != vmpb.ReportStateRequest_Migration_PHASE_STOPPED {
		return
	}
	record.Phase = v1alpha1.MigrationCopying
	done, total := max(0, int64(news.GetDoneBytes())), max(0, int64(news.GetTotalBytes()))
	if total > 0 && (record.TotalBytes == 0 || done-record.DoneBytes >= total/progressSteps) {
		record.DoneBytes, record.TotalBytes = done, total
	}
}

// Facts are what is known of a migration under way.
type Facts struct {
	// Status of the VM.
	Status *v1alpha1.VirtualMachineStatus
	// Source is the authoritative Pod. Nil: it is gone.
	Source *corev1.Pod
	// Target is the Pod of the target. Nil: it is not there.
	Target *corev1.Pod
	// Claims reports whether all claims of the target are there, and can be used, also if it needs none.
	Claims bool
	// Report is the source's. Nil: none.
	Report *vmpb.ReportStateRequest_Migration
	// Incoming reports whether the target has reported.
	Incoming bool
	// Ordered reports whether a user wants the migration.
	Ordered bool
	// Now is the time.
	Now time.Time
	// Known is since when the caller knows of the migration, by a clock that nobody sets. Zero: only by its record, whose clock may
	// have run ahead.
	Known time.Time
}

// Decision is what to do next with a migration under way.
type Decision struct {
	// Failure is the reason to end it. Empty: it goes on.
	Failure string
	// Message is for users.
	Message string
	// CreateClaims, CreatePod and RecordPod are the next step to the target; at most one is set.
	CreateClaims, CreatePod, RecordPod bool
	// After is when time alone changes the decision. 0: never.
	After time.Duration
}

// Next decides what to do with the migration under way.
func Next(f Facts) Decision {
	record := f.Status.Migration
	if failed := failure(f); failed.Failure != "" {
		return failed
	}
	living := podstate.Alive(f.Source)
	switch {
	case f.Target != nil && record.TargetPodUID == "":
		return Decision{RecordPod: true}
	case f.Target != nil || !living: // without a source there will be no guest
	case !f.Claims:
		return Decision{CreateClaims: true, After: f.rest(readyLimit)}
	default:
		return Decision{CreatePod: true}
	}
	if f.Incoming {
		return Decision{}
	}
	if rest := f.rest(unschedulableLimit); rest > 0 {
		return Decision{After: rest}
	}
	return Decision{After: f.rest(readyLimit)}
}

func failure(f Facts) Decision {
	record := f.Status.Migration
	noRoom, unschedulable := unschedulable(f.Target)
	switch {
	case f.Report.GetPhase() == vmpb.ReportStateRequest_Migration_PHASE_FAILED && f.Report.GetTargetPod() == record.TargetPodName:
		return Decision{Failure: gaveUp(f), Message: f.Report.GetMessage()}
	case record.TargetPodUID != "" && (f.Target == nil || f.Target.UID != record.TargetPodUID):
		return Decision{Failure: ReasonTargetEnded, Message: "The target's pod was deleted."}
	case f.Target != nil && podstate.Finished(f.Target):
		return Decision{Failure: ReasonTargetEnded, Message: podstate.EndOf(f.Target).Message}
	case f.Target != nil && !f.Target.DeletionTimestamp.IsZero():
		return Decision{Failure: ReasonTargetEnded, Message: "The target's pod is being deleted."}
	case unschedulable && f.over(unschedulableLimit):
		return Decision{Failure: ReasonUnschedulable, Message: noRoom}
	case record.Phase == v1alpha1.MigrationPreparing && !f.Incoming && f.over(readyLimit):
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

// gaveUp returns why a source gave up: nobody wants it to leave, or it could not.
func gaveUp(f Facts) string {
	if !f.Ordered && f.Source != nil && f.Source.DeletionTimestamp.IsZero() {
		return ReasonCancelled
	}
	return ReasonCopyFailed
}

func (f Facts) over(limit time.Duration) bool {
	return f.rest(limit) == 0
}

// rest returns how long it is until a limit; 0 after it.
func (f Facts) rest(limit time.Duration) time.Duration {
	lasts := f.Now.Sub(f.Status.Migration.StartTime.Time)
	if !f.Known.IsZero() {
		lasts = max(lasts, f.Now.Sub(f.Known))
	}
	return max(0, limit-lasts)
}

// Final reports whether an ordered migration is not tried again after a failure.
func Final(record *v1alpha1.VirtualMachineMigration, reason string) bool {
	return reason == ReasonUnschedulable || record.Failures+1 >= MaxFailures
}

// InUse reports whether a claim is that of a disk of the VM.
func InUse(status *v1alpha1.VirtualMachineStatus, claim string) bool {
	return claim == status.VolumeClaimName ||
		slices.ContainsFunc(status.DataDisks, func(disk v1alpha1.DataDiskStatus) bool { return disk.VolumeClaimName == claim })
}

// UnusedClaim reports whether a claim of the VM can go: it is neither the disk nor that of a target, and no
// Pod that exists mounts it. mounts returns the claims of a Pod. Without authority nothing is unused.
func UnusedClaim(status *v1alpha1.VirtualMachineStatus, claim string, pods []*corev1.Pod, mounts func(*corev1.Pod) []string) bool {
	return status.VolumeClaimName != "" && unused(status, claim, pods, mounts)
}

// UnusedDataClaim is UnusedClaim for one of a data disk. While the status does not have the disk, or its claim is not
// there, any may be the disk's: there reports which claims are.
func UnusedDataClaim(
	status *v1alpha1.VirtualMachineStatus, disk, claim string, there func(claim string) bool, pods []*corev1.Pod, mounts func(*corev1.Pod) []string,
) bool {
	has := slices.ContainsFunc(status.DataDisks, func(known v1alpha1.DataDiskStatus) bool {
		return known.Name == disk && there(known.VolumeClaimName)
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
