package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// AnnotationLocation is an annotation of the object that a VM is for, and of the Machine of a
// request. Its value is where the creation of the VM began, or where the VM was found since, as
// [Locator] returns it. An operator removes it to state that the VM does not exist any more.
const AnnotationLocation = "driver.millwright.dev/location"

// Location returns the value of AnnotationLocation of a request's Machine; empty if it has none.
func Location(machine metav1.Object) string { return machine.GetAnnotations()[AnnotationLocation] }

// Locator is implemented by drivers that know where they look for VMs. The provider specification
// and the Secret of a class can be edited while VMs exist: a driver that is led to another account,
// region or cluster finds none of them there.
//
// The location is stored with the object before CreateMachine is called. While the driver looks
// elsewhere, nothing is created, and NotFound does not mean that there is no VM: the object stays, and
// its status reports this. Without this interface, NotFound counts wherever the driver looks.
type Locator interface {
	// LocateMachine returns where GetMachineStatus and DeleteMachine look for the VM of a
	// machine.
	//
	//   - Equal locations MUST mean the same set of VMs, also after the machine, the class or
	//     the Secret has changed. Properties that a provider keeps for life make a good
	//     location: the ID of an account, the UID of a cluster. URLs and names do not.
	//   - If the machine has [AnnotationLocation] and the driver can look there with this
	//     class and Secret, it MUST look there, and return that location. CreateMachine
	//     ignores the annotation.
	//   - Otherwise it returns where CreateMachine would create the VM.
	//   - The location is shown to users and stored in an annotation. It MUST NOT contain
	//     secrets, and should have at most 256 bytes.
	//   - It is called before each GetMachineStatus, so it SHOULD send few requests to the
	//     provider.
	//
	// Codes: InvalidArgument, PermissionDenied, FailedPrecondition, Unimplemented.
	LocateMachine(ctx context.Context, req *LocateMachineRequest) (*LocateMachineResponse, error)
}

// LocateMachineRequest asks where the VM of a machine is looked for.
type LocateMachineRequest struct {
	// Machine whose VM it is about. Never nil.
	Machine *v1alpha1.Machine
	// MachineClass that the machine refers to. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// LocateMachineResponse says where the VM of a machine is looked for.
type LocateMachineResponse struct {
	// Location is never empty.
	Location string
}
