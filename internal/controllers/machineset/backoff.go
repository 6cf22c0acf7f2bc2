package machineset

import (
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

const (
	// firstDelay is how long a set waits before it replaces a Machine for the second
	// time in a row. It doubles with each time.
	firstDelay = 5 * time.Second
	// longestDelay is where that ends.
	longestDelay = 5 * time.Minute
)

// backoff slows down sets whose Machines fail before they were ever of use, so that a
// broken class costs neither API server nor provider much. Losing it, as in a restart,
// means to begin with the shortest delay.
type backoff struct {
	mu   sync.Mutex
	sets map[client.ObjectKey]*streak
}

// streak is a row of failures.
type streak struct {
	// of is what failed. What is new has not failed yet.
	of edition
	// rounds counts failures. Machines that were made together fail in one round.
	rounds int
	// first and newest are when the newest Machine was made that existed in the first round,
	// and in the last. Like all times of creation they are by the API server's clock, which may
	// not be compared with this process's.
	first, newest metav1.Time
	// last is when the last round was counted.
	last time.Time
	// class is the name of the class.
	class string
}

// edition tells the contents of a set and of its class from earlier ones.
type edition struct{ set, class string }

func editionOf(set *v1alpha1.MachineSet, class *v1alpha1.MachineClass) edition {
	e := edition{set: fmt.Sprintf("%s/%d", set.UID, set.Generation)}
	if class != nil {
		e.class = fmt.Sprintf("%s/%d", class.UID, class.Generation)
	}
	return e
}

func newBackoff() *backoff { return &backoff{sets: map[client.ObjectKey]*streak{}} }

// failed counts Machines that were removed because they failed. It returns how long the set
// waits now, and the last of those Machines, if there is something new to say about that.
func (b *backoff) failed(f *facts, removed []operation) (delay time.Duration, rounds int, last *v1alpha1.Machine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := client.ObjectKeyFromObject(f.set)
	known := b.sets[key]
	if known == nil || known.of != f.edition {
		known = &streak{of: f.edition, class: f.set.Spec.Template.Spec.Class.Name}
	}
	for _, op := range removed {
		if neverOfUse(op.machine) && known.newest.Before(&op.machine.CreationTimestamp) {
			known.rounds++
			known.newest, known.last = newest(f.owned), f.now
			if known.rounds == 1 {
				known.first = known.newest
			}
			b.sets[key] = known
			return known.delay(), known.rounds, op.machine
		}
	}
	return 0, known.rounds, nil
}

// newest is when the newest of some Machines was made.
func newest(machines []*v1alpha1.Machine) metav1.Time {
	var last metav1.Time
	for _, machine := range machines {
		if last.Before(&machine.CreationTimestamp) {
			last = machine.CreationTimestamp
		}
	}
	return last
}

// neverOfUse reports whether a Machine failed while it was made, or while it joined.
func neverOfUse(machine *v1alpha1.Machine) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed &&
		machine.Status.LastOperation.Type == v1alpha1.MachineOperationCreate
}

func (s *streak) delay() time.Duration {
	if s.rounds < 2 {
		return 0
	}
	delay := firstDelay
	for range s.rounds - 2 {
		if delay *= 2; delay >= longestDelay {
			return longestDelay
		}
	}
	return delay
}

// until is when the set may create Machines again. A Machine that came up since the first
// failure, and what is new in the set or its class, end a streak.
func (b *backoff) until(f *facts) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := client.ObjectKeyFromObject(f.set)
	known := b.sets[key]
	if known == nil {
		return time.Time{}
	}
	over := known.of != f.edition
	for _, machine := range f.owned {
		over = over || available(machine) && known.first.Before(&machine.CreationTimestamp)
	}
	if over {
		delete(b.sets, key)
		return time.Time{}
	}
	return known.last.Add(known.delay())
}

// waitingFor are the sets that wait and are made of a class.
func (b *backoff) waitingFor(class client.ObjectKey) []client.ObjectKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	var keys []client.ObjectKey
	for key, known := range b.sets {
		if key.Namespace == class.Namespace && known.class == class.Name {
			keys = append(keys, key)
		}
	}
	return keys
}

func (b *backoff) forget(set client.ObjectKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sets, set)
}
