// Package instance brings the instances of a driver to their declared state.
//
// An Engine ensures that an instance exists, or that it is gone. Its methods return immediately with what is
// known. The driver's calls run as tasks, and the engine wakes the caller when a call has returned. It serves
// Machines and MillwrightMachines.
//
// The engine's state (calls in progress, the last result, back-off) only delays work or prevents it from being
// done twice. Losing it costs time. If many failing calls become due at the same moment, after a restart or
// because a shared Secret changed, all but the first few are spread over half a minute.
package instance

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// Method is a method of the driver.
type Method = timeouts.Method

// The methods of a driver, and the preparation of a creation.
const (
	MethodCreate     = timeouts.Create
	MethodInitialize = timeouts.Initialize
	MethodStatus     = timeouts.Status
	MethodDelete     = timeouts.Delete
	MethodPrepare    = timeouts.Prepare
	MethodUpdate     = timeouts.Update
)

// Key is the namespace and name of an instance's machine.
type Key = types.NamespacedName

// Request identifies an instance. The engine copies the parts that it keeps.
type Request struct {
	Machine *v1alpha1.Machine
	Class   *v1alpha1.MachineClass
	// Secret has the merged data of the class's Secrets.
	Secret *corev1.Secret
	// Prepare, if not nil, prepares the Secret for CreateMachine. It is called in the task.
	Prepare func(ctx context.Context) (*corev1.Secret, error)
	// NodeExpected requires that the driver returns a node name.
	NodeExpected bool
	// Capacity, if not nil, is the known capacity of the class and of alternative classes.
	Capacity Capacity
	// Others are the versions of the alternative classes. If they change, the engine starts over.
	Others string
	// MadeFrom is the provider specification that the instance was created from, if it is known. Plan and Update
	// use it.
	MadeFrom runtime.RawExtension
}

// Capacity is the known capacity for an instance, of its class and of the alternative classes. Its methods are
// called in the task.
type Capacity interface {
	// Spent reports whether the class is known to have no capacity while another class may have some, so that
	// the class is not tried. Untouched reports whether the class was never tried for this instance.
	Spent() (spent, untouched bool)
	// Asking is called before CreateMachine.
	Asking()
	// Asked is called with the code that CreateMachine returned. It returns what follows, and the time until the
	// driver is called again if it is shorter than usual, or else zero.
	Asked(code codes.Code) (Fallback, time.Duration)
}

// Fallback describes whether another class is used after a creation failed for lack of capacity.
type Fallback int

const (
	// NoFallback means that no other class remains to be tried.
	NoFallback Fallback = iota
	// FallsBackLater means that another class is tried unless this one has capacity soon.
	FallsBackLater
	// FallsBack means that no resources of the creation remain, so that the instance may be created with another
	// class.
	FallsBack
)

// Options configure an Engine.
type Options struct {
	// Run runs a task, as tasks.Runner.Go does. Required.
	Run func(task func(ctx context.Context)) bool
	// Wake is called when a call has returned or a delayed call is due. Required.
	Wake func(Key)
	// Policy is the retry policy for failed calls.
	Policy timeouts.Policy
	// CallTimeout is the timeout of the driver's calls, which the driver applies itself. Zero means
	// instrument.DefaultTimeout.
	CallTimeout time.Duration
	// OutOfRange is called when GetMachineStatus begins to return that code: the driver has several VMs for one
	// machine, and all but one are orphans. Optional.
	OutOfRange func()
	// Clock defaults to the real one.
	Clock clock.WithDelayedExecution
	// Chance returns the jitter of back-offs, in [0, 1). If nil, it is random.
	Chance func() float64
}

// Engine brings instances to their declared state. Create one with New.
type Engine struct {
	driver driver.Driver
	opts   Options

	// locations are the places where instances were created, by the inputs of their creation.
	locations *lru.Cache

	mu      sync.Mutex
	entries map[Key]*entry
	spread  spread
}

type goal int

const (
	goalExists goal = iota
	goalGone
	goalFound
	goalPlanned
	goalUpdated
)

// entry is the engine's state of an instance.
type entry struct {
	goal        goal
	fingerprint fingerprint
	// cancel cancels the running call. It is nil if no call is running.
	cancel context.CancelFunc
	began  time.Time
	// changing allows the running call to create resources. superseded prevents it from creating more.
	changing, superseded bool
	// forgotten causes the entry to be dropped when the running call returns.
	forgotten bool
	// result is the result of the last call. It is nil before the first one returns.
	result any
	// failures is the number of consecutive results with the same code. policy is the code's back-off, and
	// backoff is its current state.
	code            codes.Code
	failures        int
	policy, backoff wait.Backoff
	// due is when the next call may begin.
	due time.Time
}

// New creates an Engine for a driver.
func New(d driver.Driver, opts Options) *Engine {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Chance == nil {
		opts.Chance = rand.Float64
	}
	opts.CallTimeout = cmp.Or(opts.CallTimeout, instrument.DefaultTimeout)
	return &Engine{driver: d, opts: opts, locations: lru.New(maxLocations), entries: map[Key]*entry{}}
}

// Ensure returns whether the instance exists, and creates it if it does not. A result is kept until Forget is
// called or the request changes.
func (e *Engine) Ensure(req Request) EnsureResult { return pursue(e, goalExists, req, e.ensure) }

// Delete returns whether the instance is gone, and deletes it if it is not. If a creation is in progress,
// Delete first waits for it, and cancels it after some time.
func (e *Engine) Delete(req Request) DeleteResult { return pursue(e, goalGone, req, e.remove) }

// Find returns the instance that the driver knows. It is for callers that are about to delete an instance whose
// provider ID they do not know. If a creation is in progress, Find first waits for it, and cancels it after
// some time. Find must not be called after Delete, because each would restart the other's work.
func (e *Engine) Find(req Request) FindResult { return pursue(e, goalFound, req, e.find) }

// Abandon is for callers that can no longer call the driver. It cancels the call in progress and returns
// Pending until the call has returned. Then it returns the instance that the last call found or created, or
// Gone if there is none.
func (e *Engine) Abandon(key Key) FindResult {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.entries[key]
	switch {
	case known == nil:
		return Gone{}
	case known.cancel != nil:
		known.cancel()
		return e.pending(known.began)
	}
	switch r := known.result.(type) {
	case Exists:
		return r
	case Failed:
		if r.Uninitialized != nil {
			return *r.Uninitialized
		}
	}
	return Gone{}
}

// Deleting reports whether this process has begun to delete the instance.
func (e *Engine) Deleting(key Key) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.entries[key]
	return known != nil && known.goal == goalGone && !known.forgotten
}

// Forget drops the state of an instance. A call in progress is canceled. No other call is made for the instance
// until it has returned.
func (e *Engine) Forget(key Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.entries[key]
	switch {
	case known == nil:
	case known.cancel != nil:
		known.cancel()
		known.forgotten = true
	default:
		delete(e.entries, key)
	}
}

// ResetUnavailable clears the back-off that an Unavailable error started. Call it when the driver has
// registered.
func (e *Engine) ResetUnavailable(key Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.entries[key]
	if known == nil {
		return
	}
	if failure := failureOf(known.result); failure == nil || failure.Code != codes.Unavailable {
		return
	}
	known.failures, known.due = 0, e.opts.Clock.Now()
}

// pursue returns the result of the last call for a goal. If a call is due, it starts one and returns Pending.
func pursue[Result any](e *Engine, want goal, req Request, do func(context.Context, Request) Result) Result {
	return e.pursue(want, req, func(ctx context.Context, req Request) any { return do(ctx, req) }).(Result)
}

type call func(ctx context.Context, req Request) any

func (e *Engine) pursue(want goal, req Request, do call) any {
	key := Key{Namespace: req.Machine.Namespace, Name: req.Machine.Name}

	e.mu.Lock()
	defer e.mu.Unlock()
	if running := e.entries[key]; running != nil && running.cancel != nil {
		if running.goal != want {
			e.supersede(running)
		}
		return e.pending(running.began)
	}
	known := e.entry(key, want, req)
	wait := max(known.due.Sub(e.opts.Clock.Now()), 0)
	switch {
	case known.result == nil && wait > 0:
		return e.pending(time.Time{})
	case known.result != nil && !retried(known.result):
		return known.result
	case wait > 0:
		return retriedIn(known.result, wait)
	}
	e.start(key, known, req, do)
	return e.pending(known.began)
}

// pending returns the result while a call runs that began at that time, or is delayed if the time is zero.
func (e *Engine) pending(since time.Time) Pending {
	return Pending{Since: since, Silence: e.opts.CallTimeout + e.opts.CallTimeout/2}
}

// creationGrace is how long a creation that is no longer desired may take to return. If it were canceled
// immediately, its request might still be carried out later, after its token and VM were looked for and not
// found.
const creationGrace = 10 * time.Second

// supersede stops a running call because the goal has changed. The lock is held.
func (e *Engine) supersede(running *entry) {
	switch {
	case running.superseded:
	case running.changing:
		e.opts.Clock.AfterFunc(creationGrace, running.cancel)
	default:
		running.cancel()
	}
	running.superseded = true
}

// proceed reports whether the running call for an instance may create resources. From then on, supersede gives
// the call time to return.
func (e *Engine) proceed(req Request) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	running := e.entries[Key{Namespace: req.Machine.Namespace, Name: req.Machine.Name}]
	running.changing = true
	return !running.superseded
}

// entry returns the state of an instance. If the request changed, it starts over. The lock is held.
func (e *Engine) entry(key Key, want goal, req Request) *entry {
	known, print := e.entries[key], fingerprintOf(req)
	if known != nil && known.goal == want && known.fingerprint == print {
		return known
	}
	next := &entry{goal: want, fingerprint: print}
	now := e.opts.Clock.Now()
	if delay := e.spread.delay(now, known, next, req.Machine); delay > 0 {
		next.due = now.Add(delay)
		e.opts.Clock.AfterFunc(delay, func() { e.opts.Wake(key) })
	}
	e.entries[key] = next
	return next
}

func (e *Engine) start(key Key, known *entry, req Request, do call) {
	req.Machine = req.Machine.DeepCopy()
	req.Class = req.Class.DeepCopy()
	req.Secret = req.Secret.DeepCopy()
	ctx, cancel := context.WithCancel(context.Background())
	accepted := e.opts.Run(func(leading context.Context) {
		stop := context.AfterFunc(leading, cancel)
		defer stop()
		e.finish(key, known, do(ctx, req))
	})
	if !accepted {
		cancel()
		return
	}
	known.cancel, known.began = cancel, e.opts.Clock.Now()
	known.changing, known.superseded = false, false
}

func (e *Engine) finish(key Key, known *entry, result any) {
	e.mu.Lock()
	known.cancel()
	known.cancel = nil
	known.result = result
	known.count(result, e.opts)
	if known.forgotten {
		delete(e.entries, key)
	}
	failure := failureOf(result)
	doubled := known.failures == 1 && failure != nil && failure.Method == MethodStatus && failure.Code == codes.OutOfRange
	e.mu.Unlock()
	if doubled && e.opts.OutOfRange != nil {
		e.opts.OutOfRange()
	}
	e.opts.Wake(key)
}

func (known *entry) count(result any, opts Options) {
	method, code := MethodStatus, codes.OK
	failure, _ := result.(Failed)
	if failure.Failure != nil {
		method, code = failure.Failure.Method, failure.Failure.Code
	}
	if policy := opts.Policy.Backoff(method, code); known.failures == 0 || known.code != code || known.policy != policy {
		known.failures, known.code, known.policy, known.backoff = 0, code, policy, policy
	}
	known.failures++
	delay := known.backoff.Step()
	delay += time.Duration(opts.Chance() * 0.1 * float64(delay))
	if failure.sooner > 0 {
		delay = min(delay, failure.sooner)
	}
	known.due = opts.Clock.Now().Add(delay)
}
