package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Force says why a drain goes around PodDisruptionBudgets and waits for nothing.
type Force string

// The reasons for a forced drain.
const (
	// NotForced is a normal drain; the zero value.
	NotForced Force = ""
	// ForceRequested is a drain that somebody forces, by a label of the Machine.
	ForceRequested Force = "it was asked for"
	// ForceNotReady is the drain of a node that has not been Ready for too long to
	// expect that it ends its pods.
	ForceNotReady Force = "the node has not been Ready for over 5 minutes"
	// ForceReadonlyFilesystem is the drain of a node that could not write its disk for
	// too long.
	ForceReadonlyFilesystem Force = "the node's filesystem has been read-only for over 5 minutes"
	// ForceDeadline is a drain whose time is over. Drain finds this one out itself.
	ForceDeadline Force = "the drain timeout has passed"
)

// lostAfter is how long a node may be not Ready, or its filesystem read-only, until its
// pods are no longer asked to end.
const lostAfter = 5 * time.Minute

// readonlyFilesystem is the condition type of node-problem-detector.
const readonlyFilesystem = "ReadonlyFilesystem"

// ForceFor reports whether a drain has to be forced, and why. Requested is whether somebody
// asks for it; conditions are those that were recorded of the node. A Ready condition
// that is not True, and a ReadonlyFilesystem one that is not False, force once they are
// older than five minutes; conditions that are not there do not.
func ForceFor(requested bool, conditions []corev1.NodeCondition, now time.Time) Force {
	if requested {
		return ForceRequested
	}
	for i := range conditions {
		condition := &conditions[i]
		if now.Sub(condition.LastTransitionTime.Time) <= lostAfter {
			continue
		}
		switch {
		case condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue:
			return ForceNotReady
		case condition.Type == readonlyFilesystem && condition.Status != corev1.ConditionFalse:
			return ForceReadonlyFilesystem
		}
	}
	return NotForced
}

// ForceDue is the time from now on after which ForceFor may answer otherwise although
// nothing changes; zero if never.
func ForceDue(conditions []corev1.NodeCondition, now time.Time) time.Duration {
	var due time.Duration
	for i := range conditions {
		at := conditions[i].LastTransitionTime.Add(lostAfter + time.Second)
		if ForceFor(false, conditions[i:i+1], at) == NotForced || !at.After(now) {
			continue
		}
		if left := at.Sub(now); due == 0 || left < due {
			due = left
		}
	}
	return due
}
