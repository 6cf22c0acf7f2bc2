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

// memory is the state that is kept between the passes over a set.
type memory struct {
	// machines tracks creations and deletions that the cache does not show yet.
	machines expectations.Children
	// preserved tracks the annotations of Machines that the set preserves automatically.
	preserved expectations.Writes
	// failures counts Machines that never joined.
	failures failures
	// mismatches delays creations after a webhook changed new Machines so that they do not belong to the set.
	mismatches expectations.Retry
	// upToDate contains the Machines that match the template.
	upToDate upToDate
	// sent contains the messages of events that are sent again only after they changed.
	sent events.Last
	// last is read by event handlers.
	last atomic.Pointer[lastPass]
}

// lastPass contains facts of the last pass. Event handlers decide by it whether and when to enqueue a set.
type lastPass struct {
	machines int
	backsOff bool
	overlaps []string
}

// publish makes facts of a pass available to event handlers.
func (m *memory) publish(f scale.Facts) {
	m.last.Store(&lastPass{machines: len(f.Owned), backsOff: m.failures.rounds > 0, overlaps: f.Overlaps})
}

// lastPass returns facts of the last pass over a set, or the zero value if there was none.
func (c *Controller) lastPass(set client.ObjectKey) lastPass {
	if memory := c.memory.Find(set); memory != nil {
		if last := memory.last.Load(); last != nil {
			return *last
		}
	}
	return lastPass{}
}

// upToDate records, for one generation of a set, the generations of Machines that were found to match the
// template. Comparing all Machines of a large set in each pass would be the most expensive part of a pass.
type upToDate struct {
	set         types.UID
	generation  int64
	generations map[types.UID]int64
}

// outdated returns the Machines that differ from the template, or from the marked template of the reserve. It
// compares only Machines that changed.
func (u *upToDate) outdated(set *v1alpha1.MachineSet, owned []*v1alpha1.Machine, members reserve.Members) []scale.Outdated {
	if u.set != set.UID || u.generation != set.Generation || len(u.generations) > 2*len(owned) {
		*u = upToDate{set.UID, set.Generation, make(map[types.UID]int64, len(owned))}
	}
	var outdated []scale.Outdated
	selector := scale.Selector(set.Spec.Selector)
	for _, machine := range owned {
		mark := members.MarkFor(set, machine)
		choices := scarcity.Outdated(set, machine)
		unchanged := machine.Generation > 0 && u.generations[machine.UID] == machine.Generation && mark == reserve.MarkOf(&machine.Spec)
		if unchanged && !choices || !counts.Active(machine) || !selector.Matches(labels.Set(machine.Labels)) {
			continue
		}
		differences := scale.Differences(reserve.Marked(&set.Spec.Template.Spec, mark), &machine.Spec)
		if choices {
			differences = append(differences, "list of fallback classes")
		}
		if len(differences) > 0 {
			outdated = append(outdated, scale.Outdated{Machine: machine, Differences: differences, Mark: mark})
		} else {
			u.generations[machine.UID] = machine.Generation
		}
	}
	return outdated
}

// failures counts consecutive failures of Machines before they joined, for the back-off of a set.
type failures struct {
	// of is the version that failed. A change to the set or class resets the count.
	of version
	// rounds is the number of failures. Machines that were created together count as one round.
	rounds int
	// first and newest are the creation times of the newest Machine in the first and in the last round. They
	// are times of the API server's clock, and must not be compared with this process's clock.
	first, newest metav1.Time
	// notBefore is when the next Machines may be created, and delay is the current delay.
	notBefore time.Time
	delay     time.Duration
}

// version identifies a version of a set and of its class, which may not exist.
type version struct {
	set, class                     types.UID
	setGeneration, classGeneration int64
}

// count counts a new round if one of its Machines was deleted without having joined, and returns that Machine.
func (s *failures) count(f scale.Facts, of version, deleted []scale.Operation) *v1alpha1.Machine {
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

// until returns when the set may create Machines again. A Machine that became available resets the count.
func (s *failures) until(owned []*v1alpha1.Machine, of version) time.Time {
	reset := s.of != of
	for _, machine := range owned {
		reset = reset || counts.Usable(machine) && s.first.Before(&machine.CreationTimestamp)
	}
	if reset {
		*s = failures{}
	}
	return s.notBefore
}

// backOff counts Machines that never joined, and returns when the set may create other Machines.
func (c *Controller) backOff(ctx context.Context, f scale.Facts, of version, deleted []scale.Operation) time.Time {
	failures := &c.memory.Of(client.ObjectKeyFromObject(f.Set)).failures
	last := failures.count(f, of, deleted)
	if last == nil || failures.delay == 0 {
		return f.NotBefore
	}
	why := messages.Shorten(last.Status.LastOperation.Description, maxEventMessage/2)
	text := fmt.Sprintf("Machines failed before they joined, %d times in a row: "+messages.NextMade+"%s at the earliest", failures.rounds, failures.delay)
	if why != "" {
		text += messages.LastFailed + last.Name + ": " + why
	}
	annotations := map[string]string{
		v1alpha1.EventAnnotationCause: v1alpha1.CauseMachineFailed, v1alpha1.EventAnnotationObjects: last.Name,
		v1alpha1.EventAnnotationUntil: failures.notBefore.UTC().Format(time.RFC3339),
	}
	if code := last.Status.LastOperation.ErrorCode; code != "" {
		annotations[v1alpha1.EventAnnotationCode] = code
	}
	c.Events.AnnotatedEventf(f.Set, annotations, corev1.EventTypeWarning, "BackOff", "%s", text)
	ctrl.LoggerFrom(ctx).Info("machines keep failing", "times", failures.rounds, "delay", failures.delay)
	return failures.notBefore
}
