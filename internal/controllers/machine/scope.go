package machine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// scope is what the steps of one pass share.
type scope struct {
	// machine is the pass's own copy. Its metadata and spec are those of the API
	// server; its status is what the pass will write.
	machine *v1alpha1.Machine
	// stored is the Machine as the API server has it, status included. It is never changed:
	// it may be the cache's.
	stored *v1alpha1.Machine
	// node is the Machine's node; nil if there is none. Set by awaitNode.
	node *corev1.Node
	// rivalled tells that the node which the Machine names is another Machine's. Set by
	// awaitNode.
	rivalled bool
	// class is the Machine's; nil if it is missing, or if the node may not have its capacity.
	// Set by setCapacity.
	class *v1alpha1.MachineClass
	// now is one time for the whole pass.
	now time.Time
	// events are sent once the status is written.
	events []explanation
	// within is when another pass is due at the latest, whatever else the pass waits for;
	// zero if there is no such time.
	within time.Duration
	// foreign says whose the VM is that the driver finds for a Machine that names none, if
	// it is another object's. Set by identifyInstance and identifyNode.
	foreign string
	// force says why the drain is forced; termination only.
	force drain.Force
	// gone is set when the finalizer was removed: there is no status left to write.
	gone bool
}

// explanation is an event to be.
type explanation struct {
	kind, reason, message string
	// node is the one that it is about; nil if it is about the Machine.
	node *corev1.Node
	// sent is called once it is sent; it may be nil.
	sent func()
}

// newScope is that of a pass over a Machine as the cache has it.
func newScope(cached *v1alpha1.Machine, now time.Time) *scope {
	return &scope{machine: cached.DeepCopy(), stored: cached, now: now}
}

// wakeWithin asks for another pass; zero asks for nothing.
func (s *scope) wakeWithin(d time.Duration) {
	if d > 0 && (s.within == 0 || d < s.within) {
		s.within = d
	}
}

func (s *scope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.machine) }

func (s *scope) explain(kind, reason, message string) {
	s.events = append(s.events, explanation{kind: kind, reason: reason, message: message})
}

// explainNode is explain for what concerns the node, if the pass knows one.
func (s *scope) explainNode(kind, reason, message string) {
	if s.node != nil {
		s.events = append(s.events, explanation{kind: kind, reason: reason, message: message, node: s.node})
	}
}

// explainBoth is for what concerns the Machine and its node alike.
func (s *scope) explainBoth(kind, reason, message string) {
	s.explain(kind, reason, message)
	s.explainNode(kind, reason, message)
}

// established reports whether the Machine has an instance that need not be looked for.
func established(machine *v1alpha1.Machine) bool {
	return machine.Spec.ProviderID != "" && !unsettled(machine)
}

// unsettled reports whether the phase says nothing of an instance. Terminating does not if nobody
// deletes the Machine: it was restored from a backup without its deletion.
func unsettled(machine *v1alpha1.Machine) bool {
	switch machine.Status.CurrentStatus.Phase {
	case "", v1alpha1.MachineCrashLoopBackOff:
		return true
	case v1alpha1.MachineTerminating:
		return machine.DeletionTimestamp.IsZero()
	default:
		return false
	}
}
