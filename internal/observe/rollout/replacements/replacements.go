// Package replacements reports which unhealthy Machines of a MachineDeployment would be replaced,
// and which would wait and why. It only reads.
package replacements

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// Settings are the inputs of the decision.
type Settings struct {
	// Policy is the replacement policy of the deployment, or nil if it has none.
	Policy *v1alpha1.ReplacementPolicy
	// HealthTimeout and MaxReplacements are the values of the manager's flags.
	HealthTimeout   time.Duration
	MaxReplacements intstr.IntOrString
	// Zone returns the zone of a Machine's class, or "" if it is unknown.
	Zone func(machine *v1alpha1.Machine) string
}

// Unhealthy is an unhealthy Machine.
type Unhealthy struct {
	Machine *v1alpha1.Machine
	// Due is when the health timeout expires; zero if it is disabled.
	Due time.Time
	// Verdict is whether the Machine may be replaced when it is due, in the current state of the pool.
	Verdict budget.Verdict
}

// Of returns the unhealthy Machines of a pool, sorted by when their timeouts expire. Each verdict
// assumes that the Machines before it are replaced. Past replacements are estimated from the
// Machines.
func Of(machines []*v1alpha1.Machine, of Settings, now time.Time) []Unhealthy {
	pool := budget.Pool{Zone: of.Zone, Limit: of.MaxReplacements, Now: now}
	var all []Unhealthy
	for _, machine := range machines {
		member := budget.Member{Machine: machine, Role: budget.RoleOf(machine)}
		pool.Members = append(pool.Members, member)
		pool.Past = append(pool.Past, budget.Guess(member, now)...)
		if machine.DeletionTimestamp.IsZero() && budget.Unhealthy(machine) {
			all = append(all, Unhealthy{Machine: machine, Due: due(machine, of.HealthTimeout)})
		}
	}
	slices.SortFunc(all, func(a, b Unhealthy) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.Machine.Name, b.Machine.Name))
	})
	for i := range all {
		machine := all[i].Machine
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed || all[i].Due.IsZero() {
			continue
		}
		if all[i].Verdict = pool.Decide(of.Policy, machine); all[i].Verdict.Allowed() {
			at := slices.IndexFunc(pool.Members, func(member budget.Member) bool { return member.Machine == machine })
			pool.Members[at].Role = budget.Outgoing
			pool.Past = append(pool.Past, budget.Past{Machine: machine, At: now})
		}
	}
	return all
}

func due(machine *v1alpha1.Machine, flag time.Duration) time.Time {
	if timeouts.HealthDisabled(machine) {
		return time.Time{}
	}
	return timeouts.Health(machine, flag).Deadline(machine.Status.CurrentStatus.LastUpdateTime.Time)
}

// Fate describes whether and when the Machine is replaced.
func (u Unhealthy) Fate(now time.Time) string {
	switch left := u.Due.Sub(now); {
	case u.Machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && u.Machine.Status.CurrentStatus.PreserveExpiryTime != nil:
		return "no, it is preserved"
	case u.Machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed:
		return "yes, it is Failed"
	case u.Due.IsZero():
		return "no, its health timeout is disabled"
	case !u.Verdict.Allowed():
		return "waits: " + cmp.Or(u.Verdict.Reason, "other machines are being replaced")
	case left > 0:
		return "yes, in " + duration.HumanDuration(left) + " unless it recovers"
	default:
		return "yes, now"
	}
}
