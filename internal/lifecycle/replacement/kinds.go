package replacement

import (
	"time"

	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// kinds counts the Machines of a pool for decisions by policies. A pool of thousands of Machines has few kinds.
type kinds struct {
	// labels are the labels by which the budgets group Machines.
	labels []string
	// began is when this process began to replace Machines.
	began time.Time
	// counts contains one member for each kind. The member stands for all Machines of the kind.
	counts map[budget.Kind]*budget.Member
	// guesses are assumed replacements in the past that a budget may still count.
	guesses map[*member]budget.Past
}

func newKinds(labels []string, began time.Time) *kinds {
	return &kinds{labels: labels, began: began, counts: map[budget.Kind]*budget.Member{}, guesses: map[*member]budget.Past{}}
}

// count adds a Machine if the change is 1, and removes it if the change is -1.
func (k *kinds) count(m *member, change int) {
	if change > 0 {
		k.add(m)
		return
	}
	delete(k.guesses, m)
	if same := k.counts[m.kind]; same.Others > 0 {
		same.Others--
	} else {
		delete(k.counts, m.kind)
	}
}

func (k *kinds) add(m *member) {
	counted := m.budgeted()
	m.kind = counted.Kind(k.labels)
	if same := k.counts[m.kind]; same != nil {
		same.Others++
	} else {
		counted.Machine = counted.Machine.DeepCopy()
		counted.Machine.UID = "" // a decision about this Machine must not treat the member as the Machine itself
		k.counts[m.kind] = &counted
	}
	oldest := k.began.Add(-2 * budget.Longest) // even if the clock is set back
	for _, guess := range budget.Guess(budget.Member{Machine: m.machine, Role: m.role}, k.began) {
		if guess.At.After(oldest) {
			k.guesses[m] = guess
		}
	}
}

func (k *kinds) members() []budget.Member {
	members := make([]budget.Member, 0, len(k.counts)+1)
	for _, member := range k.counts {
		members = append(members, *member)
	}
	return members
}
