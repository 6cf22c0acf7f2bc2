package budget

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Pool is what is known about the Machines of a pool. It is read-only.
type Pool struct {
	Members []Member
	// Past are the Machines that are known to have become Failed because of their health.
	Past []Past
	// Zone returns the zone of a Machine's class, or an empty string if it is unknown.
	Zone func(machine *v1alpha1.Machine) string
	// Limit is how many Machines may be replaced at the same time if the policy has no budgets. It is a number
	// or a percentage, as in ReplacementBudget, and counts as at least 1.
	Limit intstr.IntOrString
	Now   time.Time
}

// Member is a Machine of a pool.
type Member struct {
	Machine *v1alpha1.Machine
	// Role is the role of the Machine in the replacements of the pool.
	Role Role
	// Others is how many other Machines of the same Kind this member also stands for. Only Decide uses it. The
	// Machine that Decide decides on must be a separate member.
	Others int
}

// Past is a Machine that became Failed because of its health.
type Past struct {
	Machine *v1alpha1.Machine
	At      time.Time
	// Guessed reports that this is an assumption: the Machine, or the one that it replaced, may have become
	// Failed.
	Guessed bool
}

// Guess returns replacements before a time for which no records exist, as far as a Machine suggests them. A
// Machine that was created before that time may have replaced another one. An outgoing Machine may have become
// Failed because of its health.
func Guess(member Member, before time.Time) []Past {
	at := member.Machine.CreationTimestamp.Time
	if member.Role == Outgoing {
		at = member.Machine.Status.CurrentStatus.LastUpdateTime.Time
	}
	if !at.Before(before) {
		return nil
	}
	return []Past{{Machine: member.Machine, At: at, Guessed: true}}
}

// Verdict is whether a Machine may become Failed because of its health now. In the zero value, it may.
type Verdict struct {
	// Cause is why it may not, as in v1alpha1.CauseReplacementDelayed. It is empty if the Machine may become
	// Failed.
	Cause string
	// Reason describes to users what the Machine waits for. It is empty if the pool's limit is reached.
	Reason string
}

// Allowed reports whether the Machine may become Failed.
func (v Verdict) Allowed() bool { return v.Cause == "" }

// Decide returns the verdict on a Machine of the pool. If the policy is nil, only the pool's limit applies.
func (p Pool) Decide(policy *v1alpha1.ReplacementPolicy, machine *v1alpha1.Machine) Verdict {
	if policy == nil {
		policy = &v1alpha1.ReplacementPolicy{}
	}
	zone := p.zone(machine)
	out := policy.ZoneOutage != "" && zone != "" && p.Lost(zone)
	if out && policy.ZoneOutage == v1alpha1.ZoneOutageWait {
		return Verdict{v1alpha1.CauseZoneOutage, fmt.Sprintf("all machines in zone %s are unhealthy; waiting for the zone to recover", zone)}
	}
	if len(policy.Budgets) == 0 && !out {
		if p.busy(machine) >= max(1, Share(p.Limit, p.size())) {
			return Verdict{Cause: v1alpha1.CauseReplacementDelayed}
		}
	}
	for _, budget := range policy.Budgets {
		if reason := p.spent(budget, machine); reason != "" {
			return Verdict{v1alpha1.CauseReplacementDelayed, reason}
		}
	}
	return Verdict{}
}

// spent returns why a budget does not allow replacing a Machine, or an empty string if it does.
func (p Pool) spent(budget v1alpha1.ReplacementBudget, machine *v1alpha1.Machine) string {
	most := Share(budget.Max, p.groupSize(machine, budget.Per))
	group := ""
	if budget.Per != "" {
		group = fmt.Sprintf(" with %s %s", budget.Per, cmp.Or(p.value(machine, budget.Per), "unset"))
	}
	switch {
	case most == 0:
		return fmt.Sprintf("a budget of %s does not allow replacing machines%s", budget.Max.String(), group)
	case budget.Within == nil && p.replacements(machine, budget.Per) >= most:
		return fmt.Sprintf("no more than %s may be replaced at the same time%s", budget.Max.String(), group)
	case budget.Within == nil:
		return ""
	}
	known, guessed := p.recent(budget.Per, budget.Within.Duration, machine)
	limit := fmt.Sprintf("no more than %s may be replaced within %s%s", budget.Max.String(), duration.HumanDuration(budget.Within.Duration), group)
	switch {
	case known >= most:
		return limit
	case known+guessed >= most:
		return limit + ", and recently created machines may be replacements from before the manager started"
	}
	return ""
}

func (p Pool) size() int {
	size := 0
	for _, member := range p.Members {
		size += 1 + member.Others
	}
	return size
}

// busy counts the replacements of other Machines of the pool. A replacement is an outgoing Machine, an incoming
// one, or a pair of both.
func (p Pool) busy(machine *v1alpha1.Machine) int {
	var counts [Incoming + 1]int
	for _, member := range p.Members {
		if member.Machine.UID != machine.UID {
			counts[member.Role] += 1 + member.Others
		}
	}
	return max(counts[Outgoing], counts[Incoming])
}

// replacements counts the replacements of other Machines in a Machine's group. The count limits both how many
// Machines are Failed or still being deleted, and how many are missing. A Machine that is not being deleted yet
// has no successor, so each incoming Machine replaces one that is being deleted.
func (p Pool) replacements(machine *v1alpha1.Machine, per string) int {
	alone, leaving, coming := 0, 0, 0
	for _, member := range p.Members {
		switch other := member.Machine; {
		case other.UID == machine.UID || !p.together(other, machine, per):
		case member.Role == Incoming:
			coming += 1 + member.Others
		case member.Role == Outgoing && other.DeletionTimestamp.IsZero():
			alone += 1 + member.Others
		case member.Role == Outgoing:
			leaving += 1 + member.Others
		}
	}
	return alone + max(leaving, coming)
}

// recent counts the other Machines in a Machine's group that became Failed within the given time: those that
// are known to have, and those that are assumed to have.
func (p Pool) recent(per string, within time.Duration, machine *v1alpha1.Machine) (known, guessed int) {
	for _, past := range p.Past {
		switch {
		case past.Machine.UID == machine.UID || p.Now.Sub(past.At) >= within || !p.together(past.Machine, machine, per):
		case past.Guessed:
			guessed++
		default:
			known++
		}
	}
	return known, guessed
}

// groupSize returns how many Machines are in a Machine's group. Machines that are being deleted do not count:
// either others replace them, or they are no longer desired.
func (p Pool) groupSize(machine *v1alpha1.Machine, per string) int {
	size := 0
	for _, member := range p.Members {
		if member.Machine.DeletionTimestamp.IsZero() && p.together(member.Machine, machine, per) {
			size += 1 + member.Others
		}
	}
	return size
}

// together reports whether two Machines are in the same group.
func (p Pool) together(a, b *v1alpha1.Machine, per string) bool {
	return per == "" || p.value(a, per) == p.value(b, per)
}

// value returns the value of a label of a Machine, or else of the node that its template describes.
func (p Pool) value(machine *v1alpha1.Machine, key string) string {
	if key == corev1.LabelTopologyZone {
		return p.zone(machine)
	}
	return ownValue(machine, key)
}

func (p Pool) zone(machine *v1alpha1.Machine) string {
	zone := explicitZone(machine)
	if zone != "" || p.Zone == nil {
		return zone
	}
	return p.Zone(machine)
}

// minUnhealthy is how many unhealthy Machines a zone outage requires. A single unhealthy Machine does not show
// whether the Machine or the zone failed.
const minUnhealthy = 2

// Lost reports whether a zone has an outage: two or more of its Machines are unhealthy, and none is healthy.
// Machines that have not joined yet or are being deleted do not count.
func (p Pool) Lost(zone string) bool {
	unhealthy := 0
	for _, member := range p.Members {
		switch {
		case !member.Machine.DeletionTimestamp.IsZero() || p.zone(member.Machine) != zone:
		case Unhealthy(member.Machine):
			unhealthy += 1 + member.Others
		case Joined(member.Machine):
			return false
		}
	}
	return unhealthy >= minUnhealthy
}

// Share returns the number of Machines that a limit allows in a group of the given size. A percentage is
// rounded down, but to at least 1 unless it is 0%. An invalid limit allows none.
func Share(limit intstr.IntOrString, size int) int {
	number, _ := intstr.GetScaledValueFromIntOrPercent(&limit, size, false) // 0 if invalid
	if most, _ := intstr.GetScaledValueFromIntOrPercent(&limit, 100, false); most > 0 {
		number = max(1, number)
	}
	return max(0, number)
}
