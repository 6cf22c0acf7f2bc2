package shutdown_test

import (
	"context"
	"errors"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/internal/reconcile/shutdown"
)

func TestQuiet(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	failure := errors.New("refused")
	for name, test := range map[string]struct {
		ctx       context.Context
		err, want error
	}{
		"a failure while it runs":     {t.Context(), failure, failure},
		"a request that was cut":      {ended, context.Canceled, nil},
		"a failure at the end":        {ended, failure, nil},
		"a request that ran too long": {t.Context(), context.DeadlineExceeded, context.DeadlineExceeded},
		"nothing":                     {ended, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := shutdown.Quiet(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				return reconcile.Result{RequeueAfter: 1}, test.err
			}))
			result, err := r.Reconcile(test.ctx, reconcile.Request{})
			if !errors.Is(err, test.want) || err == nil && test.want != nil {
				t.Errorf("returns %v, want %v", err, test.want)
			}
			if wanted := test.err == nil || test.want != nil; wanted != (result.RequeueAfter == 1) {
				t.Errorf("returns %+v", result)
			}
		})
	}
}
