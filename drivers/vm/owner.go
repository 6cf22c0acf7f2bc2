package vm

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/types"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// MachineOf returns the Machine for which a VirtualMachine was created, by this or another
// installation. Use it for display only. It is the zero value if no driver created the
// VirtualMachine.
func MachineOf(vm *vmv1alpha1.VirtualMachine) types.NamespacedName {
	var of identity
	if err := json.Unmarshal([]byte(vm.Annotations[AnnotationIdentity]), &of); err != nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: of.Namespace, Name: of.Machine}
}
