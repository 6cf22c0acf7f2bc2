package disks

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/internal/vm/storage"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// callLimit limits the time of a call, also if the server is unreachable.
	callLimit = 10 * time.Second
	// firstPause and maxPause limit the time until a failed request is retried.
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// Server is a process that serves the disks of a VM.
type Server struct {
	// VM is whose disks it serves.
	VM types.NamespacedName
	// Pod and Run identify the process. Another process has opened nothing yet.
	Pod string
	Run uint64
	// Endpoint is host and port for the VM controller.
	Endpoint string
}

// Options configure a Caller. All fields are required.
type Options struct {
	// Connect returns the volume of a server, and a function that closes the connection. It does not wait for the server.
	Connect func(server Server) (volume storage.Volume, end func(), err error)
	// Go runs a call outside of the pass, with a context that is canceled at the end of leadership. It reports whether the
	// call will be made.
	Go func(call func(ctx context.Context)) bool
	// Enqueue requests a pass for a VM after a time, which may be 0. It does not block.
	Enqueue func(vm types.NamespacedName, after time.Duration)
	// Clock is the time.
	Clock clock.PassiveClock
}

// Caller calls the servers of disks, with at most one call per VM at a time. Create one with New. It is safe for concurrent
// use. What it knows is lost with the process; calls are then repeated.
type Caller struct {
	Options

	mu    sync.Mutex
	known map[types.NamespacedName]*known
}

// State is what is known of a server of disks.
type State struct {
	// Revoked is the highest token that it has confirmed to be revoked; 0 if none is.
	Revoked storage.Token
	// Refused are the holders whose tokens are revoked according to the server.
	Refused []Holder
	// Err is why something that is wanted failed or, if nothing is wanted, why the last call failed; nil if nothing failed.
	Err error
	// Done reports whether it has done all that was wanted, or has refused it for good.
	Done bool
}

// known is what is known of the server of one VM.
type known struct {
	server  Server
	revoked storage.Token
	open    map[Holder]storage.Attachment
	refused map[Holder]bool
	// failed has the requests that failed, and err is why the last call failed.
	failed  map[request]failure
	err     error
	calling bool
}

// request is one thing that is wanted of a server: to revoke all tokens up to one, or to open the disks to a holder.
type request struct {
	revoke storage.Token
	open   Holder
}

// failure delays the retry of a request. Other requests are not delayed: the next hypervisor must not wait because the
// request of an earlier one failed.
type failure struct {
	err   error
	count int
	next  time.Time
}

// New returns a Caller.
func New(options Options) *Caller {
	return &Caller{Options: options, known: map[types.NamespacedName]*known{}}
}

// Ask calls a server if something that is wanted is not known to be done, and returns what is known now. It does not wait
// for the call. It requests a pass when the server has responded, and when a failed request may be retried.
func (c *Caller) Ask(server Server, want Want) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[server.VM]
	if k == nil || k.server != server {
		// A call to another process may be under way. Its answer changes nothing here.
		k = &known{server: server, open: map[Holder]storage.Attachment{}, refused: map[Holder]bool{}, failed: map[request]failure{}}
		c.known[server.VM] = k
	}
	rest := k.rest(want)
	due, wait := k.due(rest, c.Clock.Now())
	switch {
	case rest.empty():
		if !want.empty() { // that nothing is wanted says nothing of the server
			k.err = nil
		}
	case due.empty():
		c.Enqueue(server.VM, wait)
	case !k.calling:
		k.calling = c.Go(func(ctx context.Context) { c.call(ctx, k, due) })
	}
	return State{Revoked: k.revoked, Refused: slices.Collect(maps.Keys(k.refused)), Err: k.why(want), Done: rest.empty()}
}

// rest returns what of it is not known to be done.
func (k *known) rest(want Want) Want {
	if want.Revoke <= k.revoked {
		want.Revoke = 0
	}
	want.Open = slices.DeleteFunc(slices.Clone(want.Open), func(h Holder) bool {
		_, is := k.open[h]
		return is || k.refused[h] || h.Token <= max(k.revoked, want.Revoke)
	})
	return want
}

// due returns what of the rest may be requested now or, if nothing may, how long to wait. Nothing is opened before the
// wanted revocation is done.
func (k *known) due(rest Want, now time.Time) (due Want, wait time.Duration) {
	if rest.Revoke > 0 {
		if wait := k.failed[request{revoke: rest.Revoke}].next.Sub(now); wait > 0 {
			return Want{}, wait
		}
	}
	due.Revoke = rest.Revoke
	for _, holder := range rest.Open {
		next := k.failed[request{open: holder}].next.Sub(now)
		if next <= 0 {
			due.Open = append(due.Open, holder)
		} else if wait == 0 || next < wait {
			wait = next
		}
	}
	return due, wait
}

// why returns why what is wanted is not done.
func (k *known) why(want Want) error {
	if want.empty() {
		return k.err
	}
	rest := k.rest(want)
	errs := []error{k.failed[request{revoke: rest.Revoke}].err}
	for _, holder := range rest.Open {
		errs = append(errs, k.failed[request{open: holder}].err)
	}
	return errors.Join(errs...)
}

// fail records that a request failed.
func (k *known) fail(r request, err error, now time.Time) {
	count := k.failed[r].count
	k.failed[r] = failure{err: err, count: count + 1, next: now.Add(min(firstPause<<min(count, 8), maxPause))}
}

// call calls a server, stores the responses, and requests a pass.
func (c *Caller) call(ctx context.Context, k *known, want Want) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := c.ask(ctx, k, want)
	c.keep(func() { k.calling, k.err = false, err })
	c.Enqueue(k.server.VM, 0) // the condition shows why it failed
}

// ask sends the requests. It opens nothing before the revocation is done.
func (c *Caller) ask(ctx context.Context, k *known, want Want) error {
	volume, end, err := c.Connect(k.server)
	if err != nil {
		c.keep(func() { k.failAll(want, err, c.Clock.Now()) })
		return err
	}
	defer end()
	if want.Revoke > 0 {
		err := volume.Revoke(ctx, want.Revoke)
		c.keep(func() { k.answerRevoke(want.Revoke, err, c.Clock.Now()) })
		if err != nil {
			return err
		}
	}
	var failed error
	for _, holder := range want.Open {
		at, err := volume.Open(ctx, holder.Token, holder.Pod)
		c.keep(func() { k.answerOpen(holder, at, err, c.Clock.Now()) })
		if err != nil && !errors.Is(err, storage.ErrRevoked) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// keep changes what is known.
func (c *Caller) keep(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// failAll records that all requests failed.
func (k *known) failAll(want Want, err error, now time.Time) {
	if want.Revoke > 0 {
		k.fail(request{revoke: want.Revoke}, err, now)
	}
	for _, holder := range want.Open {
		k.fail(request{open: holder}, err, now)
	}
}

// answerRevoke stores the response to a revocation. The disks can no longer be attached with a revoked token.
func (k *known) answerRevoke(upTo storage.Token, err error, now time.Time) {
	if err != nil {
		k.fail(request{revoke: upTo}, err, now)
		return
	}
	k.revoked = max(k.revoked, upTo)
	maps.DeleteFunc(k.open, func(h Holder, _ storage.Attachment) bool { return h.Token <= upTo })
	maps.DeleteFunc(k.failed, func(r request, _ failure) bool { return max(r.revoke, r.open.Token) <= upTo })
}

// answerOpen stores the response to an opening. A refusal is final.
func (k *known) answerOpen(holder Holder, at storage.Attachment, err error, now time.Time) {
	switch {
	case err == nil:
		k.open[holder] = at
	case errors.Is(err, storage.ErrRevoked):
		k.refused[holder] = true
	default:
		k.fail(request{open: holder}, err, now)
		return
	}
	delete(k.failed, request{open: holder})
}

// Attachment returns where the hypervisor in a Pod of a VM attaches the disks with a token; nil if they are not open to it, as
// far as this process knows.
func (c *Caller) Attachment(vm types.NamespacedName, pod string, token uint64) *vmpb.DiskServer {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[vm]
	if k == nil {
		return nil
	}
	at, is := k.open[Holder{Token: storage.Token(token), Pod: pod}]
	if !is {
		return nil
	}
	return &vmpb.DiskServer{Address: at.Address, Pod: at.Pod}
}

// Forget drops what is known of the server of a VM, which has terminated. It reports whether anything was known.
func (c *Caller) Forget(vm types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, is := c.known[vm]
	delete(c.known, vm)
	return is
}
