package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/revision"
)

// Action is what an operation does.
type Action string

// The actions. Create, Scale, Adopt and Release are of sets.
const (
	Create  Action = "create"
	Scale   Action = "scale"
	Adopt   Action = "adopt"
	Release Action = "release"
	// Refresh updates what a set takes over from the deployment.
	Refresh Action = "refresh"
	// Prune deletes an old set beyond the history limit.
	Prune Action = "prune"
	// Mark marks the Machine that its set is to delete first.
	Mark Action = "mark"
	// Transfer moves a Machine from an old set to the current one.
	Transfer Action = "transfer"
	// Settle removes the label of a Machine that was moved.
	Settle Action = "settle"
	// TakeClass gives a set the class that the template names.
	TakeClass Action = "take class"
	// AskUpdate asks the driver of a Machine about that class, ForgetUpdate takes that back, and FollowClass gives the
	// Machine the class. Retire lets its set delete it before others.
	AskUpdate    Action = "ask about update"
	ForgetUpdate Action = "forget about update"
	FollowClass  Action = "follow class"
	Retire       Action = "retire"
	// PatchNodes changes nodes.
	PatchNodes Action = "patch nodes"
	// RollBack gives the deployment the template of an old set.
	RollBack Action = "roll back"
	// Refuse answers a rollback that is not possible.
	Refuse Action = "refuse"
)

// Operation is one thing to do, and why.
type Operation struct {
	Action Action
	// Set is nil for Create.
	Set *v1alpha1.MachineSet
	// Next is the set that Create, Scale, Refresh and TakeClass write.
	Next *v1alpha1.MachineSet
	// Replicas that Create and Scale give the set.
	Replicas int32
	// Machine to mark, to transfer or to settle; Since is when it was named, From the set that loses it.
	Machine *v1alpha1.Machine
	Since   string
	From    *v1alpha1.MachineSet
	// Nodes to patch.
	Nodes []NodeChange
	// Deployment that RollBack and Refuse write.
	Deployment *v1alpha1.MachineDeployment
	// Reason is a sentence for events and logs.
	Reason string
	// Topic is the reason of the event, if not that of the action. Patches of nodes may have no event.
	Topic string

	// size of the deployment that a set is scaled for; 0 is its replicas.
	size int32
}

// Ends reports whether a pass ends after the operation and others of its action: caches have to follow.
func (op Operation) Ends() bool {
	return slices.Contains([]Action{Adopt, Release, Mark, Transfer, TakeClass, AskUpdate, ForgetUpdate, FollowClass, Retire, RollBack, Refuse}, op.Action)
}

// Errors of operations that decide on the status.
var (
	// ErrNameTaken: another set has the name of the new one. The next pass tries another name.
	ErrNameTaken = errors.New("the name of the new machine set is taken")
	// ErrCreate marks failures to create a set.
	ErrCreate = errors.New("creating a machine set")
	// ErrMutated: the API server does not create a set as requested.
	ErrMutated = errors.New("spec.template: the API server changes the template of a new machine set")
	// ErrMark marks failures to mark a Machine that was named for deletion.
	ErrMark = errors.New("marking a machine")
)

// Outcome is what became of a plan.
type Outcome struct {
	// Deployment as it is now, if it was written.
	Deployment *v1alpha1.MachineDeployment
	// Created is the current set, if it was created.
	Created *v1alpha1.MachineSet
	// Written are the sets that were changed, as they are now, by their names.
	Written map[string]*v1alpha1.MachineSet
	// Unmarked says of each Machine that could not be marked why.
	Unmarked []error
	// Ended reports whether an operation ended the pass.
	Ended bool
	// NodesLater reports whether nodes are left to patch.
	NodesLater bool
	// Failure is the error that ended the pass.
	Failure error
}

// MarkError returns the first three errors of Unmarked, as most are the same; nil if there are none.
func (o Outcome) MarkError() error {
	first := o.Unmarked[:min(3, len(o.Unmarked))]
	if more := len(o.Unmarked) - len(first); more > 0 {
		return fmt.Errorf("%w\nand %d more", errors.Join(first...), more)
	}
	return errors.Join(first...)
}

// Reused reports whether an old set has become the current one since a rollout was computed.
func (o Outcome) Reused(r *Rollout) bool {
	is := o.now(r.Current)
	return o.Created == nil && is != nil && revision.Number(is) != revision.Number(r.Current)
}

// now returns a set as it is now; nil for nil.
func (o Outcome) now(was *v1alpha1.MachineSet) *v1alpha1.MachineSet {
	if was == nil {
		return nil
	}
	return cmp.Or(o.Written[was.Name], was)
}

// After returns the rollout of the deployment and its sets as an outcome left them.
func (r *Rollout) After(o Outcome) *Rollout {
	f := r.Facts
	f.Old = slices.Clone(f.Old)
	for i, was := range f.Old {
		f.Old[i] = o.now(was)
	}
	f.Deployment = cmp.Or(o.Deployment, f.Deployment)
	f.Current = cmp.Or(o.Created, o.now(f.Current))
	return New(f)
}
