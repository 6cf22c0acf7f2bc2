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

// Pool is what is known of the Machines of a pool. It is read-only.
type Pool struct {
	Members []Member
	// Past are the Machines that became Failed for their health, as far as that is known.
	Past []Past
	// Zone returns the zone of a Machine; empty if it is not known.
	Zone func(machine *v1alpha1.Machine) string
	// Limit is how many Machines are replaced at the same time if no budget says so, a number or a percentage
	// as in ReplacementBudget, but at least 1.
	Limit intstr.IntOrString
	Now   time.Time
}

// Member is a Machine of a pool.
type Member struct {
	Machine *v1alpha1.Machine
	// Role is what the Machine is in the replacements of the pool.
	Role Role
}

// Past is a Machine that became Failed for its health.
type Past struct {
	Machine *v1alpha1.Machine
	At      time.Time
	// Guessed reports that it, or the Machine that it replaced, may have been.
	Guessed bool
}

// Guess returns what a Machine tells of replacements before a time of which nothing else is known: if it was made
// then, it may have replaced another one; if it goes, it may have become Failed for its health.
func Guess(member Member, before time.Time) []Past {
	at := member.Machine.CreationTimestamp.Time
	if member.Role == Going {
		at = member.Machine.Status.CurrentStatus.LastUpdateTime.Time
	}
	if !at.Before(before) {
		return nil
	}
	return []Past{{Machine: member.Machine, At: at, Guessed: true}}
}

// Verdict is whether a Machine may become Failed for its health now. The zero value is that it may.
type Verdict struct {
	// Cause why it may not, as in v1alpha1.CauseReplacementDelayed; empty if it may.
	Cause string
	// Reason says to people what it waits for; empty for others of its pool, by the pool's limit.
	Reason string
}

// Allowed reports whether the Machine may become Failed.
func (v Verdict) Allowed() bool { return v.Cause == "" }

// Decide decides about a Machine of the pool. A nil policy leaves it to the limit of the pool.
func (p Pool) Decide(policy *v1alpha1.ReplacementPolicy, machine *v1alpha1.Machine) Verdict {
	if policy == nil {
		policy = &v1alpha1.ReplacementPolicy{}
	}
	zone := p.zone(machine)
	out := policy.ZoneOutage != "" && zone != "" && p.Lost(zone)
	if out && policy.ZoneOutage == v1alpha1.ZoneOutageWait {
		return Verdict{v1alpha1.CauseZoneOutage, fmt.Sprintf("all machines in zone %s are unhealthy, and it waits for the zone", zone)}
	}
	if len(policy.Budgets) == 0 && !out {
		if p.busy(machine) >= max(1, Share(p.Limit, len(p.Members))) {
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

// spent says why a budget forbids to replace a Machine; empty if it does not.
func (p Pool) spent(budget v1alpha1.ReplacementBudget, machine *v1alpha1.Machine) string {
	most := Share(budget.Max, p.wanted(machine, budget.Per))
	group := ""
	if budget.Per != "" {
		group = fmt.Sprintf(" with %s %s", budget.Per, cmp.Or(p.value(machine, budget.Per), "unset"))
	}
	switch {
	case most == 0:
		return fmt.Sprintf("a budget of %s forbids to replace machines%s", budget.Max.String(), group)
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
		return limit + ", and younger machines may be replacements from before the manager began"
	}
	return ""
}

// busy counts the replacements of other Machines of the pool. A replacement is a Machine that goes, one that
// comes, or both.
func (p Pool) busy(machine *v1alpha1.Machine) int {
	var counts [Coming + 1]int
	for _, member := range p.Members {
		if member.Machine.UID != machine.UID {
			counts[member.Role]++
		}
	}
	return max(counts[Going], counts[Coming])
}

// replacements counts those of other Machines in the group of a Machine, so that no more than a budget are
// Failed or not gone yet, and no more than that are missing. One that is not being deleted has none yet that
// comes for it: of those that come, each is for another one.
func (p Pool) replacements(machine *v1alpha1.Machine, per string) int {
	alone, leaving, coming := 0, 0, 0
	for _, member := range p.Members {
		switch other := member.Machine; {
		case other.UID == machine.UID || !p.together(other, machine, per):
		case member.Role == Coming:
			coming++
		case member.Role == Going && other.DeletionTimestamp.IsZero():
			alone++
		case member.Role == Going:
			leaving++
		}
	}
	return alone + max(leaving, coming)
}

// recent counts the other Machines in the group of a Machine that became Failed within a time, and those of
// which that is guessed.
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

// wanted is how many Machines are in the group of a Machine, without those that are being deleted: others come
// for them, or they are not wanted any more.
func (p Pool) wanted(machine *v1alpha1.Machine, per string) int {
	wanted := 0
	for _, member := range p.Members {
		if member.Machine.DeletionTimestamp.IsZero() && p.together(member.Machine, machine, per) {
			wanted++
		}
	}
	return wanted
}

// together reports whether two Machines are in the same group.
func (p Pool) together(a, b *v1alpha1.Machine, per string) bool {
	return per == "" || p.value(a, per) == p.value(b, per)
}

// value returns the value of a label of a Machine, or that its node is to have.
func (p Pool) value(machine *v1alpha1.Machine, key string) string {
	if key == corev1.LabelTopologyZone {
		return p.zone(machine)
	}
	return cmp.Or(machine.Labels[key], machine.Spec.NodeTemplateSpec.Labels[key])
}

func (p Pool) zone(machine *v1alpha1.Machine) string {
	const key = corev1.LabelTopologyZone
	zone := cmp.Or(machine.Labels[key], machine.Spec.NodeTemplateSpec.Labels[key], machine.Annotations[v1alpha1.AnnotationKeyFailureDomain])
	if zone != "" || p.Zone == nil {
		return zone
	}
	return p.Zone(machine)
}

// fewest is of how many unhealthy Machines a zone is out. Of one alone it cannot be told whether it is the
// Machine or the zone.
const fewest = 2

// Lost reports whether a zone is out: two or more of its Machines are unhealthy, and none is healthy. Machines
// that have not joined yet, or that are being deleted, do not count.
func (p Pool) Lost(zone string) bool {
	unhealthy := 0
	for _, member := range p.Members {
		switch {
		case !member.Machine.DeletionTimestamp.IsZero() || p.zone(member.Machine) != zone:
		case Unhealthy(member.Machine):
			unhealthy++
		case Joined(member.Machine):
			return false
		}
	}
	return unhealthy >= fewest
}

// Share returns how many of so many Machines a limit is: a percentage is rounded down, and at least 1 unless
// it is 0%. What is neither is none.
func Share(limit intstr.IntOrString, size int) int {
	number, err := intstr.GetScaledValueFromIntOrPercent(&limit, size, false)
	if err != nil {
		return 0
	}
	if number == 0 && limit.Type == intstr.String {
		if most, _ := intstr.GetScaledValueFromIntOrPercent(&limit, 100, false); most > 0 {
			return 1
		}
	}
	return max(0, number)
}
