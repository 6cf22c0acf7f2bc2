package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Updater is implemented by drivers that can change existing VMs: tags, security groups, or anything else that the
// provider can change without a new VM. With other drivers, VMs stay as they were created. It is called only for
// machines whose update a user requested; see docs/tasks/update-instances.md.
type Updater interface {
	// UpdateMachine changes the VM of a machine into one that the class would create, as far as possible without a
	// new VM, and returns the differences that need a new VM.
	//
	//   - It MUST find the VM as GetMachineStatus does. If the VM does not exist, it returns NotFound and does not
	//     create one.
	//   - It SHOULD compare the class with the actual VM. MadeFrom is for properties that cannot be read from a VM,
	//     and may be unknown.
	//   - Each difference MUST be in Updates or in Replacements. For a VM that the class would create, both MUST be
	//     empty.
	//   - With DryRun, it MUST change nothing, and return what a call without DryRun would return.
	//   - Without DryRun, it MUST carry out the Updates and leave the properties in Replacements unchanged. The VM
	//     keeps its ProviderID. OK means that all Updates are done or, for those in AtNextStart, that the provider
	//     will do them.
	//   - It MUST be idempotent. It is repeated until it succeeds, so the next call completes a partial update.
	//     After OK, a call for the same class returns no Updates.
	//   - If it cannot determine whether a change is possible, it SHOULD list the change in Replacements.
	//
	// Codes: NotFound, InvalidArgument (provider specification), PermissionDenied, ResourceExhausted (quota or
	// capacity), FailedPrecondition, Aborted (an operation on this machine is pending), OutOfRange, Unimplemented
	// (no VM can be updated). After any code except NotFound and Unimplemented, it is called again.
	UpdateMachine(ctx context.Context, req *UpdateMachineRequest) (*UpdateMachineResponse, error)
}

// UpdateMachineRequest asks for the update of the VM of a machine.
type UpdateMachineRequest struct {
	// Machine whose VM to update. Never nil. Its spec.providerID is set. Its spec.class may name another class than
	// MachineClass, if the request is a dry run for a class that the machine does not have yet.
	Machine *v1alpha1.Machine
	// MachineClass that the VM should match. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret of that class. Never nil. User data takes effect only when a VM is created.
	Secret *corev1.Secret
	// MadeFrom is the ProviderSpec from which the VM was created or last updated, if it was recorded. Otherwise its
	// Raw is nil.
	MadeFrom runtime.RawExtension
	// DryRun requests only the differences, without any change.
	DryRun bool
}

// UpdateMachineResponse describes how the VM and the class differ. The texts are shown to users: a few words each,
// such as "tags" or "zone: a VM cannot move". They MUST NOT contain secrets. Of each list, the first 16 texts are
// shown, with at most 256 bytes each.
type UpdateMachineResponse struct {
	// Updates are the differences that need no new VM. They are applied, unless it was a dry run.
	Updates []string
	// AtNextStart are those of Updates that take effect only at the next start of the VM.
	AtNextStart []string
	// Replacements are the differences that need a new VM, with the reason if it is not obvious.
	Replacements []string
}
