package autoscaler

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

// requested is the prefix of the ID of an instance whose VM has no provider ID yet. The name of the Machine
// follows. Gardener's autoscaler uses the same prefix.
const requested = "requested://"

// Error classes of the autoscaler.
const (
	outOfResources int32 = 1
	otherError     int32 = 99
)

// Requested returns the name of the Machine whose instance has the given ID, or an empty string for a provider
// ID.
func Requested(id string) string {
	if len(id) > len(requested) && id[:len(requested)] == requested {
		return id[len(requested):]
	}
	return ""
}

// Instance returns a Machine as an instance. The node is nil if the Machine has none. Instance returns nil
// while the node has no provider ID, because the autoscaler could not match it with the instance and would
// assume that the instance never joined. Named reports that the Machine was named for deletion.
func Instance(machine *v1alpha1.Machine, node *corev1.Node, named bool, now time.Time) *autoscalerpb.Instance {
	id := machine.Spec.ProviderID
	switch {
	case node != nil && node.Spec.ProviderID == "":
		return nil
	case node != nil:
		id = node.Spec.ProviderID
	case id == "":
		id = requested + machine.Name
	}
	status := &autoscalerpb.InstanceStatus{InstanceState: stateOf(machine, node != nil, named, now)}
	if status.InstanceState == autoscalerpb.InstanceStatus_INSTANCE_STATE_CREATING {
		status.ErrorInfo = failureOf(machine)
	}
	return &autoscalerpb.Instance{Id: id, Status: status}
}

func stateOf(machine *v1alpha1.Machine, joined, named bool, now time.Time) autoscalerpb.InstanceStatus_InstanceState {
	phase := machine.Status.CurrentStatus.Phase
	switch {
	case named, Leaves(machine, now):
		return autoscalerpb.InstanceStatus_INSTANCE_STATE_DELETING
	case joined, phase == v1alpha1.MachineRunning, phase == v1alpha1.MachineAvailable, phase == v1alpha1.MachineFailed:
		return autoscalerpb.InstanceStatus_INSTANCE_STATE_RUNNING
	}
	return autoscalerpb.InstanceStatus_INSTANCE_STATE_CREATING
}

// Leaves reports whether a Machine is being deleted or will be soon. A set replaces a failed Machine unless it
// is preserved.
func Leaves(machine *v1alpha1.Machine, now time.Time) bool {
	switch machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineTerminating:
		return true
	case v1alpha1.MachineFailed:
		return !preservation.Active(machine, now) || !machine.DeletionTimestamp.IsZero()
	}
	return !machine.DeletionTimestamp.IsZero()
}

// failureOf returns why the VM of a Machine cannot be created. It returns nil if there is no failure, or if the
// failure may resolve itself soon. The autoscaler gives up an instance with a failure, and tries another group
// for a while.
func failureOf(machine *v1alpha1.Machine) *autoscalerpb.InstanceErrorInfo {
	last := machine.Status.LastOperation
	if last.Type != v1alpha1.MachineOperationCreate || last.State != v1alpha1.MachineStateFailed {
		return nil
	}
	info := &autoscalerpb.InstanceErrorInfo{ErrorCode: last.ErrorCode, ErrorMessage: last.Description, InstanceErrorClass: otherError}
	switch codes.StringToCode(last.ErrorCode) {
	case codes.ResourceExhausted:
		info.InstanceErrorClass = outOfResources
	case codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
	default:
		return nil
	}
	return info
}
