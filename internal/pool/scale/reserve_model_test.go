package scale

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
)

// member is a Machine of the model. It is older than the following ones.
type member struct {
	phase v1alpha1.MachinePhase
	// marked reports that its spec makes it an excess Machine. Named reports that it was named for deletion, and
	// held that it is preserved.
	marked, named, held bool
}

// size is the maximum number of Machines in the model, and most the maximum of replicas of each kind.
const (
	size = 5
	most = 2
)

// pool is a state of the model: the replicas of the set and its Machines. Machines without a phase do not
// exist.
type pool struct {
	forPods, excess int
	machines        [size]member
	// users is how many more events of users may happen.
	users int
}

// facts returns the facts for the plan of the set.
func (p pool) facts() Facts {
	set := newSet(int32(p.forPods + p.excess))
	set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: noon.Format(time.RFC3339)}
	if p.excess > 0 {
		set.Annotations[v1alpha1.AnnotationKeyExcessReplicas] = strconv.Itoa(p.excess)
	}
	f := Facts{Set: set, Current: true, Now: noon}
	for i, m := range p.machines {
		if m.phase == "" {
			continue
		}
		object := machine(strconv.Itoa(i), phase(m.phase), age(time.Duration(size-i)*time.Minute))
		object.UID, object.Spec = types.UID(strconv.Itoa(i)), *reserve.Marked(&object.Spec, map[bool]reserve.Mark{true: reserve.NoSchedule}[m.marked])
		if m.named {
			marked(noon.Add(-time.Hour))(object)
		}
		if m.held {
			object.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: noon.Add(time.Hour)}
		}
		f.Owned = append(f.Owned, object)
	}
	f.Reserve = Members(set, f.Owned, noon)
	for _, object := range f.Owned {
		if mark := f.Reserve.MarkFor(set, object); mark != reserve.MarkOf(&object.Spec) {
			f.Outdated = append(f.Outdated, Outdated{Machine: object, Differences: []string{"node template"}, Mark: mark})
		}
	}
	return f
}

// tidy closes the gaps between Machines.
func (p pool) tidy() pool {
	all := slices.DeleteFunc(slices.Clone(p.machines[:]), func(m member) bool { return m.phase == "" })
	p.machines = [size]member{}
	copy(p.machines[:], all)
	return p
}

// pass carries out a plan. A deleted Machine is gone immediately. It returns the number of changes, and an
// error in the plan.
func (p pool) pass() (after pool, did int, wrong string) {
	f, before, born, lost := p.facts(), p, []member{}, 0
	for _, op := range Plan(f) {
		did++
		switch op.Action {
		case Update:
			is := &p.machines[at(op.Machine)]
			is.marked = f.Reserve[op.Machine.UID]
			if is.marked && is.held {
				wrong = "a preserved machine joins the reserve"
			}
		case Delete:
			lost += pool{machines: [size]member{before.machines[at(op.Machine)]}}.usable()
			p.machines[at(op.Machine)] = member{}
		case Create:
			for n := range op.Count {
				born = append(born, member{phase: v1alpha1.MachinePending, marked: n >= op.Count-op.Excess})
			}
		default:
			wrong = fmt.Sprintf("unexpected operation %v", op.Action)
		}
	}
	p = p.tidy()
	exist, had := p.count(false)+p.count(true), before.usable()
	switch free := p.count(false); {
	case had-lost < min(p.forPods, had) && !slices.ContainsFunc(p.machines[:], func(m member) bool { return m.held }): // those are never deleted
		wrong = fmt.Sprintf("%d of %d machines with pods are deleted, and %d are desired", lost, had, p.forPods)
	case exist < before.count(false)+before.count(true): // machines for pods may have been unusable
	case free < min(p.forPods, exist):
		wrong = fmt.Sprintf("%d of %d machines are for pods, want %d: excess machines must be used first", free, exist, p.forPods)
	case p.count(true) > max(p.excess, before.count(true)):
		wrong = fmt.Sprintf("%d machines are in excess, want %d", p.count(true), p.excess)
	}
	copy(p.machines[exist+p.failed():], born)
	return p, did, wrong
}

// count returns how many Machines that have not failed are in excess or not.
func (p pool) count(marked bool) (n int) {
	for _, m := range p.machines {
		if m.phase != "" && m.phase != v1alpha1.MachineFailed && m.marked == marked {
			n++
		}
	}
	return n
}

// usable returns how many Machines can be used for Pods and were not named for deletion.
func (p pool) usable() (n int) {
	for _, m := range p.machines {
		if m.phase == v1alpha1.MachineRunning && !m.marked && !m.named {
			n++
		}
	}
	return n
}

func (p pool) failed() (n int) {
	for _, m := range p.machines {
		if m.phase == v1alpha1.MachineFailed {
			n++
		}
	}
	return n
}

func at(machine *v1alpha1.Machine) int {
	i, _ := strconv.Atoi(machine.Name)
	return i
}

// next returns the states after an event: a Machine joins, fails, is preserved, or is named for deletion while
// the replicas shrink, or the replicas of the set change.
func (p pool) next() (after []pool) {
	for i, m := range p.machines {
		if next := p; m.phase == v1alpha1.MachinePending {
			next.machines[i].phase = v1alpha1.MachineRunning
			after = append(after, next)
		}
		if m.phase != v1alpha1.MachineRunning || p.users == 0 {
			continue
		}
		next := p
		next.users--
		next.machines[i].phase = v1alpha1.MachineFailed
		after = append(after, next)
		next.machines[i].phase, next.machines[i].held = m.phase, true
		after = append(after, next)
		if next.machines[i] = m; p.forPods > 0 && !m.held {
			next.machines[i].named = true
			next.forPods--
			after = append(after, next)
		}
	}
	for n := range most + 1 {
		if next := p; p.users > 0 {
			next.users--
			next.forPods = n
			after = append(after, next)
			next.forPods, next.excess = p.forPods, n
			after = append(after, next)
		}
	}
	return after
}

// end returns the final state of the set if no Machine is preserved and nothing else changes.
func (p pool) end() (pool, string) {
	for i := range p.machines {
		p.machines[i].held = false
	}
	for range 10 {
		next, did, _ := p.pass()
		if did == 0 {
			if is, free := next.count(true), next.count(false); is != p.excess || free != p.forPods {
				return p, fmt.Sprintf("%d machines are for pods and %d in excess", free, is)
			}
			return p, ""
		}
		p = next
		for i := range p.machines {
			if p.machines[i].phase == v1alpha1.MachinePending {
				p.machines[i].phase = v1alpha1.MachineRunning
			}
		}
	}
	return p, "the set is written forever"
}

// TestReserve_Model visits all states of a set with a few Machines whose replicas and reserve change at any
// time, and whose Machines fail, are preserved and are named for deletion. Machines are taken from the reserve
// before Machines for Pods are deleted or others are created, no preserved Machine joins it, and it is never
// too large. In the end, the set has its replicas, exactly the excess Machines are marked, and nothing is
// written.
func TestReserve_Model(t *testing.T) {
	t.Parallel()
	first := pool{forPods: 1, excess: 1, users: 4}
	seen, queue := map[pool]bool{first: true}, []pool{first}
	for ; len(queue) > 0; queue = queue[1:] {
		p := queue[0]
		passed, _, wrong := p.pass()
		if wrong != "" {
			t.Fatalf("%s: from %+v to %+v", wrong, p, passed)
		}
		if end, wrong := p.end(); wrong != "" {
			t.Fatalf("%s: from %+v it comes to %+v", wrong, p, end)
		}
		for _, next := range append(p.next(), passed) {
			if !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	t.Logf("%d states", len(seen))
}
