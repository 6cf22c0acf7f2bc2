package planner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// Errors of operations that mean something for the status.
var (
	// ErrNameTaken says that the name of a new set belongs to another one. The next pass has another
	// collision count, and with it another name.
	ErrNameTaken = errors.New("the name of the new machine set is taken")
	// ErrCreate marks failures to create a set.
	ErrCreate = errors.New("creating a machine set")
	// ErrMutated says that a set would not be created as requested.
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
	// Unmarked is how many Machines could not be marked, and UnmarkedErrors says why of the first.
	Unmarked       int
	UnmarkedErrors []error
	// Ended reports whether an operation ended the pass.
	Ended bool
	// NodesLater reports whether nodes are left to be patched.
	NodesLater bool
	// Failure is what ended the pass before its time; nil if nothing did.
	Failure error
}

// mostErrors is how many of the Machines that cannot be marked are named. There may be thousands,
// mostly for the same reason.
const mostErrors = 3

// LeaveUnmarked records a Machine that could not be marked.
func (o *Outcome) LeaveUnmarked(why error) {
	o.Unmarked++
	if len(o.UnmarkedErrors) < mostErrors {
		o.UnmarkedErrors = append(o.UnmarkedErrors, why)
	}
}

// MarkError says why Machines could not be marked; nil if all could.
func (o Outcome) MarkError() error {
	why := errors.Join(o.UnmarkedErrors...)
	if more := o.Unmarked - len(o.UnmarkedErrors); more > 0 {
		return fmt.Errorf("%w\nand %d more", why, more)
	}
	return why
}

// Reused reports whether an old set has become the current one.
func (o Outcome) Reused(f Facts) bool {
	if f.Current == nil {
		return false
	}
	is, ok := o.Written[f.Current.Name]
	return ok && revision.Number(is) != revision.Number(f.Current)
}

// After returns the facts with the deployment and its sets as an outcome left them.
func (f Facts) After(o Outcome) Facts {
	is := func(was *v1alpha1.MachineSet) *v1alpha1.MachineSet {
		if written, ok := o.Written[was.Name]; ok {
			return written
		}
		return was
	}
	f.Old = slices.Clone(f.Old)
	for i, was := range f.Old {
		f.Old[i] = is(was)
	}
	if o.Deployment != nil {
		f.Deployment = o.Deployment
	}
	if o.Created != nil {
		f.Current = o.Created
	} else if f.Current != nil {
		f.Current = is(f.Current)
	}
	return f
}
