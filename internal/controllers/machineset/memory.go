package machineset

import (
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// memory is what is remembered of a set between passes.
type memory struct {
	// written is the newest version of the set that this process wrote.
	written expectations.Writes
	// machines are those that were created and deleted and that the cache does not show so yet.
	machines expectations.Children[*v1alpha1.Machine]
	// failures of Machines that never joined.
	failures failures
	// upToDate are the Machines that have what they take over from the template.
	upToDate upToDate
	// last is what event handlers read of the last pass.
	last atomic.Pointer[lastPass]
}

// lastPass is what the last pass over a set found. Event handlers decide by it whether and when
// the next is needed.
type lastPass struct {
	machines int
	backsOff bool
	overlaps []string
}

// overlapsBeyond reports whether a set says that it overlaps with more sets than it names, and does
// not name that one.
func (l lastPass) overlapsBeyond(name string) bool {
	return len(l.overlaps) > mostNamed && !slices.Contains(l.overlaps[:mostNamed], name)
}

// publish makes facts of a pass known to event handlers.
func (m *memory) publish(f planner.Facts) {
	m.last.Store(&lastPass{machines: len(f.Owned), backsOff: m.failures.rounds > 0, overlaps: f.Overlaps})
}

// lastPass returns what the last pass over a set found, the zero value if there was none.
func (c *Controller) lastPass(set client.ObjectKey) lastPass {
	if known := c.memory.Find(set); known != nil {
		if last := known.last.Load(); last != nil {
			return *last
		}
	}
	return lastPass{}
}

// upToDate remembers, for one generation of a set, the generations of Machines that were found to
// have what they take over. Comparing all Machines of a large set in each pass would cost more than
// all else.
type upToDate struct {
	set         types.UID
	generation  int64
	generations map[types.UID]int64
}

// outdated returns the Machines that have yet to take over a change of the template. It compares
// only those that changed since the last time.
func (u *upToDate) outdated(set *v1alpha1.MachineSet, owned []*v1alpha1.Machine, selected func(map[string]string) bool) []planner.Outdated {
	if u.set != set.UID || u.generation != set.Generation || len(u.generations) > 2*len(owned) {
		*u = upToDate{set.UID, set.Generation, make(map[types.UID]int64, len(owned))}
	}
	var outdated []planner.Outdated
	for _, machine := range owned {
		if !planner.Active(machine) || !selected(machine.Labels) {
			continue
		}
		if machine.Generation > 0 && u.generations[machine.UID] == machine.Generation {
			continue
		}
		if differences := planner.Differences(&set.Spec.Template.Spec, &machine.Spec); len(differences) > 0 {
			outdated = append(outdated, planner.Outdated{Machine: machine, Differences: differences})
		} else {
			u.generations[machine.UID] = machine.Generation
		}
	}
	return outdated
}
