package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// AnnotationLocation is an annotation of the object that a VM is for, and of the Machine of a request. Its value,
// returned by [Locator], is the location where the creation of the VM started, or where the VM was found later. An
// operator removes the annotation to state that the VM no longer exists.
const AnnotationLocation = "driver.millwright.dev/location"

// Location returns the value of AnnotationLocation of a request's Machine, or an empty string if it is not set.
func Location(machine metav1.Object) string { return machine.GetAnnotations()[AnnotationLocation] }

// Locator is implemented by drivers that can identify where they look for VMs. The provider specification and the
// Secret of a class can be edited while VMs exist. A driver that is directed to another account, region or cluster
// does not find the VMs there.
//
// The location is stored with the object before CreateMachine is called. While the driver looks elsewhere,
// controllers create nothing and do not conclude from NotFound that the VM does not exist: the object stays, and
// its status reports this. Without this interface, NotFound is accepted wherever the driver looks.
type Locator interface {
	// LocateMachine returns where GetMachineStatus and DeleteMachine look for the VM of a machine.
	//
	//   - Equal locations MUST mean the same set of VMs, even after the machine, the class or the Secret has
	//     changed. Good locations are properties that a provider never changes, such as the ID of an account or the
	//     UID of a cluster. URLs and names are not.
	//   - If the machine has [AnnotationLocation] and the driver can look there with this class and Secret, it MUST
	//     look there and return that location. CreateMachine ignores the annotation.
	//   - Otherwise it returns where CreateMachine would create the VM.
	//   - The location is shown to users and stored in an annotation. It MUST NOT contain secrets, and should have
	//     at most 256 bytes.
	//   - It is called before each GetMachineStatus, so it SHOULD send few requests to the provider.
	//
	// Codes: InvalidArgument, PermissionDenied, FailedPrecondition, Unimplemented.
	LocateMachine(ctx context.Context, req *LocateMachineRequest) (*LocateMachineResponse, error)
}

// LocateMachineRequest asks where the driver looks for the VM of a machine.
type LocateMachineRequest struct {
	// Machine whose VM to locate. Never nil.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// LocateMachineResponse contains the location of the VM of a machine.
type LocateMachineResponse struct {
	// Location where the driver looks. Never empty.
	Location string
}
