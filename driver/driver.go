package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Driver creates, finds and removes the machines of one provider. The package
// comment holds the rules that are common to all methods.
//
// All methods may return Canceled, Unknown, DeadlineExceeded, Internal,
// Unavailable and Unauthenticated besides the codes named at each of them.
type Driver interface {
	// CreateMachine makes the VM of a machine. Every driver MUST implement it.
	//
	//   - It MUST be idempotent by the name of the machine (a SHOULD in the origin,
	//     a must here: answers get lost and controllers die). If a VM of that name
	//     exists and fits the request, it MUST be adopted: answer OK with its data.
	//     Two calls at the same time still make one VM; the later one MAY answer
	//     Aborted.
	//   - A VM of that name that does not fit MUST be answered with AlreadyExists
	//     and left alone.
	//   - It SHOULD return when the provider has accepted the VM, and not wait for
	//     the guest to boot or for the node to join.
	//   - Steps that follow creation and can fail on their own belong into
	//     InitializeMachine, so that they can be repeated.
	//   - A VM that was begun but cannot be completed SHOULD be removed before an
	//     error is returned, and MUST be found by GetMachineStatus, DeleteMachine
	//     and ListMachines as long as it exists.
	//
	// Codes: InvalidArgument (name or provider specification; the message names the
	// field), AlreadyExists, PermissionDenied, ResourceExhausted (quota or capacity),
	// FailedPrecondition, Aborted (an operation on this machine is pending),
	// OutOfRange (a size is out of its valid range), Unimplemented.
	CreateMachine(ctx context.Context, req *CreateMachineRequest) (*CreateMachineResponse, error)

	// DeleteMachine removes the VM of a machine and all that belongs to it alone
	// (disks, network interfaces, addresses). Every driver MUST implement it.
	//
	//   - If there is no such VM, or nothing is left of it, it MUST answer OK.
	//   - It SHOULD be idempotent: it is repeated until the VM is gone.
	//   - It MUST find the VM by the machine's spec.providerID if that is set, and by
	//     the machine's name if it is not: a VM may exist whose ID was never stored,
	//     and for an orphan hardly more than the ID is known. With an ID set, a VM
	//     of the same name with another ID MUST be left alone (here).
	//   - It SHALL remove only VMs of the cluster that the provider specification
	//     names, and here only those that carry the driver's tags: after
	//     AlreadyExists the Machine is deleted, and the foreign VM must survive that.
	//   - It SHOULD return only when the VM is gone. If it returns earlier, nothing
	//     breaks: here the controller asks GetMachineStatus until that answers
	//     NotFound or Unimplemented, and only then removes the Node.
	//
	// Codes: InvalidArgument (the name is empty or malformed), PermissionDenied,
	// FailedPrecondition, Aborted, Unimplemented. NotFound is accepted as OK.
	DeleteMachine(ctx context.Context, req *DeleteMachineRequest) (*DeleteMachineResponse, error)

	// GetMachineStatus finds the VM of a machine. A driver MAY answer Unimplemented;
	// then creation relies on CreateMachine's idempotency alone, and deletion ends
	// with the first OK of DeleteMachine.
	//
	//   - It MUST be idempotent and change nothing.
	//   - It MUST find the VM by spec.providerID if that is set, and by the machine's
	//     name if it is not. With an ID set, a VM of the same name with another ID
	//     does not count: the answer is NotFound (here), since the ID's VM is lost.
	//   - If the VM exists, it MUST answer as CreateMachine would.
	//   - A VM that is still being removed counts as existing (here).
	//   - If the VM exists but its initialisation is outstanding, it MUST answer
	//     Uninitialized together with a complete response.
	//   - It MUST NOT answer NotFound when it merely cannot tell (here): a VM is
	//     created, or given up as lost, on the word of this method. Answer
	//     Unavailable or Unknown instead.
	//
	// Codes: NotFound, Uninitialized, InvalidArgument, PermissionDenied,
	// FailedPrecondition, OutOfRange (several VMs exist for this machine),
	// Unimplemented.
	GetMachineStatus(ctx context.Context, req *GetMachineStatusRequest) (*GetMachineStatusResponse, error)

	// ListMachines returns all VMs that were made from a class. A driver MAY answer
	// Unimplemented; then VMs that nobody owns any more are not found and have to be
	// removed by hand.
	//
	//   - It SHALL return all VMs that are associated with the class, those included
	//     that are still being made or removed, and several of one name if they exist.
	//   - It MUST return only VMs of this cluster (here): what it returns and no
	//     Machine owns is deleted. It SHOULD let the provider do the filtering.
	//   - Other classes of the same cluster may share the tags; then their VMs MAY be
	//     in the list.
	//   - A partial list MUST NOT be returned as OK (here).
	//
	// Codes: InvalidArgument (provider specification), PermissionDenied,
	// Unimplemented.
	ListMachines(ctx context.Context, req *ListMachinesRequest) (*ListMachinesResponse, error)
}

// CreateMachineRequest asks for the VM of a machine.
type CreateMachineRequest struct {
	// Machine that the VM shall become. Never nil, its name is never empty.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials and, under "userData", what the VM gets
	// as user data. Never nil.
	Secret *corev1.Secret
}

// CreateMachineResponse describes the VM that was made or adopted.
type CreateMachineResponse struct {
	// ProviderID identifies the VM at the provider, for example
	// "gce:///project/zone/vm". It is expected to be the spec.providerID of the node
	// as well. Empty is an error.
	ProviderID string
	// NodeName is the name under which the node will join. Empty is an error if
	// there is a target cluster.
	NodeName string
	// LastKnownState is the driver's own note, stored with the Machine and handed
	// back in later requests. Optional.
	LastKnownState string
	// Addresses of the VM as far as they are known. Optional.
	Addresses []corev1.NodeAddress
}

// DeleteMachineRequest asks for the removal of the VM of a machine.
type DeleteMachineRequest struct {
	// Machine whose VM shall go. Never nil. For an orphan it is synthetic.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// DeleteMachineResponse describes what is left after a removal.
type DeleteMachineResponse struct {
	// LastKnownState is the driver's own note, as in CreateMachineResponse. Optional.
	LastKnownState string
}

// GetMachineStatusRequest asks for the VM of a machine.
type GetMachineStatusRequest struct {
	// Machine whose VM is looked for. Never nil.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// GetMachineStatusResponse describes the VM that was found. It also comes with the
// error Uninitialized.
type GetMachineStatusResponse struct {
	// ProviderID as in CreateMachineResponse.
	ProviderID string
	// NodeName as in CreateMachineResponse.
	NodeName string
	// Addresses as in CreateMachineResponse.
	Addresses []corev1.NodeAddress
}

// ListMachinesRequest asks for all VMs of a class.
type ListMachinesRequest struct {
	// MachineClass whose VMs are looked for. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// ListMachinesResponse holds the VMs of a class.
type ListMachinesResponse struct {
	// MachineList maps the ProviderID of each VM to the name of the Machine that it
	// was made for. Nil and empty mean the same: there are none.
	MachineList map[string]string
}
