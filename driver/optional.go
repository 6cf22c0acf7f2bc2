package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// The interfaces below are optional; controllers find them with [As]. A method that returns Unimplemented has the
// same effect as an interface that is not implemented.

// Initializer is implemented by drivers whose VMs need steps after their creation, for example to set a property
// that the provider cannot set at creation. VMs of other drivers count as initialized.
type Initializer interface {
	// InitializeMachine performs the remaining steps.
	//
	//   - It is called after a successful CreateMachine, and whenever GetMachineStatus returns Uninitialized.
	//   - It MUST be idempotent (Millwright): for an initialized VM it returns OK.
	//   - Until it has succeeded, GetMachineStatus MUST return Uninitialized (Millwright). Otherwise a restarted
	//     controller would consider the VM initialized.
	//
	// Codes: NotFound (the VM does not exist), Uninitialized (steps remain), ResourceExhausted, Unimplemented (no
	// VM needs initialization), and those of CreateMachine. After any code except Unimplemented, it is called
	// again.
	InitializeMachine(ctx context.Context, req *InitializeMachineRequest) (*InitializeMachineResponse, error)
}

// InitializeMachineRequest asks for the steps that follow the creation of a VM.
type InitializeMachineRequest struct {
	// Machine whose VM to initialize. Never nil. Its spec.providerID may still be
	// empty.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret as in CreateMachineRequest.
	Secret *corev1.Secret
}

// InitializeMachineResponse describes the VM after its initialization.
type InitializeMachineResponse struct {
	// ProviderID as in CreateMachineResponse.
	ProviderID string
	// NodeName as in CreateMachineResponse.
	NodeName string
	// Addresses as in CreateMachineResponse; initialization may add some.
	Addresses []corev1.NodeAddress
}

// VolumeIdentifier is implemented by drivers that know the provider's IDs of persistent volumes. With it, a drain
// evicts pods with volumes one after another and waits until each volume is detached; without it, they are evicted
// like other pods.
type VolumeIdentifier interface {
	// GetVolumeIDs returns the IDs of volumes.
	//
	//   - It MUST be idempotent.
	//   - Volumes without a known ID, such as those of other storage systems, MAY be left out; that is not an
	//     error.
	//
	// Codes: InvalidArgument (the list is malformed; the message describes how), Unimplemented.
	GetVolumeIDs(ctx context.Context, req *GetVolumeIDsRequest) (*GetVolumeIDsResponse, error)
}

// GetVolumeIDsRequest asks for the IDs of volumes.
type GetVolumeIDsRequest struct {
	// PVSpecs are the specifications of the persistent volumes. No entry is nil.
	PVSpecs []*corev1.PersistentVolumeSpec
}

// GetVolumeIDsResponse lists the IDs of volumes.
type GetVolumeIDsResponse struct {
	// VolumeIDs are the provider's IDs of the volumes. Their order and number may differ from the request.
	VolumeIDs []string
}

// ClassMigrator is implemented by drivers that had their own kind of machine class before MachineClass existed. It
// is called for objects of these kinds that Machines, MachineSets and MachineDeployments refer to; see
// docs/get-started/legacy-classes.md. In today's MCM, no controller calls it.
type ClassMigrator interface {
	// GenerateMachineClassForMigration fills a MachineClass from an object of an older
	// kind.
	//
	//   - It MUST be idempotent.
	//   - It only fills req.MachineClass. The caller writes that object, marks the old
	//     one as migrated and changes references.
	//
	// Codes: Unimplemented (also for an unknown kind), Internal. After OK the machine is
	// reconciled again immediately.
	GenerateMachineClassForMigration(ctx context.Context, req *GenerateMachineClassForMigrationRequest) (*GenerateMachineClassForMigrationResponse, error)
}

// GenerateMachineClassForMigrationRequest asks for the conversion of a class.
type GenerateMachineClassForMigrationRequest struct {
	// ProviderSpecificMachineClass is the object to convert, for example a pointer to an AWSMachineClass.
	ProviderSpecificMachineClass any
	// MachineClass to fill; its name and namespace are set. This is the only field in any request that a driver
	// writes.
	MachineClass *v1alpha1.MachineClass
	// ClassSpec names the kind of ProviderSpecificMachineClass.
	ClassSpec *v1alpha1.ClassSpec
}

// GenerateMachineClassForMigrationResponse is empty: the result is in the request.
type GenerateMachineClassForMigrationResponse struct{}

// KindMigrator is implemented by a ClassMigrator that lists the older kinds that it migrates. If a manager has
// several drivers, or accepts registrations of drivers, an object is migrated by the only driver that lists its
// kind. A driver that lists no kinds migrates objects only while it is the only driver, or if they name it.
type KindMigrator interface {
	// MigratedKinds returns the kinds, for example "AWSMachineClass".
	MigratedKinds() []string
}

// MigratedKinds returns the older kinds that a driver lists, or nil if it lists none.
func MigratedKinds(d Driver) []string {
	migrator, ok := As[KindMigrator](d)
	if !ok {
		return nil
	}
	return migrator.MigratedKinds()
}

// AnnotationAPIGroup is an annotation of the Machine and the MachineClass of a request. Its value is the API group
// of the object that the VM is for; the default is machine.sapcloud.io. Objects of two API groups may have the same
// namespace and name, so a driver SHOULD make the group part of the identity of a VM, and list only VMs of the
// class's group; see [APIGroupSeparator]. Otherwise machines of the two API groups must have different tags: if two
// machines have the same name, the later one never gets a VM.
const AnnotationAPIGroup = "driver.millwright.dev/api-group"

// APIGroupClusterAPI is the value of AnnotationAPIGroup for a MillwrightMachine of Cluster API.
const APIGroupClusterAPI = "infrastructure.millwright.dev"

// APIGroup returns the value of AnnotationAPIGroup of a request's Machine or MachineClass. If it is empty, the
// group is machine.sapcloud.io.
func APIGroup(object metav1.Object) string {
	return object.GetAnnotations()[AnnotationAPIGroup]
}

// APIGroupSeparator is implemented by drivers that keep the VMs of API groups apart, see [AnnotationAPIGroup]. With
// other drivers, orphaned VMs are not deleted while the objects of any API group cannot be read.
type APIGroupSeparator interface {
	// SeparatesAPIGroups reports whether the driver keeps the VMs of API groups apart.
	SeparatesAPIGroups() bool
}

// SeparatesAPIGroups reports whether a driver keeps the VMs of API groups apart.
func SeparatesAPIGroups(d Driver) bool {
	separator, ok := As[APIGroupSeparator](d)
	return ok && separator.SeparatesAPIGroups()
}
