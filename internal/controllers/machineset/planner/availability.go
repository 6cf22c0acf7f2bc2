package planner

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Available reports whether a Machine can be used.
func Available(machine *v1alpha1.Machine) bool {
	phase := machine.Status.CurrentStatus.Phase
	return phase == v1alpha1.MachineRunning || phase == v1alpha1.MachineAvailable
}

// AvailableIn is the time after which a usable Machine counts as available: zero if it does
// already. The time runs from when its Node turned ready. Without one, or if the Node's clock
// is so far ahead that it says to have been ready only later, it runs from when the Machine's
// phase changed. If that is yet to come, since a clock was set back, it begins only now.
func AvailableIn(machine *v1alpha1.Machine, f Facts) time.Duration {
	if !f.EnforceMinReady {
		return 0
	}
	since := machine.Status.CurrentStatus.LastUpdateTime
	for _, condition := range machine.Status.Conditions {
		if condition.Type == corev1.NodeReady && (since.IsZero() || condition.LastTransitionTime.Before(&since)) {
			since = condition.LastTransitionTime
		}
	}
	wanted := time.Duration(f.Set.Spec.MinReadySeconds) * time.Second
	return min(wanted, max(0, since.Add(wanted).Sub(f.Now)))
}

// RequeueAfter is the time after which something changes without an event: a back-off ends, a
// Machine becomes available, a preservation runs out. Zero is never.
func RequeueAfter(f Facts, notBefore time.Time) time.Duration {
	soonest := max(0, notBefore.Sub(f.Now))
	consider := func(after time.Duration) {
		if after > 0 && (soonest == 0 || after < soonest) {
			soonest = after
		}
	}
	for _, machine := range f.Owned {
		if Active(machine) && Available(machine) {
			consider(AvailableIn(machine, f))
		}
		if expiry := machine.Status.CurrentStatus.PreserveExpiryTime; expiry != nil {
			consider(expiry.Sub(f.Now))
		}
	}
	return soonest
}
