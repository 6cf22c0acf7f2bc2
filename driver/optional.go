package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// The interfaces below are optional. A controller finds out by type assertion
// whether a driver has one. A method that answers Unimplemented means the same as
// an interface that is absent.

// Initializer is implemented by drivers whose VMs need steps after their creation,
// for example changing a property that the provider cannot set while creating. A
// driver without it has VMs that need none.
type Initializer interface {
	// InitializeMachine carries out the steps that are outstanding.
	//
	//   - It is called after a successful CreateMachine, and whenever
	//     GetMachineStatus answers Uninitialized.
	//   - It MUST be idempotent (here): a VM that is initialised is answered with OK.
	//   - Until it has succeeded, GetMachineStatus MUST answer Uninitialized (here),
	//     or a restarted controller would take the VM as complete.
	//
	// Codes: NotFound (there is no VM), Uninitialized (steps are still outstanding),
	// ResourceExhausted, Unimplemented (no VM ever needs it), and those of
	// CreateMachine. All but Unimplemented are tried again.
	InitializeMachine(ctx context.Context, req *InitializeMachineRequest) (*InitializeMachineResponse, error)
}

// InitializeMachineRequest asks for the steps that follow the creation of a VM.
type InitializeMachineRequest struct {
	// Machine whose VM is concerned. Never nil. Its spec.providerID may still be
	// empty.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret as in CreateMachineRequest.
	Secret *corev1.Secret
}

// InitializeMachineResponse describes the VM after its initialisation.
type InitializeMachineResponse struct {
	// ProviderID as in CreateMachineResponse.
	ProviderID string
	// NodeName as in CreateMachineResponse.
	NodeName string
	// Addresses as in CreateMachineResponse; initialisation may add some.
	Addresses []corev1.NodeAddress
}

// VolumeIdentifier is implemented by drivers that can tell the provider's ID of a
// persistent volume. With it, a drain evicts pods with volumes one after another
// and waits for each volume to detach; without it, such pods are evicted like all
// others.
type VolumeIdentifier interface {
	// GetVolumeIDs returns the IDs of those volumes that it knows.
	//
	//   - It MUST be idempotent.
	//   - Volumes that it cannot identify, of other storage systems for example, MAY
	//     be left out; that is no error.
	//
	// Codes: InvalidArgument (the list is malformed; the message says how),
	// Unimplemented.
	GetVolumeIDs(ctx context.Context, req *GetVolumeIDsRequest) (*GetVolumeIDsResponse, error)
}

// GetVolumeIDsRequest asks for the IDs of volumes.
type GetVolumeIDsRequest struct {
	// PVSpecs are the specifications of the persistent volumes. No entry is nil.
	PVSpecs []*corev1.PersistentVolumeSpec
}

// GetVolumeIDsResponse holds the IDs of volumes.
type GetVolumeIDsResponse struct {
	// VolumeIDs are the IDs under which volumes appear at the provider. Order and
	// number need not match the request.
	VolumeIDs []string
}

// ClassMigrator is implemented by drivers that had a machine class kind of their
// own before MachineClass existed. Without it, such classes are left untouched, and
// the user is told so once.
type ClassMigrator interface {
	// GenerateMachineClassForMigration fills a MachineClass from an object of an older
	// kind.
	//
	//   - It MUST be idempotent.
	//   - It only fills req.MachineClass. Writing that object, marking the old one as
	//     migrated and moving references is the caller's work.
	//
	// Codes: Unimplemented (also for a kind that it does not know), Internal. After OK
	// the machine is reconciled again at once.
	GenerateMachineClassForMigration(ctx context.Context, req *GenerateMachineClassForMigrationRequest) (*GenerateMachineClassForMigrationResponse, error)
}

// GenerateMachineClassForMigrationRequest asks for the conversion of a class.
type GenerateMachineClassForMigrationRequest struct {
	// ProviderSpecificMachineClass is the object to convert, for example a pointer
	// to an AWSMachineClass.
	ProviderSpecificMachineClass any
	// MachineClass is to be filled; its name and namespace are already set. This is
	// the only field of any request that a driver writes.
	MachineClass *v1alpha1.MachineClass
	// ClassSpec tells the kind of ProviderSpecificMachineClass.
	ClassSpec *v1alpha1.ClassSpec
}

// GenerateMachineClassForMigrationResponse is empty: the result is in the request.
type GenerateMachineClassForMigrationResponse struct{}
