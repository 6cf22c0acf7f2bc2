package machineset

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// patience is how long a created Machine may be missing from the cache, or a deleted one be there
// as if nothing were, before the API server is asked.
const patience = 30 * time.Second

// writes remembers what was created and deleted and is not seen in the cache yet.
// Losing it, as in a restart, means that each set is checked against the API server
// before its Machines are counted.
type writes struct {
	mu   sync.Mutex
	sets map[client.ObjectKey]*expectation
}

type expectation struct {
	// checked reports whether the cache was once found to hold all that the API server
	// has of this set, with nothing unknown written since.
	checked bool
	// doubted reports whether something unknown was written by this process.
	doubted bool
	// created are the names of Machines, and when each was created.
	created map[string]time.Time
	// deleted are Machines by their names.
	deleted map[string]deletion
}

// deletion is which Machine was deleted, and when.
type deletion struct {
	uid types.UID
	at  time.Time
}

func newExpectations() *writes {
	return &writes{sets: map[client.ObjectKey]*expectation{}}
}

func (e *writes) of(set client.ObjectKey) *expectation {
	known := e.sets[set]
	if known == nil {
		known = newExpectation()
		e.sets[set] = known
	}
	return known
}

func newExpectation() *expectation {
	return &expectation{created: map[string]time.Time{}, deleted: map[string]deletion{}}
}

func (e *writes) create(set client.ObjectKey, name string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(set).created[name] = now
}

func (e *writes) delete(set client.ObjectKey, machine *v1alpha1.Machine, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(set).deleted[machine.Name] = deletion{machine.UID, now}
}

// doubt records that a creation or deletion may or may not have happened.
func (e *writes) doubt(set client.ObjectKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(set).checked, e.of(set).doubted = false, true
}

// trust records that the cache shows all that was written before this process began.
func (e *writes) trust(set client.ObjectKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(set).checked = true
}

func (e *writes) forget(set client.ObjectKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sets, set)
}

// verdict is what expectations say of the cache.
type verdict int

const (
	// complete: the cache shows all that was written.
	complete verdict = iota
	// behind: an event will come.
	behind
	// unchecked: nothing is known yet of what was written before this process began.
	unchecked
	// doubtful: only the API server knows.
	doubtful
)

// judge drops what the cache shows by now, and says what is left.
func (e *writes) judge(set client.ObjectKey, owned []*v1alpha1.Machine, now time.Time) verdict {
	cached := map[string]*v1alpha1.Machine{}
	for _, machine := range owned {
		cached[machine.Name] = machine
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.of(set)
	known.drop(cached)
	switch {
	case known.doubted || known.overdue(now):
		return doubtful
	case !known.checked:
		return unchecked
	case len(known.created)+len(known.deleted) > 0:
		return behind
	default:
		return complete
	}
}

// drop drops what the cache shows.
func (e *expectation) drop(cached map[string]*v1alpha1.Machine) {
	for name := range e.created {
		if cached[name] != nil {
			delete(e.created, name)
		}
	}
	for name, deleted := range e.deleted {
		if machine := cached[name]; machine == nil || machine.UID != deleted.uid || !machine.DeletionTimestamp.IsZero() {
			delete(e.deleted, name)
		}
	}
}

// overdue reports whether the cache does not show something for too long: a Machine may have been
// deleted before the cache showed it, and a webhook may have said of one that it is gone.
func (e *expectation) overdue(now time.Time) bool {
	for _, at := range e.created {
		if now.Sub(at) > patience {
			return true
		}
	}
	for _, deleted := range e.deleted {
		if now.Sub(deleted.at) > patience {
			return true
		}
	}
	return false
}

// settle compares the cache with what the API server has. It reports whether they agree on
// which Machines there are and which of them are being deleted; if so, nothing that was
// written before is awaited any more.
func (e *writes) settle(set client.ObjectKey, owned []*v1alpha1.Machine, live []*metav1.PartialObjectMetadata) bool {
	deleting := map[types.UID]bool{}
	for _, machine := range owned {
		deleting[machine.UID] = !machine.DeletionTimestamp.IsZero()
	}
	if len(live) != len(owned) {
		return false
	}
	for _, machine := range live {
		if was, ok := deleting[machine.UID]; !ok || was == machine.DeletionTimestamp.IsZero() {
			return false
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sets[set] = newExpectation()
	e.sets[set].checked = true
	return true
}
