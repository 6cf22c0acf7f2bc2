package crash

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/driver/sim"
)

// judge checks for states that must never occur.
func (r *run) judge() error {
	journal, err := r.cloud.Journal()
	if err != nil {
		return err
	}
	wrong := []error{r.judgeDeletions()}
	if r.history != nil {
		wrong = append(wrong, r.history.judge(r, r.scenario.always))
	}
	for machine, history := range sim.Histories(journal) {
		if history.MostAtOnce > 1 {
			wrong = append(wrong, fmt.Errorf("%w: machine %s had %d VMs at the same time", errTwoVMs, machine, history.MostAtOnce))
		}
		if history.Left > 0 {
			wrong = append(wrong, fmt.Errorf("%w: %d VMs of machine %s", errLeft, history.Left, machine))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range slices.Concat(r.managers, r.plugIns) {
		r.leaks.search("what the manager printed", []byte(p.output.String()))
	}
	for _, leak := range r.leaks.all() {
		wrong = append(wrong, fmt.Errorf("%w: %s", errLeak, leak))
	}
	return errors.Join(wrong...)
}

// judgeDeletions checks for Pods that were deleted instead of evicted.
func (r *run) judgeDeletions() error {
	if r.forces != nil {
		return r.forces.judge()
	}
	var wrong []error
	for _, p := range r.gate.recorded() {
		pod, found := strings.CutPrefix(p.object, "pods ")
		if may := r.scenario.mayDelete; p.verb == "delete" && found && (may == nil || !may(pod)) {
			wrong = append(wrong, fmt.Errorf("%w: %s", errNotEvicted, p))
		}
	}
	return errors.Join(wrong...)
}

// Patterns that must not match, and patterns that must.
var (
	errTwoVMs        = errors.New("two instances of one machine")
	errLeft          = errors.New("something is left")
	errLeak          = errors.New("a secret value got out")
	errNotEvicted    = errors.New("a pod was deleted, not evicted")
	errToken         = errors.New("a bootstrap token is left")
	errTooMany       = errors.New("more machines exist than may")
	errTooFew        = errors.New("fewer machines are available than have to be")
	errMixed         = errors.New("a new machine exists next to an old one")
	errVictim        = errors.New("a machine is deleted that was not marked")
	errFrozen        = errors.New("a frozen set makes a machine")
	errUnheld        = errors.New("a VM may exist that nothing holds")
	errNoID          = errors.New("a VM is reported whose provider ID is not known")
	errTakenBack     = errors.New("a status reported to Cluster API is reverted")
	errUnlocated     = errors.New("a VM has an ID, and it is not recorded where it is")
	errPreserved     = errors.New("a preserved machine is deleted")
	errNotKept       = errors.New("a restored machine is deleted")
	errMigratedTwice = errors.New("a legacy class is migrated again")
	errNoClass       = errors.New("something refers to a MachineClass that does not exist")
	errNotReached    = errors.New("what is declared is not reached")
)
