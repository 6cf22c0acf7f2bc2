package capi

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/capi/core"
	"github.com/millwright-dev/millwright/internal/capi/synth"
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
