// Package failure says what the failure of a driver's call means for a MillwrightMachine.
package failure

import (
	"fmt"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// Reason says in one word why a VM could not be made.
func Reason(failure *instance.Failure) string {
	switch {
	case failure.Method == instance.MethodPrepare:
		return infrav1.ReasonWaitingForBootstrapData
	case failure.Code == codes.ResourceExhausted:
		return infrav1.ReasonInsufficientCapacity
	case RefusesSpec(failure):
		return infrav1.ReasonInvalidSpec
	default:
		return infrav1.ReasonCreationFailed
	}
}

// RefusesSpec reports whether the driver refuses what it is to make. For GetMachineStatus,
// OutOfRange means something else.
func RefusesSpec(failure *instance.Failure) bool {
	switch failure.Code {
	case codes.InvalidArgument:
		return failure.Method != instance.MethodPrepare
	case codes.OutOfRange:
		return failure.Method == instance.MethodCreate || failure.Method == instance.MethodInitialize
	}
	return false
}

// Hopeless reports whether nothing but another specification of this very object could help:
// Cluster API then gives up the Machine. A class or a Secret may be repaired at any time, and
// a driver that has been given one may mean that; a creation was given the bootstrap data. Nor
// is it the end of what was made from a template: the next one would be the same, and there
// would be one after the other without end.
func Hopeless(machine *infrav1.MillwrightMachine, failure *instance.Failure) bool {
	return RefusesSpec(failure) && failure.Method == instance.MethodStatus && marks.OwnSpecOnly(machine) &&
		machine.Annotations[core.AnnotationClonedFrom] == ""
}

// LeavesOpen reports whether there may be a VM after a failure. There is none after one before
// the creation, or if the creation was refused for what it was asked for.
func LeavesOpen(failure *instance.Failure) bool {
	switch failure.Method {
	case instance.MethodPrepare, instance.MethodStatus:
		return false
	}
	return !RefusesSpec(failure)
}

// Message is what the driver said.
func Message(failure *instance.Failure) string {
	if said, ok := status.FromError(failure.Err); ok {
		return fmt.Sprintf("%s: %s", failure.Method, said.Message())
	}
	if failure.Method == instance.MethodPrepare {
		return failure.Err.Error()
	}
	return fmt.Sprintf("%s: %v", failure.Method, failure.Err)
}
