package vm

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/types"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// MachineOf is the Machine that a VirtualMachine was made for, by this or another
// installation: for showing it to people. It is the zero value if the driver did not make
// the VirtualMachine.
func MachineOf(vm *vmv1alpha1.VirtualMachine) types.NamespacedName {
	var of identity
	if err := json.Unmarshal([]byte(vm.Annotations[AnnotationIdentity]), &of); err != nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: of.Namespace, Name: of.Machine}
}
