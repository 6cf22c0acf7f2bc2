// Package orphaning detects owners whose dependents are released instead of deleted. It imports no client, so
// that planners can use it.
package orphaning

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pending reports whether an owner is being deleted and the garbage collector has not released its dependents
// yet. The garbage collector releases the dependents that it knows and then removes its finalizer.
func Pending(owner metav1.Object) bool {
	return owner.GetDeletionTimestamp() != nil && slices.Contains(owner.GetFinalizers(), metav1.FinalizerOrphanDependents)
}
