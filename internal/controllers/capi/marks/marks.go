// Package marks reads and writes the marks by which a MillwrightMachine remembers its VM.
package marks

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Established reports whether the VM exists, Cluster API knows it, and it need not be looked
// for. After a move to another cluster the status is empty, and the driver is asked again.
func Established(machine *infrav1.MillwrightMachine) bool {
	return machine.Status.Ready && machine.Status.ProviderID != "" && machine.Spec.ProviderID == machine.Status.ProviderID
}

// InstanceGone reports whether the VM is gone, so that what was needed to delete it may be, too.
func InstanceGone(machine *infrav1.MillwrightMachine) bool {
	_, gone := machine.Annotations[infrav1.AnnotationInstanceGone]
	return gone && !machine.DeletionTimestamp.IsZero()
}

// Begun reports whether there may be a VM.
func Begun(machine *infrav1.MillwrightMachine) bool {
	if InstanceGone(machine) {
		return false
	}
	_, asked := machine.Annotations[infrav1.AnnotationCreationBegun]
	return asked || machine.Spec.ProviderID != "" || machine.Status.ProviderID != ""
}

// Digest tells apart what a driver is asked with, except Secrets. However the specification
// is written down, it is the same.
func Digest(class *v1alpha1.MachineClass) string {
	var spec any
	decoder := json.NewDecoder(bytes.NewReader(class.ProviderSpec.Raw))
	decoder.UseNumber()
	if err := decoder.Decode(&spec); err != nil {
		spec = string(class.ProviderSpec.Raw)
	}
	text, err := json.Marshal([]any{class.Provider, spec, class.NodeTemplate})
	if err != nil {
		return "" // fits nothing
	}
	return fmt.Sprintf("%.8x", sha256.Sum256(text))
}

// OwnSpecOnly reports whether nothing but the object itself says how its VM is made.
func OwnSpecOnly(machine *infrav1.MillwrightMachine) bool {
	return machine.Spec.ProviderSpec != nil && machine.Spec.CredentialsSecretRef == nil && machine.Spec.ProviderID == ""
}

// Found notes that the driver finds the VM with this class, that is, with what it is asked with
// now.
func Found(machine *infrav1.MillwrightMachine, class *v1alpha1.MachineClass) {
	delete(machine.Annotations, infrav1.AnnotationCreationSpec)
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, infrav1.AnnotationInstanceSpec, Digest(class))
}

// FoundWithOther reports whether the driver found the VM before with another class than this:
// the class was changed since, or the object's own spec. If it then finds none, it may look in
// another place.
func FoundWithOther(machine *infrav1.MillwrightMachine, class *v1alpha1.MachineClass) bool {
	before, found := machine.Annotations[infrav1.AnnotationInstanceSpec]
	return found && before != Digest(class)
}
