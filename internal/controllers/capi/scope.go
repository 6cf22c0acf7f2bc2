package capi

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/failure"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/controllers/capi/translate"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
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
	// credentials tells that the driver gets data of Secrets. Set by collect.
	credentials bool
	// unheld is set when a Secret that the driver needs is not held. Set by collect.
	unheld bool
	// objects are what a driver gets. Set by gather, and by gatherForDeletion.
	objects translate.Objects
	// now is one time for the whole pass.
	now time.Time
	// within is when another pass is due at the latest, whatever else the pass waits for;
	// zero if there is no such time.
	within time.Duration
	// events are sent once everything is written.
	events []explanation
	// memory is what is remembered of the object from pass to pass.
	memory *memory
}

// explanation is an event to be.
type explanation struct{ kind, reason, message string }

// memory is what is remembered of a MillwrightMachine from pass to pass. Losing it costs an
// event that is sent twice, or a question to the driver that comes late.
type memory struct {
	// of is the object that it is about.
	of types.UID
	// check is when the driver is asked about a VM that is there.
	check check
	// told is what events said that are sent only when they change.
	told events.Said
	// refused reports that the object was said not to be ready, and code with which error code
	// of the driver; OK if the driver did not fail.
	refused bool
	code    codes.Code
}

func newScope(machine *infrav1.MillwrightMachine, remembered *memory, now time.Time) *scope {
	if remembered.of != machine.UID {
		*remembered = memory{of: machine.UID}
	}
	return &scope{machine: machine, stored: machine.DeepCopy(), memory: remembered, now: now}
}

func (s *scope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.machine) }

// wakeWithin asks for another pass; zero asks for nothing.
func (s *scope) wakeWithin(d time.Duration) {
	if d > 0 && (s.within == 0 || d < s.within) {
		s.within = d
	}
}

// retry is when a pass comes again after a call that failed. Nobody tells of a Secret that
// was repaired, so that is looked at more often than the driver is asked.
func (s *scope) retry(after time.Duration) time.Duration {
	if s.credentials {
		return min(after, slowRetry)
	}
	return after
}

func (s *scope) explain(kind, reason, message string) {
	s.events = append(s.events, explanation{kind, reason, message})
}

// neverMade reports whether the driver cannot have made a VM, since it refuses the very spec
// that it was asked with from the beginning. Such an object could not be deleted otherwise:
// the driver refuses to look, too.
func (s *scope) neverMade(failed *instance.Failure) bool {
	from := s.machine.Annotations[infrav1.AnnotationCreationSpec]
	return failure.RefusesSpec(failed) && marks.OwnSpecOnly(s.machine) && s.machine.Status.ProviderID == "" && from != "" && from == marks.Digest(s.objects.Class)
}
