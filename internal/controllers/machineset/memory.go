package machineset

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// memory is what is remembered of a set between passes.
type memory struct {
	// machines were created or deleted, which the cache does not show yet.
	machines expectations.Children
	// preserved are the Machines that the set preserved by itself.
	preserved expectations.Writes
	// failures of Machines that never joined.
	failures failures
	// astray spaces out creations whose Machines come back as none of the set's.
	astray expectations.Retry
	// upToDate are the Machines that have what they take over from the template.
	upToDate upToDate
	// said is what users were told.
	said events.Said
	// last is what event handlers read.
	last atomic.Pointer[lastPass]
}

// lastPass is what the last pass found, by which event handlers decide whether and when to enqueue.
type lastPass struct {
	machines int
	backsOff bool
	overlaps []string
}

// publish makes facts of a pass known to event handlers.
func (m *memory) publish(f scale.Facts) {
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

// outdated returns the Machines that differ from the template, or from how those in excess have it. It
// compares only what changed.
func (u *upToDate) outdated(set *v1alpha1.MachineSet, owned []*v1alpha1.Machine, members reserve.Members) []scale.Outdated {
	if u.set != set.UID || u.generation != set.Generation || len(u.generations) > 2*len(owned) {
		*u = upToDate{set.UID, set.Generation, make(map[types.UID]int64, len(owned))}
	}
	var outdated []scale.Outdated
	selector := scale.Selector(set.Spec.Selector)
	for _, machine := range owned {
		mark := members.MarkFor(set, machine)
		choices := scarcity.Outdated(set, machine)
		known := machine.Generation > 0 && u.generations[machine.UID] == machine.Generation && mark == reserve.MarkOf(&machine.Spec)
		if known && !choices || !counts.Active(machine) || !selector.Matches(labels.Set(machine.Labels)) {
			continue
		}
		differences := scale.Differences(reserve.Marked(&set.Spec.Template.Spec, mark), &machine.Spec)
		if choices {
			differences = append(differences, "list of classes")
		}
		if len(differences) > 0 {
			outdated = append(outdated, scale.Outdated{Machine: machine, Differences: differences, Mark: mark})
		} else {
			u.generations[machine.UID] = machine.Generation
		}
	}
	return outdated
}

// failures counts how often in a row Machines of a set failed before they joined, for its back-off.
type failures struct {
	// of is what failed. A change of set or class starts anew.
	of contents
	// rounds counts failures. Machines that were created together fail in one round.
	rounds int
	// first and newest are the creation times of the newest Machine in the first round and in the
	// last. They are by the API server's clock, and must not be compared with this process's.
	first, newest metav1.Time
	// notBefore is when the next Machines may be created, delay how long that is put off.
	notBefore time.Time
	delay     time.Duration
}

// contents identify a version of a set and of its class, which may not exist.
type contents struct {
	set, class                     types.UID
	setGeneration, classGeneration int64
}

// count counts a new round if a deleted Machine of it never joined, and returns that Machine.
func (s *failures) count(f scale.Facts, of contents, deleted []scale.Operation) *v1alpha1.Machine {
	if s.of != of {
		*s = failures{}
	}
	for _, op := range deleted {
		if !neverJoined(op.Machine) || !s.newest.Before(&op.Machine.CreationTimestamp) {
			continue
		}
		s.of, s.newest = of, newest(f.Owned)
		if s.rounds++; s.rounds == 1 {
			s.first = s.newest
		} else {
			s.delay = min(5*time.Second<<min(s.rounds-2, 10), 5*time.Minute)
		}
		s.notBefore = f.Now.Add(s.delay)
		return op.Machine
	}
	return nil
}

func newest(machines []*v1alpha1.Machine) metav1.Time {
	var last metav1.Time
	for _, machine := range machines {
		if last.Before(&machine.CreationTimestamp) {
			last = machine.CreationTimestamp
		}
	}
	return last
}

// neverJoined reports whether a Machine failed while it was created or while it joined.
func neverJoined(machine *v1alpha1.Machine) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed &&
		machine.Status.LastOperation.Type == v1alpha1.MachineOperationCreate
}

// until returns when the set may create Machines again. One that became available ends the row.
func (s *failures) until(owned []*v1alpha1.Machine, of contents) time.Time {
	over := s.of != of
	for _, machine := range owned {
		over = over || counts.Usable(machine) && s.first.Before(&machine.CreationTimestamp)
	}
	if over {
		*s = failures{}
	}
	return s.notBefore
}

// backOff counts Machines that never joined, and returns when the set may create others.
func (c *Controller) backOff(ctx context.Context, f scale.Facts, of contents, deleted []scale.Operation) time.Time {
	known := &c.memory.Of(client.ObjectKeyFromObject(f.Set)).failures
	last := known.count(f, of, deleted)
	if last == nil || known.delay == 0 {
		return f.NotBefore
	}
	why := messages.Shorten(last.Status.LastOperation.Description, longestEvent/2)
	text := fmt.Sprintf("Machines failed before they joined, %d times in a row: "+messages.NextMade+"%s at the earliest", known.rounds, known.delay)
	if why != "" {
		text += messages.LastFailed + last.Name + ": " + why
	}
	annotations := map[string]string{
		v1alpha1.EventAnnotationCause: v1alpha1.CauseMachineFailed, v1alpha1.EventAnnotationObjects: last.Name,
		v1alpha1.EventAnnotationUntil: known.notBefore.UTC().Format(time.RFC3339),
	}
	if code := last.Status.LastOperation.ErrorCode; code != "" {
		annotations[v1alpha1.EventAnnotationCode] = code
	}
	c.Events.AnnotatedEventf(f.Set, annotations, corev1.EventTypeWarning, "BackOff", "%s", text)
	ctrl.LoggerFrom(ctx).Info("machines keep failing", "times", known.rounds, "delay", known.delay)
	return known.notBefore
}
