// Package marks reads and writes the annotations and IDs that record the progress of a MillwrightMachine.
package marks

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Established reports whether the VM was reported to Cluster API, so that there is no need to search for it. After a
// move to another cluster the status is empty, and the driver is called again.
func Established(machine *infrav1.MillwrightMachine) bool {
	return machine.Status.Ready && machine.Status.ProviderID != "" && machine.Spec.ProviderID == machine.Status.ProviderID
}

// InstanceGone reports whether the VM is deleted, so that the objects that its deletion needed can be deleted, too. A
// mark of another deletion, or one from before this deletion, such as from a template, is ignored.
func InstanceGone(machine *infrav1.MillwrightMachine) bool {
	return !machine.DeletionTimestamp.IsZero() && machine.Annotations[infrav1.AnnotationInstanceGone] == deletion(machine)
}

// MarkInstanceGone records that the VM of a MillwrightMachine that is being deleted is gone.
func MarkInstanceGone(machine *infrav1.MillwrightMachine) {
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, infrav1.AnnotationInstanceGone, deletion(machine))
}

// deletion returns a string that identifies the deletion of an object and cannot be known before it.
func deletion(machine *infrav1.MillwrightMachine) string {
	return string(machine.UID) + " " + machine.DeletionTimestamp.UTC().Format(time.RFC3339)
}

// Begun reports whether there may be a VM.
func Begun(machine *infrav1.MillwrightMachine) bool {
	if InstanceGone(machine) {
		return false
	}
	_, begun := machine.Annotations[infrav1.AnnotationCreationBegun]
	return begun || machine.Spec.ProviderID != "" || machine.Status.ProviderID != ""
}

// Digest returns a digest of the request to the driver, without Secrets. The formatting of the provider specification
// does not affect it.
func Digest(class *v1alpha1.MachineClass) string {
	var spec any
	decoder := json.NewDecoder(bytes.NewReader(class.ProviderSpec.Raw))
	decoder.UseNumber()
	if err := decoder.Decode(&spec); err != nil {
		spec = string(class.ProviderSpec.Raw)
	}
	text, err := json.Marshal([]any{class.Provider, spec, class.NodeTemplate})
	if err != nil {
		return "" // matches no request
	}
	return fmt.Sprintf("%.8x", sha256.Sum256(text))
}

// SameJSON reports whether two values have the same JSON representation, regardless of formatting. A value that
// cannot be encoded as JSON equals nothing, not even itself.
func SameJSON(a, b any) bool {
	var plain [2]any
	for i, value := range []any{a, b} {
		text, err := json.Marshal(value)
		if err != nil {
			return false
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		if decoder.Decode(&plain[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(plain[0], plain[1])
}

// OwnSpecOnly reports whether the object alone describes the VM, without a class or Secrets.
func OwnSpecOnly(machine *infrav1.MillwrightMachine) bool {
	return machine.Spec.ProviderSpec != nil && machine.Spec.CredentialsSecretRef == nil && machine.Spec.ProviderID == ""
}

// Found records that the driver finds the VM with the class in the request.
func Found(machine *infrav1.MillwrightMachine, class *v1alpha1.MachineClass) {
	delete(machine.Annotations, infrav1.AnnotationCreationSpec)
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, infrav1.AnnotationInstanceSpec, Digest(class))
}

// FoundWithOther reports whether the driver last found the VM with a different class in the request, because the
// class or the object's spec has changed since. If the driver does not find the VM now, it may be searching in
// another place.
func FoundWithOther(machine *infrav1.MillwrightMachine, class *v1alpha1.MachineClass) bool {
	before, found := machine.Annotations[infrav1.AnnotationInstanceSpec]
	return found && before != Digest(class)
}
