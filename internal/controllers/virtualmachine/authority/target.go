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
	// Pause is how long to wait until there may be another target; 0 if there is one, or will be none.
	Pause time.Duration
	// Refusal is the reason why there will be no target; empty if there is one, or may be one later.
	Refusal string
	// Limits are the limits of the migration; nil if there is no target.
	Limits *vmpb.MigrationLimits
}

// EnsureTarget returns the target of the migration from us, and reserves one if there is none. report is the last
// report of us, or nil if there is none. awaited is the target that the caller is already waiting for, or "".
// EnsureTarget returns ErrNotAuthoritative or ErrPodEnded if us must not migrate.
func (r *Registry) EnsureTarget(ctx context.Context, us *vmpb.HypervisorID, report *vmpb.ReportStateRequest, awaited string) (Target, error) {
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
		if target = r.existingTarget(vm, source, report, awaited); target != (Target{}) {
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
func (r *Registry) existingTarget(vm *v1alpha1.VirtualMachine, source *corev1.Pod, report *vmpb.ReportStateRequest, awaited string) Target {
	order, leaving := migration.OrderOf(vm), !source.DeletionTimestamp.IsZero()
	reason, message := migration.Obstacle(vm, source, report)
	record := vm.Status.Migration
	switch {
	case reason != migration.NoObstacle:
		return Target{Refusal: message}
	case !order.Given && !leaving:
		return Target{Refusal: "the virtual machine's pod is not being deleted, and no migration was requested"}
	case order.Node != "" && order.Node == source.Spec.NodeName:
		return Target{Refusal: fmt.Sprintf("the virtual machine is already on node %s", order.Node)}
	case migration.UnderWay(&vm.Status):
		return Target{Pod: record.TargetPodName, Limits: podspec.MigrationLimits(vm, source, report, r.Migration)}
	case record == nil || record.SourcePodName != vm.Status.ActivePodName || record.Phase != v1alpha1.MigrationFailed || record.EndTime == nil:
		return Target{}
	}
	return r.afterFailure(record, leaving, awaited)
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
