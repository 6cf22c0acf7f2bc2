// Package replacements says which unhealthy Machines of a MachineDeployment would be replaced, and which would
// wait, and for what. It changes nothing.
package replacements

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// Settings are by what it is decided.
type Settings struct {
	// Policy of the deployment; nil if it has none.
	Policy *v1alpha1.ReplacementPolicy
	// HealthTimeout and MaxReplacements are flags of the manager.
	HealthTimeout   time.Duration
	MaxReplacements intstr.IntOrString
	// Zone returns the zone of a Machine's class; empty if it is not known.
	Zone func(machine *v1alpha1.Machine) string
}

// Unhealthy is an unhealthy Machine.
type Unhealthy struct {
	Machine *v1alpha1.Machine
	// Due is when its health timeout is over; zero if it has none.
	Due time.Time
	// Verdict is whether it may be replaced when it is due, as things are now.
	Verdict budget.Verdict
}

// Of returns the unhealthy Machines of a pool, those first whose timeouts are over first. Each verdict takes into
// account that those before are replaced. How many were replaced before is guessed from the Machines.
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

// Print writes a table.
func Print(out io.Writer, all []Unhealthy, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "No machine is unhealthy: none would be replaced.")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "MACHINE\tPHASE\tAGE OF PHASE\tREPLACED") // Flush has the error
	for _, it := range all {
		status := it.Machine.Status.CurrentStatus
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", it.Machine.Name, status.Phase, duration.HumanDuration(now.Sub(status.LastUpdateTime.Time)), it.fate(now))
	}
	return table.Flush()
}

// fate says what becomes of a Machine.
func (u Unhealthy) fate(now time.Time) string {
	switch left := u.Due.Sub(now); {
	case u.Machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && u.Machine.Status.CurrentStatus.PreserveExpiryTime != nil:
		return "no, it is preserved"
	case u.Machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed:
		return "yes, it is Failed"
	case u.Due.IsZero():
		return "no, its health timeout is disabled"
	case !u.Verdict.Allowed():
		return "waits: " + cmp.Or(u.Verdict.Reason, "others are being replaced")
	case left > 0:
		return "yes, in " + duration.HumanDuration(left) + " unless it recovers"
	default:
		return "yes, now"
	}
}
