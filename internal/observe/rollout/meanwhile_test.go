package rollout

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// fakeOf is an API server that has what is given.
func fakeOf(t *testing.T, g *given) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(g.deployment)
	for _, set := range g.sets {
		builder.WithObjects(set)
	}
	return builder.Build()
}

// TestAWriteIsMadeAgainIfAnotherWasFirst: what the other has changed may forbid it.
func TestAWriteIsMadeAgainIfAnotherWasFirst(t *testing.T) {
	g := give(rolls)
	key := client.ObjectKeyFromObject(g.deployment)
	live, first := fakeOf(t, g), true
	c := interceptor.NewClient(live, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
		if first {
			first = false
			if _, err := Undo(ctx, live, key, 1); err != nil {
				t.Fatal(err)
			}
		}
		return c.Patch(ctx, object, patch, opts...)
	}})
	if err := Restart(t.Context(), c, key, noon); err == nil || !strings.Contains(err.Error(), "would take the restart back") {
		t.Errorf("answers %v", err)
	}
}

// TestUndoNamesTheRevision that was looked at, and wishes for nothing that is so already.
func TestUndoNamesTheRevision(t *testing.T) {
	g := give(rolls)
	c, key := fakeOf(t, g), client.ObjectKeyFromObject(g.deployment)
	pendingRollback := func() *v1alpha1.RollbackConfig {
		d, err := get(t.Context(), c, key)
		if err != nil {
			t.Fatal(err)
		}
		return d.Spec.RollbackTo
	}
	if _, err := Undo(t.Context(), c, key, 2); !errors.Is(err, ErrUnchanged) || pendingRollback() != nil {
		t.Errorf("answers %v, and wishes %v", err, pendingRollback())
	}
	if _, err := Undo(t.Context(), c, key, 0); err != nil || pendingRollback() == nil || pendingRollback().Revision != 1 {
		t.Errorf("answers %v, and wishes %v", err, pendingRollback())
	}
}
