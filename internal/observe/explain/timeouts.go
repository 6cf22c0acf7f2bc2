package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// timeout is a time, and where it comes from.
type timeout struct {
	time.Duration
	from string
}

func (t timeout) String() string { return fmt.Sprintf("%s (%s)", brief(t.Duration), t.from) }

// brief writes a duration without parts that are zero: 20m0s is 20m.
func brief(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// creationTimeout is found as the manager does: annotation, spec, flag.
func (e *explainer) creationTimeout() timeout {
	if text, ok := e.Machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]; ok {
		if own, err := time.ParseDuration(text); err == nil && own >= 0 {
			return timeout{own, "by its annotation"}
		}
	}
	flag := cmp.Or(e.Timeouts.Creation, DefaultCreationTimeout)
	return e.override("creation", flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineCreationTimeout })
}

func (e *explainer) healthTimeout() timeout {
	flag := cmp.Or(e.Timeouts.Health, DefaultHealthTimeout)
	return e.override("health", flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineHealthTimeout })
}

func (e *explainer) drainTimeout() timeout {
	flag := cmp.Or(e.Timeouts.Drain, DefaultDrainTimeout)
	return e.override("drain", flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineDrainTimeout })
}

func (e *explainer) override(name string, flag time.Duration, field func(*v1alpha1.MachineConfiguration) *metav1.Duration) timeout {
	if config := e.Machine.Spec.MachineConfiguration; config != nil {
		if own := field(config); own != nil && own.Duration >= 0 {
			return timeout{own.Duration, "spec." + name + "Timeout"}
		}
	}
	return timeout{flag, "if the manager's --machine-" + name + "-timeout is that"}
}

// due is when a timeout is over that began at a time: at the earliest, since time in which
// no manager worked, or an API server was away, does not count.
func (e *explainer) due(begin time.Time, t timeout) time.Time {
	if worked := e.worked(); worked.After(begin) {
		begin = worked
	}
	return begin.Add(t.Duration)
}

// badConditions are the conditions that make the Machine unhealthy unless False.
func (e *explainer) badConditions() []string {
	if config := e.Machine.Spec.MachineConfiguration; config != nil && config.NodeConditions != nil {
		return strings.Split(*config.NodeConditions, ",")
	}
	if e.Timeouts.NodeConditions != nil {
		return e.Timeouts.NodeConditions
	}
	return defaultNodeConditions
}

// givenUp says when the Machine becomes Failed, and what follows.
func (e *explainer) givenUp(at time.Time, t timeout, unless string) {
	e.report.Next = append(e.report.Next, Step{
		At: at, Earliest: true, Text: sentence("The machine becomes Failed unless %s: its timeout is %v", unless, t),
	})
	e.next(time.Time{}, "%s", e.replacement("Then"))
}

// replacement says what follows for a Machine that failed.
func (e *explainer) replacement(when string) string {
	owner := metav1.GetControllerOfNoCopy(e.Machine)
	switch {
	case owner == nil:
		return when + " nobody replaces it: no set owns it"
	case e.Owners.Set == nil:
		return fmt.Sprintf("%s nobody replaces it: %s %s, which owns it, is gone", when, owner.Kind, owner.Name)
	case !e.Owners.Set.DeletionTimestamp.IsZero():
		return fmt.Sprintf("%s nobody replaces it: machine set %s is being deleted", when, owner.Name)
	case frozen(e.Owners.Set):
		return fmt.Sprintf("%s machine set %s deletes it. It creates another one when it is frozen no longer", when, owner.Name)
	default:
		return fmt.Sprintf("%s machine set %s deletes it and creates another one", when, e.Owners.Set.Name)
	}
}

func frozen(set *v1alpha1.MachineSet) bool {
	return slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool {
		return c.Type == v1alpha1.MachineSetFrozen && c.Status == v1alpha1.ConditionTrue
	})
}

// own is what the manager said last, in short: without the Machine's name, and without what
// is said better elsewhere.
func (e *explainer) own() string {
	said := strings.TrimPrefix(e.Machine.Status.LastOperation.Description, "Machine "+e.Key.Name+" ")
	said, _, _ = strings.Cut(said, ". "+messages.GivenUp)
	return said
}
