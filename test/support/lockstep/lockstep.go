// Package lockstep runs a reconciler in a test, one pass and one driver call at a time.
//
// Nothing in a [Harness] runs in the background. Pass runs one pass, Call makes the driver calls that the pass
// has started, and time advances only when the clock is stepped. Settle repeats both until the object is stable,
// like events and timers in a manager.
package lockstep

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// Harness runs the passes of a reconciler for one object.
type Harness struct {
	*testing.T
	// Key identifies the object.
	Key types.NamespacedName
	// Reconciler runs the passes.
	Reconciler reconcile.Reconciler
	Clock      *testingclock.FakeClock
	Driver     *fake.Driver
	// Tasks are the pending driver calls, which Call makes.
	Tasks []func(context.Context)
	// Writes are the writing requests of the clients that Record returns.
	Writes []Write
	// Refuse is called before each write, which fails with its error. If nil, all writes are allowed.
	Refuse func(Write) error
}

// Write is a request that changes an object.
type Write struct {
	// What is "verb Kind", or "verb subresource of Kind".
	What string
	// Name is the name of the object.
	Name string
	// Body is the object of a create request, or the patch.
	Body string
}

// NewEngine returns an engine for a driver whose calls are pending until Call. It drops the calls of an earlier
// engine, as the exit of a process does.
func (h *Harness) NewEngine(d driver.Driver) *instance.Engine {
	h.Tasks = nil
	return instance.New(d, instance.Options{
		Run: func(task func(context.Context)) bool {
			h.Tasks = append(h.Tasks, task)
			return true
		},
		Wake:  func(instance.Key) {},
		Clock: h.Clock,
	})
}

// Request requests a pass for the object.
func (h *Harness) Request() ctrl.Request { return ctrl.Request{NamespacedName: h.Key} }

// Pass runs one pass, which must not fail.
func (h *Harness) Pass() ctrl.Result {
	h.Helper()
	result, err := h.Reconciler.Reconcile(h.Context(), h.Request())
	if err != nil {
		h.Fatalf("a pass failed: %v", err)
	}
	return result
}

// Call makes the pending driver calls, and reports whether there were any.
func (h *Harness) Call() bool {
	waiting := h.Tasks
	h.Tasks = nil
	for _, task := range waiting {
		task(h.Context())
	}
	return len(waiting) > 0
}

// UntilCalled runs passes and makes calls until a method of the driver was called.
func (h *Harness) UntilCalled(method fake.Method) {
	h.Helper()
	for len(h.Driver.Calls(method)) == 0 {
		h.Pass()
		h.Call()
	}
}

// Settle runs passes and makes calls until only a timer of a second or more would cause another pass, and returns
// the result of the last pass. It steps over shorter timers.
func (h *Harness) Settle() ctrl.Result {
	h.Helper()
	for range 20 {
		before := len(h.Writes)
		result := h.Pass()
		if h.Call() || len(h.Writes) != before {
			continue
		}
		if result.RequeueAfter <= 0 || result.RequeueAfter >= time.Second {
			return result
		}
		h.Clock.Step(result.RequeueAfter)
	}
	h.Fatalf("the object never comes to rest; its last writes:\n%s", h.LastWrites())
	return ctrl.Result{}
}

// SettleAfter steps the clock and settles.
func (h *Harness) SettleAfter(d time.Duration) ctrl.Result {
	h.Helper()
	h.Clock.Step(d)
	return h.Settle()
}

// TakeWrites returns the writes since the last call, in order.
func (h *Harness) TakeWrites() []string {
	var what []string
	for _, made := range h.Writes {
		what = append(what, made.What)
	}
	h.Writes = nil
	return what
}

// LastWrites describes the last ten writes, for messages.
func (h *Harness) LastWrites() string {
	var lines []string
	for _, made := range h.Writes[max(0, len(h.Writes)-10):] {
		lines = append(lines, made.What+" "+made.Name+" "+made.Body)
	}
	return strings.Join(lines, "\n")
}

// TakeEvents returns the events recorded since the last call.
func TakeEvents(recorder *record.FakeRecorder) []string {
	var events []string
	for {
		select {
		case event := <-recorder.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

// Change reads an object and updates it, as a user would.
func Change[O client.Object](h *Harness, c client.Client, object O, edit func(O)) {
	h.Helper()
	if err := c.Get(h.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		h.Fatal(err)
	}
	edit(object)
	if err := c.Update(h.Context(), object); err != nil {
		h.Fatal(err)
	}
}

// Indexes are the indexes of a cache by name, which an API server does not have.
type Indexes map[string]client.IndexerFunc

var _ client.FieldIndexer = Indexes{}

// IndexField implements client.FieldIndexer. A name identifies the same function for all kinds.
func (x Indexes) IndexField(_ context.Context, _ client.Object, name string, values client.IndexerFunc) error {
	x[name] = values
	return nil
}

// Record returns a client whose writes are passed to Refuse and recorded in Writes, and whose lists support the
// indexes. An update is an error, because controllers write with patches.
func (h *Harness) Record(inner client.WithWatch, indexes Indexes) client.Client {
	note := func(verb string, object client.Object, body []byte) error {
		gvk, err := apiutil.GVKForObject(object, inner.Scheme())
		if err != nil {
			return err
		}
		made := Write{What: verb + " " + gvk.Kind, Name: object.GetName(), Body: string(body)}
		if h.Refuse != nil {
			if err := h.Refuse(made); err != nil {
				return err
			}
		}
		h.Writes = append(h.Writes, made)
		return nil
	}
	return interceptor.NewClient(inner, interceptor.Funcs{
		List: indexes.list,
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			body, _ := json.Marshal(object)
			if err := note("create", object, body); err != nil {
				return err
			}
			return c.Create(ctx, object, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if err := note("delete", object, nil); err != nil {
				return err
			}
			return c.Delete(ctx, object, options...)
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			h.Error("an update instead of a patch")
			return errors.New("updates are not allowed")
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			body, _ := patch.Data(object)
			if err := note("patch", object, body); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			body, _ := patch.Data(object)
			if err := note("patch "+sub+" of", object, body); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, object, patch, options...)
		},
	})
}

func (x Indexes) list(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	if asked.FieldSelector == nil {
		return c.List(ctx, list, options...)
	}
	desired := asked.FieldSelector.Requirements()
	asked.FieldSelector, asked.Limit = nil, 0
	if err := c.List(ctx, list, asked); err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	return meta.SetList(list, slices.DeleteFunc(items, func(item runtime.Object) bool {
		for _, one := range desired {
			if !slices.Contains(x[one.Field](item.(client.Object)), one.Value) {
				return true
			}
		}
		return false
	}))
}
