package budget

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// place is a desired Machine of a pool. Its newest Machine is in a phase, and its previous Machine may still
// exist.
type place struct {
	phase   v1alpha1.MachinePhase
	leaving bool
}

// world is a state of a pool: its places, of which the first two are in zone a and the others in zone b, and
// how many ticks ago Machines became Failed, by zone and age. Failures that are too old for the rates are
// counted once.
type world struct {
	places [4]place
	past   [2][ticks + 1]int
}

// ticks is the period of the rates in the model, in ticks.
const ticks = 2

func zoneIn(place int) int { return place / 2 }

// pool returns the pool of a world as the budgets see it.
func (w world) pool(size int) Pool {
	p := Pool{Now: now}
	member := func(name string, zone int, phase v1alpha1.MachinePhase) *v1alpha1.Machine {
		m := &v1alpha1.Machine{}
		m.UID, m.Labels = types.UID(name), map[string]string{corev1.LabelTopologyZone: string(rune('a' + zone))}
		m.Status.CurrentStatus.Phase = phase
		return m
	}
	for i, at := range w.places[:size] {
		m := member(fmt.Sprint(i), zoneIn(i), at.phase)
		p.Members = append(p.Members, Member{Machine: m, Role: RoleOf(m)})
	}
	for i, at := range w.places[:size] {
		if at.leaving {
			m := member(fmt.Sprint("old", i), zoneIn(i), v1alpha1.MachineTerminating)
			m.DeletionTimestamp = &metav1.Time{Time: now}
			p.Members = append(p.Members, Member{Machine: m, Role: RoleOf(m)})
		}
	}
	for zone, ages := range w.past {
		for age, count := range ages {
			for n := range count {
				m := member(fmt.Sprint("past", zone, age, n), zone, failed)
				p.Past = append(p.Past, Past{Machine: m, At: now.Add(-time.Duration(age) * time.Minute)})
			}
		}
	}
	return p
}

// advance returns the worlds that can follow by an action of the controllers or the passage of time.
func (w world) advance(policy *v1alpha1.ReplacementPolicy, size int) (after []world) {
	at := func(i int, is place) { w.places[i] = is; after = append(after, w) }
	was, p := w, w.pool(size)
	for i, is := range was.places[:size] {
		w = was
		switch {
		case is.phase == unknown && p.Decide(policy, p.Members[i].Machine).Allowed():
			if rated(policy) {
				w.past[zoneIn(i)][0]++
			}
			at(i, place{failed, is.leaving})
		case is.phase == failed && !is.leaving: // its set deletes it and creates another one
			at(i, place{v1alpha1.MachinePending, true})
		case is.phase == v1alpha1.MachinePending:
			at(i, place{running, is.leaving})
		}
		if w = was; is.leaving {
			at(i, place{is.phase, false})
		}
	}
	if w = was; was.recent(0)+was.recent(1) > 0 {
		for zone := range w.past {
			copy(w.past[zone][1:], was.past[zone][:])
			w.past[zone][0] = 0
			w.past[zone][ticks] = min(1, w.past[zone][ticks]+was.past[zone][ticks])
		}
		after = append(after, w)
	}
	return after
}

// disturb returns the worlds that can follow when a node fails or recovers.
func (w world) disturb(size int) (after []world) {
	for i, is := range w.places[:size] {
		next := w
		switch is.phase {
		case running:
			next.places[i].phase = unknown
		case unknown:
			next.places[i].phase = running
		default:
			continue
		}
		after = append(after, next)
	}
	return after
}

func rated(policy *v1alpha1.ReplacementPolicy) bool {
	return slices.ContainsFunc(policy.Budgets, func(b v1alpha1.ReplacementBudget) bool { return b.Within != nil })
}

// recent returns how many Machines of a zone became Failed within the period of the rates.
func (w world) recent(zone int) (n int) {
	for _, count := range w.past[zone][:ticks] {
		n += count
	}
	return n
}

// exceeded returns which budget was exceeded. It counts as documented: Machines that are Failed or still being
// deleted, missing Machines, and Machines that became Failed within the period.
func (w world) exceeded(policy *v1alpha1.ReplacementPolicy, size int) string {
	for _, budget := range policy.Budgets {
		groups := [][]int{{0, 1}}
		if budget.Per != "" {
			groups = [][]int{{0}, {1}}
		}
		for _, zones := range groups {
			going, missing, recent, places := 0, 0, 0, 0
			for i, is := range w.places[:size] {
				if !slices.Contains(zones, zoneIn(i)) {
					continue
				}
				places++
				if is.leaving {
					going++
				}
				if is.phase == failed {
					going++
				}
				if is.phase == failed || is.phase == v1alpha1.MachinePending {
					missing++
				}
			}
			for _, zone := range zones {
				recent += w.recent(zone)
			}
			most := Share(budget.Max, places)
			if is := max(going, missing); budget.Within == nil && is > most || budget.Within != nil && recent > most {
				return fmt.Sprintf("%d outgoing, %d missing, %d recently, at most %d allowed, in %v", going, missing, recent, most, zones)
			}
		}
	}
	return ""
}

// settle lets the controllers and time advance until nothing changes, and returns the final world.
func (w world) settle(policy *v1alpha1.ReplacementPolicy, size int) (world, bool) {
	for range 100 {
		next := w.advance(policy, size)
		if len(next) == 0 {
			return w, true
		}
		w = next[0]
	}
	return w, false
}

// healthy reports whether no Machine needs a replacement, except in a zone that the policy waits for.
func (w world) healthy(policy *v1alpha1.ReplacementPolicy, size int) bool {
	lost := func(i int) bool {
		zone := zoneIn(i)
		return policy.ZoneOutage == v1alpha1.ZoneOutageWait && size >= 2*zone+2 && w.places[2*zone].phase == unknown && w.places[2*zone+1].phase == unknown
	}
	for i, is := range w.places[:size] {
		if is != (place{phase: running}) && !lost(i) {
			return false
		}
	}
	return true
}

// TestBudget_Model visits all states of a small pool in two zones, in which nodes fail and recover at any
// time. No budget is ever exceeded. When no more nodes fail, all failed Machines are replaced.
func TestBudget_Model(t *testing.T) {
	t.Parallel()
	wait, replace := v1alpha1.ZoneOutageWait, v1alpha1.ZoneOutageReplace
	for name, test := range map[string]struct {
		size    int
		outage  v1alpha1.ZoneOutagePolicy
		budgets []v1alpha1.ReplacementBudget
	}{
		"one":                       {4, "", []v1alpha1.ReplacementBudget{number(1)}},
		"two":                       {4, "", []v1alpha1.ReplacementBudget{number(2)}},
		"three":                     {4, "", []v1alpha1.ReplacementBudget{number(3)}},
		"half":                      {4, "", []v1alpha1.ReplacementBudget{percentage("50%")}},
		"one, as a percentage":      {4, "", []v1alpha1.ReplacementBudget{percentage("10%")}},
		"all":                       {4, "", []v1alpha1.ReplacementBudget{percentage("1000%")}},
		"one of a zone":             {4, "", []v1alpha1.ReplacementBudget{perZone(number(1))}},
		"half of a zone, and three": {4, "", []v1alpha1.ReplacementBudget{perZone(percentage("50%")), number(3)}},
		"two, a zone is waited for": {4, wait, []v1alpha1.ReplacementBudget{number(2)}},
		"two, also in an outage":    {4, replace, []v1alpha1.ReplacementBudget{number(2)}},
		"a rate":                    {3, "", []v1alpha1.ReplacementBudget{within(number(1), ticks*time.Minute)}},
		"a rate of two, a zone one": {3, "", []v1alpha1.ReplacementBudget{within(number(2), ticks*time.Minute), perZone(number(1))}},
		"a rate in each zone":       {3, "", []v1alpha1.ReplacementBudget{perZone(within(number(1), ticks*time.Minute))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := &v1alpha1.ReplacementPolicy{Budgets: test.budgets, ZoneOutage: test.outage}
			var first world
			for i := range first.places {
				first.places[i].phase = running
			}
			seen, queue := map[world]bool{first: true}, []world{first}
			for ; len(queue) > 0; queue = queue[1:] {
				w := queue[0]
				if wrong := w.exceeded(policy, test.size); wrong != "" {
					t.Fatalf("%s: %+v", wrong, w)
				}
				if end, over := w.settle(policy, test.size); !over || !end.healthy(policy, test.size) {
					t.Fatalf("%+v leads to %+v, settled: %v", w, end, over)
				}
				for _, next := range append(w.advance(policy, test.size), w.disturb(test.size)...) {
					if !seen[next] {
						seen[next] = true
						queue = append(queue, next)
					}
				}
			}
			t.Logf("%d states", len(seen))
		})
	}
}
