package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Driver creates, finds and deletes the machines of one provider. The rules of the package comment apply to all
// methods.
//
// In addition to the codes that are listed for a method, each method may return Canceled, Unknown,
// DeadlineExceeded, Internal, Unavailable and Unauthenticated.
type Driver interface {
	// CreateMachine creates the VM of a machine. Every driver MUST implement it.
	//
	//   - It MUST be idempotent by the name of the machine (a SHOULD of MCM's contract; Millwright relies on it,
	//     since responses can be lost and controllers can be killed). If a VM of that name exists and fits the
	//     request, it returns OK with the data of that VM. Concurrent calls create one VM; the later one MAY return
	//     Aborted.
	//   - If a VM of that name exists and does not fit the request, it MUST return AlreadyExists and leave the VM
	//     unchanged.
	//   - It SHOULD return when the provider has accepted the VM, and not wait for the guest to boot or for the
	//     node to join.
	//   - Steps after the creation that can fail separately belong in InitializeMachine, so that they can be
	//     repeated.
	//   - A VM that cannot be completed SHOULD be deleted before an error is returned. As long as it exists,
	//     GetMachineStatus, DeleteMachine and ListMachines MUST find it.
	//
	// Codes: InvalidArgument (name or provider specification; the message names the field), AlreadyExists,
	// PermissionDenied, ResourceExhausted (quota or capacity), FailedPrecondition, Aborted (an operation on this
	// machine is pending), OutOfRange (a size is outside its valid range), Unimplemented.
	CreateMachine(ctx context.Context, req *CreateMachineRequest) (*CreateMachineResponse, error)

	// DeleteMachine deletes the VM of a machine and everything that belongs only to this VM (disks, network
	// interfaces, addresses). Every driver MUST implement it.
	//
	//   - If the VM does not exist, or is completely deleted, it MUST return OK.
	//   - It SHOULD be idempotent: controllers repeat it until the VM is gone.
	//   - It MUST find the VM by spec.providerID if that is set, and by the machine's name otherwise. The ID may
	//     not be stored yet, and an orphan's Machine has little more than the ID. If the ID is set, a VM of the
	//     same name with another ID MUST NOT be deleted (Millwright).
	//   - Without an ID, it SHALL delete only VMs of the cluster that the provider specification names, and only
	//     those that have the driver's tags (Millwright): after AlreadyExists the Machine is deleted, and the other
	//     cluster's VM must not be. With an ID, the tags of the class do not matter; the VM only needs to have been
	//     created for this machine, since a class can be edited while its VMs exist (Millwright).
	//   - It SHOULD return only when the VM is gone. It may return earlier: the controller calls GetMachineStatus
	//     until it returns NotFound or Unimplemented, and only then deletes the Node (Millwright).
	//
	// Codes: InvalidArgument (the name is empty or malformed, or the provider specification does not identify the
	// VM), PermissionDenied, FailedPrecondition, Aborted, Unimplemented. NotFound is accepted as OK.
	DeleteMachine(ctx context.Context, req *DeleteMachineRequest) (*DeleteMachineResponse, error)

	// GetMachineStatus finds the VM of a machine. A driver MAY return Unimplemented. Then creation relies only on
	// the idempotency of CreateMachine, and a deletion is complete after the first OK of DeleteMachine.
	//
	//   - It MUST be idempotent and change nothing.
	//   - It MUST find the VM by spec.providerID if that is set, and by the machine's name otherwise. If the ID is
	//     set, it ignores a VM of the same name with another ID and returns NotFound, since the VM is lost
	//     (Millwright).
	//   - If the VM exists, the response MUST be the same as that of CreateMachine.
	//   - A VM exists until its deletion is complete (Millwright).
	//   - If the VM exists but is not initialized, it MUST return Uninitialized with a complete response.
	//   - It MUST NOT return NotFound if it cannot determine whether the VM exists (Millwright): after NotFound, a
	//     controller creates a VM or considers the VM lost. Return Unavailable or Unknown instead.
	//
	// Codes: NotFound, Uninitialized, InvalidArgument (as for DeleteMachine), PermissionDenied, FailedPrecondition,
	// OutOfRange (several VMs exist for this machine), Unimplemented.
	GetMachineStatus(ctx context.Context, req *GetMachineStatusRequest) (*GetMachineStatusResponse, error)

	// ListMachines returns all VMs of a class. A driver MAY return Unimplemented. Then orphaned VMs are not found
	// and have to be deleted manually.
	//
	//   - It SHALL return all VMs of the class, including VMs whose creation or deletion is not complete, and
	//     several VMs of one name.
	//   - It MUST return only VMs of this cluster (Millwright): a VM in the list that no Machine owns is deleted.
	//     The provider SHOULD do the filtering.
	//   - If other classes of the same cluster have the same tags, their VMs MAY be in the list.
	//   - A partial list MUST NOT be returned as OK (Millwright).
	//
	// Codes: InvalidArgument (the provider specification does not identify the VMs), PermissionDenied, Unimplemented.
	ListMachines(ctx context.Context, req *ListMachinesRequest) (*ListMachinesResponse, error)
}

// As returns the driver as a T, for example as a [Locator]. It returns the driver itself if that implements T, and
// otherwise the first driver in the chain of wrapped drivers that does.
//
// A driver that wraps another one MUST have a method Unwrap() Driver that returns the wrapped one. It implements
// only the optional interfaces whose behavior it changes; As finds all others in the wrapped driver.
func As[T any](d Driver) (ability T, found bool) {
	for d != nil {
		if ability, found = d.(T); found {
			return ability, true
		}
		decorator, wraps := d.(interface{ Unwrap() Driver })
		if !wraps {
			break
		}
		d = decorator.Unwrap()
	}
	return ability, false
}

// CreateMachineRequest asks for the VM of a machine.
type CreateMachineRequest struct {
	// Machine to create the VM for. Never nil; its name is never empty.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials and, under "userData", the user data of
	// the VM. Never nil.
	Secret *corev1.Secret
}

// CreateMachineResponse describes the VM that was created or found.
type CreateMachineResponse struct {
	// ProviderID identifies the VM at the provider, for example "gce:///project/zone/vm". The node should have the
	// same spec.providerID. An empty ProviderID is an error.
	ProviderID string
	// NodeName is the name under which the node will register. An empty NodeName is an error if there is a target
	// cluster.
	NodeName string
	// LastKnownState is data of the driver: it is stored with the Machine and passed in later requests. Optional. A
	// value that is not UTF-8, or is longer than 64 KiB, is not stored.
	LastKnownState string
	// Addresses of the VM, as far as they are known. Optional.
	Addresses []corev1.NodeAddress
	// FailureDomain in which the provider has placed the VM, as in FailureDomains. If empty, it is unknown, or is
	// the one in the request. It is shown to users of Cluster API.
	FailureDomain string
}

// DeleteMachineRequest asks for the deletion of the VM of a machine.
type DeleteMachineRequest struct {
	// Machine whose VM to delete. Never nil. For an orphan it is incomplete.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// DeleteMachineResponse is the response to a deletion.
type DeleteMachineResponse struct {
	// LastKnownState as in CreateMachineResponse. Optional.
	LastKnownState string
}

// GetMachineStatusRequest asks for the VM of a machine.
type GetMachineStatusRequest struct {
	// Machine whose VM to find. Never nil.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// GetMachineStatusResponse describes the VM that was found. The error Uninitialized also comes with this response.
type GetMachineStatusResponse struct {
	// ProviderID as in CreateMachineResponse.
	ProviderID string
	// NodeName as in CreateMachineResponse.
	NodeName string
	// Addresses as in CreateMachineResponse.
	Addresses []corev1.NodeAddress
	// FailureDomain as in CreateMachineResponse.
	FailureDomain string
}

// ListMachinesRequest asks for all VMs of a class.
type ListMachinesRequest struct {
	// MachineClass whose VMs to list. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// ListMachinesResponse lists the VMs of a class.
type ListMachinesResponse struct {
	// MachineList maps the ProviderID of each VM to the name of its Machine. Nil and empty both mean that the class
	// has no VMs.
	MachineList map[string]string
}
