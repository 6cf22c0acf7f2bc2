package machineset

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// patience is how long a created Machine may be missing from the cache before the API
// server is asked whether it still exists.
const patience = 30 * time.Second

// expectations remembers what was created and deleted and is not seen in the cache yet.
// Losing it, as in a restart, means that each set is checked against the API server
// before its next creation.
type expectations struct {
	mu   sync.Mutex
	sets map[client.ObjectKey]*expectation
}

type expectation struct {
	// checked tells whether the cache was once found to hold all that the API server
	// has of this set, with nothing unknown written since.
	checked bool
	// created are the names of Machines, and when each was created.
	created map[string]time.Time
	// deleted are the UIDs of Machines by their names.
	deleted map[string]types.UID
}

func newExpectations() *expectations {
	return &expectations{sets: map[client.ObjectKey]*expectation{}}
}

func (e *expectations) of(set client.ObjectKey) *expectation {
	known := e.sets[set]
	if known == nil {
		known = &expectation{created: map[string]time.Time{}, deleted: map[string]types.UID{}}
		e.sets[set] = known
	}
	return known
}

func (e *expectations) create(set client.ObjectKey, name string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(set).created[name] = now
}

func (e *expectations) delete(set client.ObjectKey, machine *v1alpha1.Machine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(set).deleted[machine.Name] = machine.UID
}

// doubt records that a creation may or may not have happened.
func (e *expectations) doubt(set client.ObjectKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(set).checked = false
}

func (e *expectations) forget(set client.ObjectKey) {
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
	// doubtful: only the API server knows.
	doubtful
)

// judge drops what the cache shows by now, and says what is left.
func (e *expectations) judge(set client.ObjectKey, cached map[string]*v1alpha1.Machine, now time.Time) verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.of(set)
	overdue := false
	for name, at := range known.created {
		if cached[name] != nil {
			delete(known.created, name)
		} else if now.Sub(at) > patience {
			overdue = true
		}
	}
	for name, uid := range known.deleted {
		if machine := cached[name]; machine == nil || machine.UID != uid || !machine.DeletionTimestamp.IsZero() {
			delete(known.deleted, name)
		}
	}
	switch {
	case !known.checked || overdue:
		return doubtful
	case len(known.created)+len(known.deleted) > 0:
		return behind
	default:
		return complete
	}
}

// settle records what the API server has. It tells whether the cache has it all.
func (e *expectations) settle(set client.ObjectKey, cached map[string]*v1alpha1.Machine, live []string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.of(set)
	existing := map[string]bool{}
	for _, name := range live {
		existing[name] = true
		if cached[name] == nil {
			return false
		}
	}
	for name := range known.created {
		if !existing[name] {
			delete(known.created, name)
		}
	}
	known.checked = true
	return len(known.created)+len(known.deleted) == 0
}
