package edge_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var (
	errDisk  = errors.New("the disk is full")
	conflict = apierrors.NewConflict(corev1.Resource("secrets"), "s", errors.New("changed"))
	// denial has a code that means something else if the API server itself responds with it.
	denial = &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Message: `admission webhook "freeze.example.com" denied the request: frozen`,
	}}
)

// harness counts the calls of a Reconciler of Secrets.
type harness struct {
	*edge.Reconciler[*corev1.Secret]
	stored    client.Client
	events    *record.FakeRecorder
	passes    int
	forgotten []client.ObjectKey
	after     time.Duration
	err       error
}

func newHarness(t *testing.T, objects ...client.Object) *harness {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	h := &harness{stored: fakeclient.NewBuilder(scheme).WithObjects(objects...).Build(), events: record.NewFakeRecorder(10)}
	h.Reconciler = &edge.Reconciler[*corev1.Secret]{
		Reader: h.stored, Kind: &corev1.Secret{}, Written: &expectations.Writes{}, Events: h.events,
		Pass: func(_ context.Context, secret *corev1.Secret) (time.Duration, error) {
			if secret.Name != fixture.Class {
				t.Errorf("Pass gets %q", secret.Name)
			}
			h.passes++
			return h.after, h.err
		},
		Forget: func(key client.ObjectKey) { h.forgotten = append(h.forgotten, key) },
	}
	return h
}

var request = ctrl.Request{NamespacedName: client.ObjectKeyFromObject(fixture.Secret())}

func TestReconciler_ErrorsAreClassified(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, test := range map[string]struct {
		ctx   context.Context
		err   error
		after time.Duration
		fails bool
		event bool
	}{
		"success":                       {after: time.Minute},
		"failure":                       {err: errDisk, fails: true},
		"conflict":                      {err: fmt.Errorf("writing: %w", conflict), after: expectations.StaleCache},
		"outdated cache":                {err: fmt.Errorf("reading: %w", edge.ErrStale), after: expectations.StaleCache},
		"denied by a webhook":           {err: fmt.Errorf("writing: %w", denial), fails: true, event: true},
		"denied, and reported already":  {err: edge.Reported(fmt.Errorf("writing: %w", denial)), fails: true},
		"conflict, reported already":    {err: edge.Reported(conflict), after: expectations.StaleCache},
		"nothing to report":             {err: edge.Reported(nil), after: time.Minute},
		"failure during shutdown":       {ctx: ended, err: errDisk},
		"canceled request":              {ctx: ended, err: context.Canceled},
		"denied during shutdown":        {ctx: ended, err: denial},
		"request that timed out":        {err: context.DeadlineExceeded, fails: true},
		"success just before shutdown":  {ctx: ended, after: time.Minute},
		"conflict of another API group": {err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusConflict}}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, fixture.Secret())
			h.after, h.err = time.Minute, test.err
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			result, err := h.Reconcile(ctx, request)
			if (err != nil) != test.fails || test.fails && !errors.Is(err, test.err) {
				t.Errorf("returns the error %v", err)
			}
			if result.RequeueAfter != test.after {
				t.Errorf("returns %+v, want %v", result, test.after)
			}
			if got := len(h.events.Events) == 1; got != test.event {
				t.Errorf("an event: %t, want %t", got, test.event)
			}
		})
	}
}

func TestReconciler_EventOfDenialIsNotRepeated(t *testing.T) {
	h := newHarness(t, fixture.Secret())
	for _, test := range []struct {
		err    error
		events int
	}{{denial, 1}, {denial, 0}, {fmt.Errorf("other: %w", denial), 1}, {nil, 0}, {denial, 1}} {
		h.err = test.err
		_, _ = h.Reconcile(t.Context(), request)
		if got := len(h.events.Events); got != test.events {
			t.Errorf("after %v: %d events, want %d", test.err, got, test.events)
		}
		for len(h.events.Events) > 0 {
			if sent := <-h.events.Events; !strings.Contains(sent, edge.ReasonWriteDenied) || !strings.Contains(sent, "frozen") {
				t.Errorf("event %q", sent)
			}
		}
	}
}

// subjects records what events are about.
type subjects struct {
	record.EventRecorder
	names []string
}

func (s *subjects) Event(object runtime.Object, _, _, _ string) {
	s.names = append(s.names, object.(client.Object).GetName())
}

func TestReconciler_EventOfDenialIsAboutTheMarkedObject(t *testing.T) {
	h, about := newHarness(t, fixture.Secret()), &subjects{}
	h.Events = about
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	for _, err := range []error{denial, nil, fmt.Errorf("writing: %w", edge.About(other, denial)), edge.About(other, nil)} {
		h.err = err
		if _, got := h.Reconcile(t.Context(), request); !errors.Is(got, err) {
			t.Errorf("returns %v, want %v", got, err)
		}
	}
	if want := []string{fixture.Class, "other"}; !slices.Equal(about.names, want) {
		t.Errorf("events are about %q, want %q", about.names, want)
	}
}

func TestReconciler_DeletedObjectIsForgotten(t *testing.T) {
	h := newHarness(t)
	result, err := h.Reconcile(t.Context(), request)
	if err != nil || result != (ctrl.Result{}) || h.passes != 0 || len(h.forgotten) != 1 || h.forgotten[0] != request.NamespacedName {
		t.Errorf("returns %+v, %v after %d passes; forgotten %v", result, err, h.passes, h.forgotten)
	}
}

func TestReconciler_WaitsForOwnWrites(t *testing.T) {
	written := fixture.Secret()
	written.ResourceVersion = "2000"
	h := newHarness(t, fixture.Secret())
	h.Written.Wrote(written)
	result, err := h.Reconcile(t.Context(), request)
	if err != nil || result.RequeueAfter != expectations.StaleCache || h.passes != 0 {
		t.Errorf("returns %+v, %v after %d passes", result, err, h.passes)
	}
}

func TestReconciler_WithoutReader(t *testing.T) {
	h := newHarness(t)
	h.Reader, h.Written = nil, nil
	if _, err := h.Reconcile(t.Context(), request); err != nil || h.passes != 1 || len(h.forgotten) != 0 {
		t.Errorf("returns %v after %d passes; forgotten %v", err, h.passes, h.forgotten)
	}
}

// TestReconciler_PanicPassesThrough checks that controller-runtime sees panics, which it counts, and that tests do.
func TestReconciler_PanicPassesThrough(t *testing.T) {
	h := newHarness(t, fixture.Secret())
	h.Pass = func(context.Context, *corev1.Secret) (time.Duration, error) { panic("out of range") }
	defer func() {
		if recover() == nil {
			t.Error("the panic is lost")
		}
	}()
	_, _ = h.Reconcile(t.Context(), request)
}

func TestResult(t *testing.T) {
	after, err := edge.Result(t.Context(), flow.Outcome{Step: "AwaitNode", After: time.Second, Reason: "a node"})
	if after != time.Second || err != nil {
		t.Errorf("%v, %v", after, err)
	}
	if _, err := edge.Result(t.Context(), flow.Outcome{Step: "AwaitNode", Err: errDisk}); !errors.Is(err, errDisk) {
		t.Errorf("%v", err)
	}
}
