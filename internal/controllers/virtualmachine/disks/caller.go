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
	// callTimeout limits the duration of a call, also if the server is unreachable.
	callTimeout = 10 * time.Second
	// firstPause and maxPause bound the delay before a failed request is retried.
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// Server is a process that serves the disks of a VM.
type Server struct {
	// VM is the virtual machine whose disks the process serves.
	VM types.NamespacedName
	// Pod and Run identify the process. A new process has not opened the disks to any hypervisor.
	Pod string
	Run uint64
	// Endpoint is the host and port at which the VM controller reaches the process.
	Endpoint string
}

// Options configure a Caller. All fields are required.
type Options struct {
	// Connect returns the volume of a server, and a function that closes the connection. It does not wait for the
	// server.
	Connect func(server Server) (volume storage.Volume, end func(), err error)
	// Go runs a call outside of the reconcile pass, with a context that is canceled when leadership is lost. It
	// reports whether the call will be made.
	Go func(call func(ctx context.Context)) bool
	// Enqueue requests a pass for a VM after a delay, which may be 0. It does not block.
	Enqueue func(vm types.NamespacedName, after time.Duration)
	// Clock returns the current time.
	Clock clock.PassiveClock
}

// Caller calls disk servers, with at most one call per VM at a time. Create one with New. It is safe for concurrent
// use. Its state is lost with the process; calls are then repeated.
type Caller struct {
	Options

	mu      sync.Mutex
	servers map[types.NamespacedName]*serverState
}

// State is what the controller knows about a disk server.
type State struct {
	// Revoked is the highest token that the server has confirmed to be revoked; 0 if there is none.
	Revoked storage.Token
	// Refused are the holders whose tokens are revoked according to the server.
	Refused []Holder
	// Err is why a pending request failed, or why the last call failed if nothing is desired; nil if nothing failed.
	Err error
	// Done reports whether the server has done everything that is desired, or has refused it for good.
	Done bool
}

// serverState is what the Caller knows about the server of one VM.
type serverState struct {
	server  Server
	revoked storage.Token
	open    map[Holder]storage.Attachment
	refused map[Holder]bool
	// failed has the requests that failed. err is the error of the last call.
	failed  map[request]failure
	err     error
	calling bool
}

// request is one request to a server: to revoke all tokens up to a token, or to open the disks to a holder.
type request struct {
	revoke storage.Token
	open   Holder
}

// failure delays the retry of one request. It does not delay other requests, because the next hypervisor must not
// wait for the failed request of an earlier one.
type failure struct {
	err   error
	count int
	next  time.Time
}

// New returns a Caller.
func New(options Options) *Caller {
	return &Caller{Options: options, servers: map[types.NamespacedName]*serverState{}}
}

// Ensure calls a server if it has not confirmed everything that is desired, and returns the state that is known now.
// It does not wait for the call. It requests a pass when the server has responded, and when a failed request can be
// retried.
func (c *Caller) Ensure(server Server, desired Desired) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.servers[server.VM]
	if k == nil || k.server != server {
		// A call to the previous process may still be running. Its response does not affect the new state.
		k = &serverState{server: server, open: map[Holder]storage.Attachment{}, refused: map[Holder]bool{}, failed: map[request]failure{}}
		c.servers[server.VM] = k
	}
	pending := k.pending(desired)
	due, wait := k.due(pending, c.Clock.Now())
	switch {
	case pending.empty():
		if !desired.empty() { // if nothing is desired, the last error still applies
			k.err = nil
		}
	case due.empty():
		c.Enqueue(server.VM, wait)
	case !k.calling:
		k.calling = c.Go(func(ctx context.Context) { c.call(ctx, k, due) })
	}
	return State{Revoked: k.revoked, Refused: slices.Collect(maps.Keys(k.refused)), Err: k.errorFor(desired), Done: pending.empty()}
}

// pending returns the part of the desired state that the server has not confirmed.
func (k *serverState) pending(desired Desired) Desired {
	if desired.Revoke <= k.revoked {
		desired.Revoke = 0
	}
	desired.Open = slices.DeleteFunc(slices.Clone(desired.Open), func(h Holder) bool {
		_, is := k.open[h]
		return is || k.refused[h] || h.Token <= max(k.revoked, desired.Revoke)
	})
	return desired
}

// due returns the part of the pending state that may be requested now. If there is none, it returns how long to wait.
// The disks are not opened to anyone before a desired revocation is done.
func (k *serverState) due(pending Desired, now time.Time) (due Desired, wait time.Duration) {
	if pending.Revoke > 0 {
		if wait := k.failed[request{revoke: pending.Revoke}].next.Sub(now); wait > 0 {
			return Desired{}, wait
		}
	}
	due.Revoke = pending.Revoke
	for _, holder := range pending.Open {
		next := k.failed[request{open: holder}].next.Sub(now)
		if next <= 0 {
			due.Open = append(due.Open, holder)
		} else if wait == 0 || next < wait {
			wait = next
		}
	}
	return due, wait
}

// errorFor returns why the desired state is not reached.
func (k *serverState) errorFor(desired Desired) error {
	if desired.empty() {
		return k.err
	}
	pending := k.pending(desired)
	errs := []error{k.failed[request{revoke: pending.Revoke}].err}
	for _, holder := range pending.Open {
		errs = append(errs, k.failed[request{open: holder}].err)
	}
	return errors.Join(errs...)
}

// fail records that a request failed.
func (k *serverState) fail(r request, err error, now time.Time) {
	count := k.failed[r].count
	k.failed[r] = failure{err: err, count: count + 1, next: now.Add(min(firstPause<<min(count, 8), maxPause))}
}

// call sends requests to a server, stores the responses, and requests a pass.
func (c *Caller) call(ctx context.Context, k *serverState, desired Desired) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.send(ctx, k, desired)
	c.update(func() { k.calling, k.err = false, err })
	c.Enqueue(k.server.VM, 0) // the condition then shows the error, if any
}

// send sends the requests. It does not open the disks to anyone before the revocation is done.
func (c *Caller) send(ctx context.Context, k *serverState, desired Desired) error {
	volume, end, err := c.Connect(k.server)
	if err != nil {
		c.update(func() { k.failAll(desired, err, c.Clock.Now()) })
		return err
	}
	defer end()
	if desired.Revoke > 0 {
		err := volume.Revoke(ctx, desired.Revoke)
		c.update(func() { k.recordRevoke(desired.Revoke, err, c.Clock.Now()) })
		if err != nil {
			return err
		}
	}
	var failed error
	for _, holder := range desired.Open {
		at, err := volume.Open(ctx, holder.Token, holder.Pod)
		c.update(func() { k.recordOpen(holder, at, err, c.Clock.Now()) })
		if err != nil && !errors.Is(err, storage.ErrRevoked) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// update changes the state under the lock.
func (c *Caller) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// failAll records that all requests failed.
func (k *serverState) failAll(desired Desired, err error, now time.Time) {
	if desired.Revoke > 0 {
		k.fail(request{revoke: desired.Revoke}, err, now)
	}
	for _, holder := range desired.Open {
		k.fail(request{open: holder}, err, now)
	}
}

// recordRevoke stores the response to a revocation. The disks can no longer be attached with a revoked token.
func (k *serverState) recordRevoke(upTo storage.Token, err error, now time.Time) {
	if err != nil {
		k.fail(request{revoke: upTo}, err, now)
		return
	}
	k.revoked = max(k.revoked, upTo)
	maps.DeleteFunc(k.open, func(h Holder, _ storage.Attachment) bool { return h.Token <= upTo })
	maps.DeleteFunc(k.failed, func(r request, _ failure) bool { return max(r.revoke, r.open.Token) <= upTo })
}

// recordOpen stores the response to an opening. A refusal is final.
func (k *serverState) recordOpen(holder Holder, at storage.Attachment, err error, now time.Time) {
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

// Attachment returns where the hypervisor in a Pod of a VM attaches the disks with a token. It returns nil if this
// process does not know that the disks are open to it.
func (c *Caller) Attachment(vm types.NamespacedName, pod string, token uint64) *vmpb.DiskServer {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.servers[vm]
	if k == nil {
		return nil
	}
	at, is := k.open[Holder{Token: storage.Token(token), Pod: pod}]
	if !is {
		return nil
	}
	return &vmpb.DiskServer{Address: at.Address, Pod: at.Pod}
}

// Forget drops the state of a VM's server, which has terminated. It reports whether there was any state.
func (c *Caller) Forget(vm types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, is := c.servers[vm]
	delete(c.servers, vm)
	return is
}
