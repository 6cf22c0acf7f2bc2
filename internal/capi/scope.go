package capi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/capi/core"
	"github.com/millwright-dev/millwright/internal/capi/synth"
	"github.com/millwright-dev/millwright/internal/instance"
)

// scope is what the steps of one pass share.
type scope struct {
	// machine is the pass's own copy: what will be written.
	machine *infrav1.MillwrightMachine
	// stored is the object as the API server has it.
	stored *infrav1.MillwrightMachine
	// owner is the Machine; nil if there is none. Set by findOwner.
	owner *core.Machine
	// cluster is nil if there is none. Set by findCluster.
	cluster *core.Cluster
	// class is the one that the object refers to; nil if it refers to none. Set by collect.
	class *v1alpha1.MachineClass
	// objects are what a driver gets. Set by gather, and by gatherForDeletion.
	objects synth.Objects
	// now is one time for the whole pass.
	now time.Time
	// events are sent once everything is written.
	events []explanation
	// gone is set when the finalizer was removed: there is no status left to write.
	gone bool
}

// explanation is an event to be.
type explanation struct{ kind, reason, message string }

func newScope(machine *infrav1.MillwrightMachine, now time.Time) *scope {
	return &scope{machine: machine, stored: machine.DeepCopy(), now: now}
}

func (s *scope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.machine) }

func (s *scope) explain(kind, reason, message string) {
	s.events = append(s.events, explanation{kind, reason, message})
}

// established tells whether the VM exists, Cluster API knows it, and it need not be looked
// for. After a move to another cluster the status is empty, and the driver is asked again.
func established(machine *infrav1.MillwrightMachine) bool {
	return machine.Status.Ready && machine.Status.ProviderID != "" && machine.Spec.ProviderID == machine.Status.ProviderID
}

// begun tells whether there may be a VM.
func begun(machine *infrav1.MillwrightMachine) bool {
	_, asked := machine.Annotations[infrav1.AnnotationCreationBegun]
	return asked || machine.Spec.ProviderID != "" || machine.Status.ProviderID != ""
}

// digest tells two specs apart.
func digest(spec *infrav1.MillwrightMachineSpec) string {
	text, err := json.Marshal(spec)
	if err != nil {
		return "" // fits nothing
	}
	return fmt.Sprintf("%.8x", sha256.Sum256(text))
}

// neverMade tells whether the driver cannot have made a VM, since it refuses the very spec
// that it was asked with from the beginning. Such an object could not be deleted otherwise:
// the driver refuses to look, too.
func neverMade(machine *infrav1.MillwrightMachine, failure *instance.Failure) bool {
	from := machine.Annotations[infrav1.AnnotationCreationSpec]
	return hopeless(machine, failure) && machine.Status.ProviderID == "" && from != "" && from == digest(&machine.Spec)
}
