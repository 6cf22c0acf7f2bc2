package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Updater is implemented by drivers that can change VMs that exist: tags, security groups, whatever the
// provider can change without a new VM. With other drivers, VMs stay as they were created. It is called only
// for machines whose update a user requested, see docs/update-instances.md.
type Updater interface {
	// UpdateMachine changes the VM of a machine into one that the class would make, as far as that needs no
	// new VM, and says what needs one.
	//
	//   - It MUST find the VM as GetMachineStatus does. If there is none, it returns NotFound, and creates
	//     none.
	//   - It SHOULD compare the class with the VM as it is. MadeFrom is for what cannot be seen of a VM, and
	//     may be unknown.
	//   - Each difference MUST be in Updates or in Replacements. For a VM that the class would make, both MUST be
	//     empty.
	//   - With DryRun it MUST change nothing, and return what a call without it would.
	//   - Without DryRun it MUST carry out the Updates, and leave what is in Replacements as it is. The VM keeps
	//     its ProviderID. OK means that all Updates are done, or, for those in AtNextStart, that the provider
	//     will do them.
	//   - It MUST be idempotent. It is repeated until it succeeds, so an update that was done in part is
	//     completed by the next call. After OK, a call for the same class has no Updates.
	//   - If it cannot tell whether a change is possible, it SHOULD name it in Replacements.
	//
	// Codes: NotFound, InvalidArgument (provider specification), PermissionDenied, ResourceExhausted (quota or
	// capacity), FailedPrecondition, Aborted (an operation on this machine is pending), OutOfRange, Unimplemented
	// (no VM can be updated). After all but NotFound and Unimplemented it is called again.
	UpdateMachine(ctx context.Context, req *UpdateMachineRequest) (*UpdateMachineResponse, error)
}

// UpdateMachineRequest asks for the update of the VM of a machine.
type UpdateMachineRequest struct {
	// Machine whose VM to update. Never nil. Its spec.providerID is set. Its spec.class may name another class
	// than MachineClass, if it is asked beforehand what that one would change.
	Machine *v1alpha1.Machine
	// MachineClass that the VM is to be like. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret of that class. Never nil. User data have effect only when a VM is created.
	Secret *corev1.Secret
	// MadeFrom is the ProviderSpec that the VM was made from, or updated to, if that was recorded. Its Raw is
	// nil otherwise.
	MadeFrom runtime.RawExtension
	// DryRun asks what would be done.
	DryRun bool
}

// UpdateMachineResponse says how the VM and the class differ. The texts are shown to users: a few words each,
// such as "tags" or "zone: a VM cannot move". They MUST NOT contain secrets. Of each list, the first 16 of at
// most 256 bytes are shown.
type UpdateMachineResponse struct {
	// Updates are the differences that need no new VM. They are done, unless it was a dry run.
	Updates []string
	// AtNextStart are those of Updates that have effect only when the VM is started the next time.
	AtNextStart []string
	// Replacements are the differences for which a new VM is needed, with the reason if it is not obvious.
	Replacements []string
}
