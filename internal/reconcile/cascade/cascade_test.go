package cascade

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/internal/reconcile/cascade/orphaning"
)

// TestOrphaned_UntilOwnerIsDeleted checks the time between the removal of the garbage collector's finalizer and
// the deletion of the owner.
func TestOrphaned_UntilOwnerIsDeleted(t *testing.T) {
	t.Parallel()
	owner := func(deleted bool, finalizers ...string) *corev1.Node {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "a", Finalizers: finalizers}}
		if deleted {
			node.DeletionTimestamp = &metav1.Time{}
		}
		return node
	}
	const orphan = metav1.FinalizerOrphanDependents
	alive, released, after := owner(false), owner(true, "ours", orphan), owner(true, "ours")
	for _, o := range []*corev1.Node{alive, after, owner(false, orphan)} {
		if orphaning.Pending(o) {
			t.Errorf("orphaning: %+v", o.ObjectMeta)
		}
	}
	if !orphaning.Pending(released) {
		t.Error("not orphaning")
	}
	ctx := t.Context()
	for name, seen := range map[string]func(*Orphaned){
		"in its first event": func(o *Orphaned) { o.Handler().Create(ctx, event.CreateEvent{Object: released}, nil) },
		"in a later one": func(o *Orphaned) {
			o.Handler().Update(ctx, event.UpdateEvent{ObjectOld: alive, ObjectNew: released}, nil)
		},
	} {
		var orphaned Orphaned
		orphaned.Handler().Create(ctx, event.CreateEvent{Object: alive}, nil)
		if orphaned.Has(alive) {
			t.Errorf("%s: counts as orphaning before it is deleted", name)
		}
		seen(&orphaned)
		orphaned.Handler().Update(ctx, event.UpdateEvent{ObjectOld: released, ObjectNew: after}, nil)
		if !orphaned.Has(after) {
			t.Errorf("%s: forgotten when the finalizer was removed", name)
		}
		orphaned.Handler().Delete(ctx, event.DeleteEvent{Object: after}, nil)
		if orphaned.Has(after) {
			t.Errorf("%s: remembered after the deletion", name)
		}
	}
}
