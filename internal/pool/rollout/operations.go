package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/revision"
)

// Action is the kind of an operation.
type Action string

// The actions. Create, Scale, Adopt and Release apply to sets.
const (
	Create  Action = "create"
	Scale   Action = "scale"
	Adopt   Action = "adopt"
	Release Action = "release"
	// Refresh updates the fields that a set copies from the deployment.
	Refresh Action = "refresh"
	// Prune deletes an old set that exceeds the history limit.
	Prune Action = "prune"
	// Mark marks the Machine that its set should delete first.
	Mark Action = "mark"
	// Transfer moves a Machine from an old set to the current one.
	Transfer Action = "transfer"
	// Settle removes the label of a Machine that was moved to its set.
	Settle Action = "settle"
	// TakeClass gives a set the class that the template names.
	TakeClass Action = "take class"
	// AskUpdate requests that the driver of a Machine reports what an update to that class would change.
	// ForgetUpdate withdraws the request. FollowClass gives the Machine the class. Retire makes its set delete
	// the Machine before others.
	AskUpdate    Action = "ask about update"
	ForgetUpdate Action = "forget about update"
	FollowClass  Action = "follow class"
	Retire       Action = "retire"
	// PatchNodes changes nodes.
	PatchNodes Action = "patch nodes"
	// RollBack restores the template of an old set in the deployment.
	RollBack Action = "roll back"
	// EndRestore records that a restored deployment no longer waits for its sets.
	EndRestore Action = "end restore"
	// Refuse removes a rollback request that cannot be carried out.
	Refuse Action = "refuse"
)

// Operation is one change, with its reason.
type Operation struct {
	Action Action
	// Set is nil for Create.
	Set *v1alpha1.MachineSet
	// Next is the set that Create, Scale, Refresh and TakeClass write.
	Next *v1alpha1.MachineSet
	// Replicas is the number of replicas that Create and Scale set.
	Replicas int32
	// Machine is the Machine to change. Since is when it was named for deletion. From is the set that loses it.
	Machine *v1alpha1.Machine
	Since   string
	From    *v1alpha1.MachineSet
	// Nodes are the nodes to patch.
	Nodes []NodeChange
	// Deployment is what RollBack and Refuse write.
	Deployment *v1alpha1.MachineDeployment
	// Reason is a clause for events and logs.
	Reason string
	// Topic is the reason of the event, if it differs from that of the action. PatchNodes without a topic
	// records no event.
	Topic string

	// size is the size of the deployment that a set is scaled for. If 0, it is the desired number of replicas.
	size int32
}

// StopsPass reports whether the pass must stop after this operation and others of the same action, so that the
// caches can follow.
func (op Operation) StopsPass() bool {
	return slices.Contains([]Action{Adopt, Release, Mark, Transfer, TakeClass, AskUpdate, ForgetUpdate, FollowClass, Retire, RollBack, Refuse, EndRestore}, op.Action)
}

// Errors of operations that affect the status.
var (
	// ErrNameTaken reports that another set has the name of the new one. The next pass tries another name.
	ErrNameTaken = errors.New("the name of the new machine set is taken")
	// ErrCreate marks failures to create a set.
	ErrCreate = errors.New("cannot create machine set")
	// ErrMutated reports that the API server does not create a set as requested.
	ErrMutated = errors.New("spec.template: the API server changed the template of the new machine set")
	// ErrMark marks failures to mark a Machine that was named for deletion.
	ErrMark = errors.New("cannot mark machine")
)

// Outcome is the result of carrying out a plan.
type Outcome struct {
	// Deployment is the written deployment. It is nil if it was not written.
	Deployment *v1alpha1.MachineDeployment
	// Created is the new current set. It is nil if none was created.
	Created *v1alpha1.MachineSet
	// Written are the sets as they are after they were changed, by name.
	Written map[string]*v1alpha1.MachineSet
	// Unmarked has an error for each Machine that could not be marked.
	Unmarked []error
	// Ended reports whether an operation ended the pass.
	Ended bool
	// NodesLater reports whether nodes remain to be patched.
	NodesLater bool
	// Failure is the error that ended the pass.
	Failure error
}

// MarkError joins the first three errors of Unmarked, because most are alike. It returns nil if there are none.
func (o Outcome) MarkError() error {
	first := o.Unmarked[:min(3, len(o.Unmarked))]
	if more := len(o.Unmarked) - len(first); more > 0 {
		return fmt.Errorf("%w\nand %d more", errors.Join(first...), more)
	}
	return errors.Join(first...)
}

// Reused reports whether an old set became the current one after the rollout was computed.
func (o Outcome) Reused(r *Rollout) bool {
	is := o.now(r.Current)
	return o.Created == nil && is != nil && revision.Number(is) != revision.Number(r.Current)
}

// now returns the latest version of a set. It returns nil for nil.
func (o Outcome) now(was *v1alpha1.MachineSet) *v1alpha1.MachineSet {
	if was == nil {
		return nil
	}
	return cmp.Or(o.Written[was.Name], was)
}

// After returns the rollout as it is after an outcome.
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
