package authority

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// retryPause is the time between a failed migration and the next one from the same source. It is multiplied by
	// the number of failures, up to maxRetryPause.
	retryPause    = 2 * time.Second
	maxRetryPause = 30 * time.Second
	// noCapacityFor is how long a VM that must leave its host is not migrated again after no host had capacity, or
	// after its target was refused.
	noCapacityFor = time.Minute
	// slotPause is how long a source waits before it requests a migration slot again.
	slotPause = time.Second
)

// Target is the response to a source that must leave its host.
type Target struct {
	// Pod is the name of the target Pod, which may not exist yet; empty if there is no target.
	Pod string
	// Pause is how long to wait until there may be another target, or until this one is refused because it was not ready in
	// time. It is 0 if the response stays the same until the VM changes.
	Pause time.Duration
	// Refusal is the reason why there will be no target; empty if there is one, or may be one later.
	Refusal string
	// Limits are the limits of the migration; nil if there is no target.
	Limits *vmpb.MigrationLimits
	// Grace is how long after SIGTERM the host of the source may kill it, if the host stops it without a deletion of its
	// Pod; 0 if the grace period of the Pod applies.
	Grace time.Duration
}

// Source describes a hypervisor that must leave its host.
type Source struct {
	// Us is the hypervisor.
	Us *vmpb.HypervisorID
	// Report is its last report; nil if there is none.
	Report *vmpb.ReportStateRequest
	// Awaited is the target that the hypervisor is already waiting for, or "".
	Awaited string
	// Stopping is how long ago the hypervisor was asked to terminate; 0 if it was not.
	Stopping time.Duration
}

// EnsureTarget returns the target of the migration from a source, and reserves one if there is none. It returns
// ErrNotAuthoritative or ErrPodEnded if the source must not migrate.
func (r *Registry) EnsureTarget(ctx context.Context, from Source) (Target, error) {
	us := from.Us
	var target Target
	err := r.evaluate(ctx, us, true, func(vm *v1alpha1.VirtualMachine, _ bool) (bool, error) {
		if vm == nil || !Holds(vm, us) {
			return true, ErrNotAuthoritative
		}
		if !vm.DeletionTimestamp.IsZero() {
			target = Target{Refusal: "the virtual machine is being deleted"}
			return true, nil
		}
		if podspec.ShutsDown(vm) {
			target = Target{Refusal: "the virtual machine is to be shut down, because of spec.runStrategy or the annotation " + v1alpha1.AnnotationRestart}
			return true, nil
		}
		source, err := r.pod(ctx, vm, us.GetPodName())
		if err != nil {
			return true, err
		}
		if target = r.existingTarget(vm, source, from); target != (Target{}) {
			return true, nil
		}
		name := vm.Name + "-" + utilrand.String(8)
		if reserved, err := r.reserveSlot(ctx, us, source.Spec.NodeName, name); !reserved {
			target = Target{Pause: slotPause}
			return true, err
		}
		err = r.Update(ctx, vm, func(status *v1alpha1.VirtualMachineStatus) {
			token := nextToken(status, r.Clock.Now())
			migration.Reserve(status, name, source, migration.OrderOf(vm), r.Clock.Now())
			if podspec.Served(vm) {
				status.Migration.TargetVolumeClaimName, status.Migration.TargetFencingToken = "", token
			}
		})
		if err != nil {
			r.slots.release(KeyOf(us))
		}
		return false, err
	})
	return target, err
}

// existingTarget returns the current target, or why there is none. The zero value means that a target must be
// reserved.
func (r *Registry) existingTarget(vm *v1alpha1.VirtualMachine, source *corev1.Pod, from Source) Target {
	deleted, grace := !source.DeletionTimestamp.IsZero(), r.hostGrace(source, from)
	if why := refusal(vm, source, from, grace); why != "" {
		return Target{Refusal: why}
	}
	var refused time.Duration // time until refusal refuses the target; 0 if it never does
	if grace > 0 {
		refused = searchTime(source, grace) - from.Stopping + 1
	}
	record := vm.Status.Migration
	switch {
	case migration.UnderWay(&vm.Status):
		return Target{Pod: record.TargetPodName, Pause: refused, Limits: podspec.MigrationLimits(vm, source, from.Report, r.Migration), Grace: grace}
	case record == nil || record.SourcePodName != vm.Status.ActivePodName || record.Phase != v1alpha1.MigrationFailed || record.EndTime == nil:
		return Target{}
	}
	target := r.afterFailure(record, deleted || grace > 0, from.Awaited)
	if grace > 0 {
		target.Pause = min(target.Pause, refused)
	}
	return target
}

// hostGrace returns how long after SIGTERM the host of a source kills it. It returns 0 if the source was not asked to
// terminate, if its Pod is being deleted, or if the time is not known.
func (r *Registry) hostGrace(source *corev1.Pod, from Source) time.Duration {
	if from.Stopping == 0 || !source.DeletionTimestamp.IsZero() {
		return 0
	}
	return r.Migration.HostShutdown
}

// refusal returns why a VM is not migrated; empty if it is. grace is the result of hostGrace.
func refusal(vm *v1alpha1.VirtualMachine, source *corev1.Pod, from Source, grace time.Duration) string {
	order, deleted := migration.OrderOf(vm), !source.DeletionTimestamp.IsZero()
	reason, message := migration.Obstacle(vm, source, from.Report)
	switch {
	case reason != migration.NoObstacle:
		return message
	case !order.Given && !deleted && grace == 0:
		return notLeaving(from)
	case grace > 0 && from.Stopping > searchTime(source, grace):
		return fmt.Sprintf("too little time remains for a migration: the host is stopping the hypervisor, and gives it %s", grace)
	case order.Node != "" && order.Node == source.Spec.NodeName:
		return fmt.Sprintf("the virtual machine is already on node %s", order.Node)
	}
	return ""
}

// notLeaving explains why a VM need not leave its host.
func notLeaving(from Source) string {
	if from.Stopping == 0 {
		return "the virtual machine's pod is not being deleted, and no migration was requested"
	}
	return "the hypervisor was asked to terminate although its pod is not being deleted, as when its host shuts down or evicts it; " +
		"to migrate in this case, set --vm-host-shutdown-grace-period"
}

// searchTime returns how long after SIGTERM a source that is killed after a grace period may still get a target: half of
// the time that remains without a shutdown. The other half is for the copy.
func searchTime(source *corev1.Pod, grace time.Duration) time.Duration {
	return (grace - podspec.GracePeriodOf(source)) / 2
}

// afterFailure returns how long to wait after a failed migration, or why the migration is not retried. It returns the
// zero value if the migration is retried now.
func (r *Registry) afterFailure(record *v1alpha1.VirtualMachineMigration, leaving bool, awaited string) Target {
	since := r.Clock.Now().Sub(record.EndTime.Time)
	if since < 0 {
		return Target{} // the clock was set back
	}
	final := record.Reason == migration.ReasonUnschedulable || record.Reason == migration.ReasonRefused
	if final && (record.TargetPodName == awaited || leaving && since < noCapacityFor) {
		return Target{Refusal: record.Message}
	}
	return Target{Pause: max(0, min(retryPause*time.Duration(record.Failures+1), maxRetryPause)-since)}
}

// ConfirmTarget returns nil if a process is in the target Pod of a running migration, and ErrNotAuthoritative if it
// is not.
func (r *Registry) ConfirmTarget(ctx context.Context, us *vmpb.HypervisorID) error {
	return r.evaluate(ctx, us, false, func(vm *v1alpha1.VirtualMachine, live bool) (bool, error) {
		switch found := authorize(vm, us); {
		case found == awaited:
			return true, nil
		case live:
			return true, ErrNotAuthoritative
		}
		return false, nil
	})
}
