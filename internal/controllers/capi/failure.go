package capi

import (
	"fmt"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// failureReason returns the reason of Ready after a creation has failed.
func failureReason(failed *instance.Failure) string {
	switch {
	case failed.Method == instance.MethodPrepare:
		return infrav1.ReasonWaitingForBootstrapData
	case failed.Code == codes.ResourceExhausted:
		return infrav1.ReasonInsufficientCapacity
	case refusesSpec(failed):
		return infrav1.ReasonInvalidSpec
	default:
		return infrav1.ReasonCreationFailed
	}
}

// refusesSpec reports whether the driver refuses the spec of the VM. From GetMachineStatus, OutOfRange has
// another meaning.
func refusesSpec(failed *instance.Failure) bool {
	switch failed.Code {
	case codes.InvalidArgument:
		return failed.Method != instance.MethodPrepare
	case codes.OutOfRange:
		return failed.Method == instance.MethodCreate || failed.Method == instance.MethodInitialize
	}
	return false
}

// terminal reports whether only another spec of this object could help, so that Cluster API gives up the
// Machine. The driver must not have been given a class, a Secret or bootstrap data: it may have refused
// those, and they may be repaired at any time. Nor may the object be made from a template: its replacement
// would fail too, and so on without end.
func terminal(machine *infrav1.MillwrightMachine, failed *instance.Failure) bool {
	return refusesSpec(failed) && failed.Method == instance.MethodStatus && marks.OwnSpecOnly(machine) &&
		machine.Annotations[core.AnnotationClonedFrom] == ""
}

// mayExist reports whether there may be a VM after a failure: unless that came before the creation, or the
// driver refused the spec.
func mayExist(failed *instance.Failure) bool {
	return failed.Method != instance.MethodPrepare && failed.Method != instance.MethodStatus && !refusesSpec(failed)
}

// failureMessage returns the method and the driver's message.
func failureMessage(failed *instance.Failure) string {
	if said, ok := status.FromError(failed.Err); ok {
		return fmt.Sprintf("%s: %s", failed.Method, said.Message())
	}
	if failed.Method == instance.MethodPrepare {
		return failed.Err.Error()
	}
	return fmt.Sprintf("%s: %v", failed.Method, failed.Err)
}
