package machine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

func (e *explainer) creationTimeout() timeouts.Timeout {
	return timeouts.Creation(e.Machine, cmp.Or(e.Flags.Creation, timeouts.DefaultCreation))
}

func (e *explainer) healthTimeout() timeouts.Timeout {
	return timeouts.Health(e.Machine, cmp.Or(e.Flags.Health, timeouts.DefaultHealth))
}

func (e *explainer) drainTimeout() timeouts.Timeout {
	return timeouts.Drain(e.Machine, cmp.Or(e.Flags.Drain, timeouts.DefaultDrain))
}

// describe says how long a timeout is, and what set it.
func describe(t timeouts.Timeout, name string) string {
	source := "if the manager's --machine-" + name + "-timeout is that"
	switch t.Source {
	case timeouts.Spec:
		source = "spec." + name + "Timeout"
	case timeouts.Annotation:
		source = "by its annotation"
	}
	return fmt.Sprintf("%s (%s)", messages.Duration(t.Duration), source)
}

// givenUp says when the Machine becomes Failed, and what follows: at the earliest, since time in
// which no manager worked, or an API server was away, does not count.
func (e *explainer) givenUp(begin time.Time, t timeouts.Timeout, name, unless string) {
	e.Earliest(t.Ends(begin, report.Led(e.Lease)), failsUnless, "{unless}", unless, "{timeout}", describe(t, name))
	e.Next(time.Time{}, e.replacement("Then"))
}

// replacement says what follows for a Machine that failed.
func (e *explainer) replacement(when string) string {
	owner := metav1.GetControllerOfNoCopy(e.Machine)
	switch set := e.Owners.Set; {
	case owner == nil:
		return when + " nobody replaces it: no set owns it"
	case set == nil:
		return fmt.Sprintf("%s nobody replaces it: %s %s, which owns it, is gone", when, owner.Kind, owner.Name)
	case !set.DeletionTimestamp.IsZero():
		return fmt.Sprintf("%s nobody replaces it: machine set %s is being deleted", when, owner.Name)
	case frozen(set):
		return fmt.Sprintf("%s machine set %s deletes it. It creates another one when it is frozen no longer", when, owner.Name)
	default:
		return fmt.Sprintf("%s machine set %s deletes it and creates another one", when, set.Name)
	}
}

func frozen(set *v1alpha1.MachineSet) bool {
	return slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool {
		return c.Type == v1alpha1.MachineSetFrozen && c.Status == v1alpha1.ConditionTrue
	})
}
