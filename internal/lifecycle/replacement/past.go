package replacement

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// past records when Machines became Failed because of their health, for budgets that count them over a period.
// It is not stored. What other processes did is estimated from the Machines, and rather overestimated.
type past struct {
	// began is when this process began to replace Machines.
	began time.Time
	pools map[types.NamespacedName]map[types.UID]budget.Past
}

// Begin sets the time when this process began to replace Machines. Earlier replacements are unknown to it.
func (r *Limiter) Begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.past.began = now
}

// add records that a Machine becomes Failed, if its policy counts replacements over a period.
func (p *past) add(pool types.NamespacedName, req Request) {
	counted := func(b v1alpha1.ReplacementBudget) bool { return b.Within != nil }
	if req.Policy == nil || !slices.ContainsFunc(req.Policy.Budgets, counted) {
		return
	}
	if p.pools == nil {
		p.pools = map[types.NamespacedName]map[types.UID]budget.Past{}
	}
	if p.pools[pool] == nil {
		p.pools[pool] = map[types.UID]budget.Past{}
	}
	if _, known := p.pools[pool][req.Machine.UID]; !known {
		p.pools[pool][req.Machine.UID] = budget.Past{Machine: req.Machine.DeepCopy(), At: req.Now}
	}
}

func (p *past) remove(pool types.NamespacedName, machine types.UID) {
	delete(p.pools[pool], machine)
}

// of returns the records of a pool's Machines that became Failed, and estimates for other processes.
func (p *past) of(pool *pool, now time.Time) []budget.Past {
	known := p.pools[pool.name]
	maps.DeleteFunc(known, func(_ types.UID, it budget.Past) bool { return now.Sub(it.At) >= budget.Longest })
	if len(known) == 0 {
		delete(p.pools, pool.name)
	}
	all := slices.Collect(maps.Values(known))
	for m, guess := range pool.kinds.guesses {
		if _, ours := known[m.uid]; !ours {
			all = append(all, guess)
		}
	}
	return all
}
