// Package shutdown keeps the end of a program from looking like a failure.
package shutdown

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Quiet returns a reconciler that calls another one, and forgets its error if its context ended meanwhile: the
// program is ending, which cancels requests that are under way, and nothing is tried again. Such an error would be
// logged and counted as one of the object. The next process reconciles every object.
func Quiet(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, request)
		if err != nil && ctx.Err() != nil {
			return reconcile.Result{}, nil
		}
		return result, err
	})
}
