// Package edge implements the beginning and the end of the reconciles of all controllers, so that they treat
// deleted objects, outdated caches, conflicts, denied writes and the termination of the process in the same
// way.
package edge

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/internal/tracing"
)

// ReasonWriteDenied is the reason of the event for a write that a webhook or an admission policy denied.
const ReasonWriteDenied = "WriteDenied"

// longestMessage is the maximum length of an event's message, in bytes.
const longestMessage = 1024

// ErrStale is the error of a reconcile that detects that its objects are outdated. The reconcile is repeated
// soon, and the error is not reported.
var ErrStale = errors.New("the cache is outdated")

// Outdated reports whether an error means that a reconcile used outdated objects: it is ErrStale, or another
// client wrote an object in the meantime.
func Outdated(err error) bool { return errors.Is(err, ErrStale) || apierror.Conflict(err) }

// Reconciler reconciles the objects of one kind. It implements reconcile.Reconciler. The fields must not change
// after its first use.
//
// Reconciler does not recover from a panic in Pass. controller-runtime recovers from it, counts it, and retries
// the object with back-off.
type Reconciler[T client.Object] struct {
	// Reader reads the objects, usually from a cache. If nil, Pass gets an object that has only a name. Pass may
	// fill in the object, because events refer to it.
	Reader client.Reader
	// Kind is an empty object of the kind. Required.
	Kind T
	// ReadOnly passes the cache's own objects to Pass, which must not change them.
	ReadOnly bool
	// Written has the versions that this process wrote. Pass is not called before the cache shows them.
	// Optional.
	Written *expectations.Writes
	// Pass reconciles one object. It returns the time after which the object is reconciled again without an
	// event; 0 means never. Its error may wrap ErrStale or an error of the API server, which Reconcile
	// classifies. Required.
	Pass func(ctx context.Context, object T) (time.Duration, error)
	// Gone cleans up after an object that no longer exists, before Forget. Its results are like those of Pass. If the
	// time is not 0 or there is an error, it is called again. Optional.
	Gone func(ctx context.Context, key client.ObjectKey) (time.Duration, error)
	// Forget drops the controller's state of an object that no longer exists. Optional.
	Forget func(key client.ObjectKey)
	// Events records an event if a write is denied. The event is for the object of Pass unless the error is
	// marked with About. Optional.
	Events record.EventRecorder

	sent expectations.Memory[events.Last]
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler[T]) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ctx, end := tracing.Reconcile(ctx, r.Kind, req.Namespace, req.Name)
	object, after, err := r.reconcile(ctx, req.NamespacedName)
	end(err)
	switch {
	case err == nil:
		r.sent.Forget(req.NamespacedName)
		return ctrl.Result{RequeueAfter: after}, nil
	case ctx.Err() != nil:
		// The process is terminating, which cancels its requests. The error would be logged and counted as an
		// error of the object. The next process reconciles every object.
		return ctrl.Result{}, nil
	case Outdated(err):
		ctrl.LoggerFrom(ctx).V(1).Info("reconciling again soon", "reason", err.Error())
		return ctrl.Result{RequeueAfter: expectations.StaleCache}, nil
	case r.Events != nil && apierror.Denied(err) && !errors.As(err, new(reported)):
		if sent := r.sent.Of(req.NamespacedName); sent.News(ReasonWriteDenied, err.Error()) {
			message := messages.Shorten(fmt.Sprintf("A write was denied and is retried: %v", err), longestMessage)
			r.Events.Event(subject(err, object), corev1.EventTypeWarning, ReasonWriteDenied, message)
		}
	}
	return ctrl.Result{}, err
}

// reconcile reads an object and calls Pass.
func (r *Reconciler[T]) reconcile(ctx context.Context, key client.ObjectKey) (object T, after time.Duration, err error) {
	object = r.Kind.DeepCopyObject().(T)
	if r.Reader == nil {
		object.SetNamespace(key.Namespace)
		object.SetName(key.Name)
	} else if err := r.Reader.Get(ctx, key, object, r.options()...); err != nil {
		if !apierrors.IsNotFound(err) {
			return object, 0, fmt.Errorf("reading %s: %w", key, err)
		}
		after, err := r.gone(ctx, key)
		return object, after, err
	}
	if r.Written != nil && !r.Written.Fresh(object) {
		return object, 0, ErrStale
	}
	after, err = r.Pass(ctx, object)
	return object, after, err
}

func (r *Reconciler[T]) options() []client.GetOption {
	if r.ReadOnly {
		return []client.GetOption{client.UnsafeDisableDeepCopy}
	}
	return nil
}

// gone cleans up after an object that no longer exists, and then forgets it.
func (r *Reconciler[T]) gone(ctx context.Context, key client.ObjectKey) (time.Duration, error) {
	if r.Gone != nil {
		if after, err := r.Gone(ctx, key); after != 0 || err != nil {
			return after, err
		}
	}
	if r.Written != nil {
		r.Written.Forget(key)
	}
	if r.Forget != nil {
		r.Forget(key)
	}
	return 0, nil
}

// reported is an error that is shown in the object's status.
type reported struct{ error }

func (e reported) Unwrap() error { return e.error }

// Reported marks an error that the reconcile wrote to the object's status, so that no event repeats it.
func Reported(err error) error {
	if err == nil {
		return nil
	}
	return reported{err}
}

// about is an error about an object other than the reconciled one.
type about struct {
	error
	object client.Object
}

func (e about) Unwrap() error { return e.error }

// About marks an error as being about another object than the reconciled one. The event is then recorded for
// that object.
func About(object client.Object, err error) error {
	if err == nil {
		return nil
	}
	return about{err, object}
}

// subject returns the object for which the event of an error is recorded.
func subject(err error, reconciled client.Object) client.Object {
	if other := (about{}); errors.As(err, &other) {
		return other.object
	}
	return reconciled
}

// Result converts the outcome of a pass's steps to the results of a Pass function.
func Result(ctx context.Context, outcome flow.Outcome) (time.Duration, error) {
	if outcome.Err == nil && !outcome.Done() {
		ctrl.LoggerFrom(ctx).V(1).Info("waiting", "step", outcome.Step, "for", outcome.Reason, "atMost", outcome.After)
	}
	return outcome.After, outcome.Err
}
