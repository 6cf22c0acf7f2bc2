// Package orphaning recognizes owners whose dependents are released, not deleted. It imports no client, so that
// planners can ask it.
package orphaning

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pending reports whether the garbage collector has yet to release the dependents of an owner that
// is being deleted. It releases those that it knows, and then removes its finalizer.
func Pending(owner metav1.Object) bool {
	return owner.GetDeletionTimestamp() != nil && slices.Contains(owner.GetFinalizers(), metav1.FinalizerOrphanDependents)
}
