// Package instance brings the instances of a driver to their declared state.
//
// An Engine ensures that an instance exists, or that it is gone, and returns at once what is known;
// the driver's calls run as tasks, and the engine wakes the caller when one has ended. It serves
// Machines and MillwrightMachines.
//
// What the engine remembers (calls under way, the last answer, back-off) delays work or keeps it
// from being done twice. Losing it costs time. When many failing calls come due at once, after a
// restart or because a shared Secret changed, all but the first few are spread over half a minute.
package instance

import (
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

// Method is the driver's method that an answer comes from.
type Method = timeouts.Method

// The methods of a driver, and what precedes a creation.
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

// Request identifies an instance. The engine copies what it keeps.
type Request struct {
	Machine *v1alpha1.Machine
	Class   *v1alpha1.MachineClass
	// Secret with the merged data of the class's Secrets.
	Secret *corev1.Secret
	// Prepare, if set, makes the Secret for CreateMachine. It is called in the task.
	Prepare func(ctx context.Context) (*corev1.Secret, error)
	// NodeExpected requires the driver to name a node.
	NodeExpected bool
	// Capacity, if set, is what is known about the capacity of the class and of others.
	Capacity Capacity
	// Others are the versions of the other classes that the instance may have instead. A change of them
	// begins anew.
	Others string
	// MadeFrom is the provider specification that the instance was made from, if that is known. It is for
	// Plan and Update.
	MadeFrom runtime.RawExtension
}

// Capacity is what is known about the capacity for an instance, of its class and of others that it may
// have instead. It is asked in the task.
type Capacity interface {
	// Spent reports whether the class is known to have no capacity, and another one may have some, so
	// that the class need not be asked; and whether it never was for this instance.
	Spent() (spent, untouched bool)
	// Asking is called before CreateMachine.
	Asking()
	// Asked is called with the code that CreateMachine answered. It returns what follows, and when the
	// driver is asked again if that is sooner than usual; zero if it is not.
	Asked(code codes.Code) (Fallback, time.Duration)
}

// Fallback is whether another class follows a creation that failed for want of capacity.
type Fallback int

const (
	// NoFallback means that no other class is left to be tried.
	NoFallback Fallback = iota
	// FallsBackLater means that another class is tried unless this one has capacity soon.
	FallsBackLater
	// FallsBack means that nothing is left of the creation, so that the instance may be made with
	// another class.
	FallsBack
)

// State is what is known of an instance.
type State int

const (
	// Underway means that a call runs, or is held back. The caller will be woken.
	Underway State = iota
	// Exists means that the instance is complete.
	Exists
	// Lost means that the driver does not find an instance whose provider ID is stored.
	Lost
	// Gone means that the instance was deleted, or that the driver finds none or cannot look.
	Gone
	// Remains means that the driver accepted the deletion, and still has the instance.
	Remains
	// Failed means that the last call failed. It is tried again.
	Failed
	// Located means that Location has to be stored with the machine, in driver.AnnotationLocation,
	// before the instance is created or deleted.
	Located
)

// Instance is the driver's description of an instance.
type Instance struct {
	ProviderID string
	NodeName   string
	Addresses  []corev1.NodeAddress
	// FailureDomain in which the driver has put it; empty if it does not say.
	FailureDomain string
}

// Failure is a failed call.
type Failure struct {
	Method Method
	Code   codes.Code
	Err    error
}

// Answer is what the engine knows of an instance.
type Answer struct {
	State State
	// Instance is set if the state is Exists, and if its initialization failed.
	Instance Instance
	// Created reports that the engine created the instance, rather than found it.
	Created bool
	// Location has to be stored with the machine, if it is not empty; set if the state is Located or
	// Exists.
	Location string
	// LastKnownState is nil if the driver returned none.
	LastKnownState *string
	// Differences between the instance and the class; set by Plan and Update if the state is Exists.
	Differences Differences
	// Failure is set if the state is Failed.
	Failure *Failure
	// Retry is when the driver is asked again; set if the state is Failed or Remains.
	Retry time.Duration
	// Since is when the call began that is under way, perhaps for another goal; zero if none is.
	Since time.Time
	// Fallback is set if a creation failed for want of capacity.
	Fallback Fallback

	// again is when the driver is asked again if that is sooner than usual; zero if it is not.
	again time.Duration
}

// Silence is the time after which a driver counts as not answering: it ignores the deadlines of its
// calls.
const Silence = instrument.DefaultTimeout + instrument.DefaultTimeout/2

// SilentIn is the time until a driver whose call is Underway counts as not answering; not positive
// once it does.
func (a Answer) SilentIn(now time.Time) time.Duration {
	if a.Since.IsZero() {
		return Silence
	}
	return a.Since.Add(Silence).Sub(now)
}

// Options configure an Engine.
type Options struct {
	// Run runs a task, as tasks.Runner.Go does. Required.
	Run func(task func(ctx context.Context)) bool
	// Wake is called when a call has ended, or a held back one is due. Required.
	Wake func(Key)
	// Policy for failed calls.
	Policy timeouts.Policy
	// OutOfRange is called when a driver begins to answer GetMachineStatus with that code: it
	// has several VMs of one machine, of which one is an orphan. Optional.
	OutOfRange func()
	// Clock defaults to the real one.
	Clock clock.WithDelayedExecution
	// Chance in [0, 1) is the jitter of back-offs. Nil means a random number.
	Chance func() float64
}

// Engine brings instances to their declared state. Make one with New.
type Engine struct {
	driver driver.Driver
	opts   Options

	// locations are where instances were created, by the inputs of their creation.
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

// entry is what the engine remembers of an instance.
type entry struct {
	goal        goal
	fingerprint fingerprint
	// cancel ends the running call; nil if none runs.
	cancel context.CancelFunc
	began  time.Time
	// changing has the running call make something. superseded has it make nothing more.
	changing, superseded bool
	// forgotten has the entry dropped when the running call has ended.
	forgotten bool
	// answer of the last call; nil before it has ended.
	answer *Answer
	// failures of one code in a row. policy is what the code began with, backoff what is left.
	code            codes.Code
	failures        int
	policy, backoff wait.Backoff
	// due is when the next call may begin.
	due time.Time
}

// New makes an Engine for a driver.
func New(d driver.Driver, opts Options) *Engine {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Chance == nil {
		opts.Chance = rand.Float64
	}
	return &Engine{driver: d, opts: opts, locations: lru.New(maxLocations), entries: map[Key]*entry{}}
}

// Ensure returns whether the instance exists, and has it created if it does not. An answer is kept
// until Forget, or until the request changes. The answer Located comes before anything is created.
func (e *Engine) Ensure(req Request) Answer {
	return e.pursue(goalExists, req, e.ensure)
}

// Delete returns whether the instance is gone, and has it deleted if it is not. A creation that is
// under way is awaited first, and cancelled after some time. The answer Located comes before anything
// is deleted.
func (e *Engine) Delete(req Request) Answer {
	return e.pursue(goalGone, req, e.remove)
}

// Find returns which instance the driver knows: Exists, Gone or Failed. It is for callers that are
// about to delete an instance they do not know. A creation that is under way is awaited first, and
// cancelled after some time. It must not be called after Delete: each would begin the other's work anew.
func (e *Engine) Find(req Request) Answer {
	return e.pursue(goalFound, req, e.find)
}

// Abandon is for callers that cannot ask the driver any more. It cancels the call that is under way
// and returns Underway until that has ended, then the last answer, or Gone if there was none.
func (e *Engine) Abandon(key Key) Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch known := e.entries[key]; {
	case known != nil && known.cancel != nil:
		known.cancel()
		return Answer{State: Underway, Since: known.began}
	case known != nil && known.answer != nil:
		return *known.answer
	default:
		return Answer{State: Gone}
	}
}

// Deleting reports whether this process has begun to delete the instance.
func (e *Engine) Deleting(key Key) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.entries[key]
	return known != nil && known.goal == goalGone && !known.forgotten
}

// Forget drops what is remembered of an instance. A call under way is cancelled; until it has ended,
// no other one is made for the instance.
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

// Hurry has the driver asked again for an instance as soon as the caller wants, if it was not available: it
// is now.
func (e *Engine) Hurry(key Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.entries[key]
	if known == nil || known.answer == nil || known.answer.Failure == nil || known.answer.Failure.Code != codes.Unavailable {
		return
	}
	known.failures, known.due = 0, e.opts.Clock.Now()
}

type call func(ctx context.Context, req Request) Answer

func (e *Engine) pursue(want goal, req Request, do call) Answer {
	key := Key{Namespace: req.Machine.Namespace, Name: req.Machine.Name}

	e.mu.Lock()
	defer e.mu.Unlock()
	if running := e.entries[key]; running != nil && running.cancel != nil {
		if running.goal != want {
			e.supersede(running)
		}
		return Answer{State: Underway, Since: running.began}
	}
	known := e.entry(key, want, req)
	wait := max(known.due.Sub(e.opts.Clock.Now()), 0)
	switch {
	case known.answer == nil && wait > 0:
		return Answer{State: Underway}
	case known.answer != nil && !known.answer.retried():
		return *known.answer
	case known.answer != nil && wait > 0:
		answer := *known.answer
		answer.Retry = wait
		return answer
	}
	e.start(key, known, req, do)
	return Answer{State: Underway, Since: known.began}
}

// creationGrace is how long a creation that is not wanted any more may take to end by itself. A request
// that is cut short may be carried out later, when its token and its VM have been looked for in vain.
const creationGrace = 10 * time.Second

// supersede has a running call end, since something else is wanted. The lock is held.
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

// proceed reports whether the running call for an instance may make something. From then on, it has
// time to end.
func (e *Engine) proceed(req Request) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	running := e.entries[Key{Namespace: req.Machine.Namespace, Name: req.Machine.Name}]
	running.changing = true
	return !running.superseded
}

// entry returns what is remembered of an instance, and begins anew if the request changed. The lock
// is held.
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

func (a *Answer) retried() bool { return a.State == Failed || a.State == Remains }

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

func (e *Engine) finish(key Key, known *entry, answer Answer) {
	e.mu.Lock()
	known.cancel()
	known.cancel = nil
	known.answer = &answer
	known.count(answer, e.opts)
	if known.forgotten {
		delete(e.entries, key)
	}
	doubled := known.failures == 1 && answer.Failure != nil && answer.Failure.Method == MethodStatus && answer.Failure.Code == codes.OutOfRange
	e.mu.Unlock()
	if doubled && e.opts.OutOfRange != nil {
		e.opts.OutOfRange()
	}
	e.opts.Wake(key)
}

func (known *entry) count(answer Answer, opts Options) {
	method, code := MethodStatus, codes.OK
	if answer.Failure != nil {
		method, code = answer.Failure.Method, answer.Failure.Code
	}
	if policy := opts.Policy.Backoff(method, code); known.failures == 0 || known.code != code || known.policy != policy {
		known.failures, known.code, known.policy, known.backoff = 0, code, policy, policy
	}
	known.failures++
	delay := known.backoff.Step()
	delay += time.Duration(opts.Chance() * 0.1 * float64(delay))
	if answer.again > 0 {
		delay = min(delay, answer.again)
	}
	known.due = opts.Clock.Now().Add(delay)
}
