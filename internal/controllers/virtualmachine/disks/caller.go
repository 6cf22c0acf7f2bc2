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
	// callLimit is how long a server has for what it is asked for. One that is cut off takes no longer.
	callLimit = 10 * time.Second
	// firstPause and maxPause bound the time between something that failed and its repetition.
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// Server is a process that serves the disks of a VM.
type Server struct {
	// VM is whose disks it serves.
	VM types.NamespacedName
	// Pod is that of the process, and Run its number: another process has opened nothing yet.
	Pod string
	Run uint64
	// Endpoint is host and port for the VM controller.
	Endpoint string
}

// Options configure a Caller. All fields are required.
type Options struct {
	// Connect returns the volume of a server, and what ends the connection. It does not wait for the server.
	Connect func(server Server) (volume storage.Volume, end func(), err error)
	// Go runs a call outside of the pass, with a context that ends with leadership. It reports whether the call will be made.
	Go func(call func(ctx context.Context)) bool
	// Enqueue requests a pass for a VM after a time, which may be 0. It does not block.
	Enqueue func(vm types.NamespacedName, after time.Duration)
	// Clock is the time.
	Clock clock.PassiveClock
}

// Caller asks the servers of disks, for each VM at most one at a time. Make one with New. It is safe for concurrent use. What
// it knows is lost with the process: calls may be repeated.
type Caller struct {
	Options

	mu    sync.Mutex
	known map[types.NamespacedName]*known
}

// State is what is known of a server of disks.
type State struct {
	// Revoked is the highest token that it has confirmed to be revoked. 0: none.
	Revoked storage.Token
	// Refused are the holders whose tokens it says to be revoked.
	Refused []Holder
	// Err is why something that is wanted failed; if nothing is wanted, why the last call did. Nil: nothing has failed.
	Err error
	// Done reports whether it has done all that was wanted, or has refused it for ever.
	Done bool
}

// known is what is known of the server of one VM.
type known struct {
	server  Server
	revoked storage.Token
	open    map[Holder]storage.Attachment
	refused map[Holder]bool
	// failed is what the server has not done when it was last asked for it, and err why its last call failed.
	failed  map[wish]failure
	err     error
	calling bool
}

// wish is one thing that a server is asked for: a token to revoke all up to, or a holder to open the disks to.
type wish struct {
	revoke storage.Token
	open   Holder
}

// failure delays the repetition of a wish. Another wish is not delayed: the next hypervisor must not wait for what an earlier
// one was refused.
type failure struct {
	err   error
	count int
	next  time.Time
}

// New returns a Caller.
func New(options Options) *Caller {
	return &Caller{Options: options, known: map[types.NamespacedName]*known{}}
}

// Ask has a server do what is wanted and not known to be done, and returns what is known now. It does not wait: a pass is
// requested when there is an answer, and when a call that failed may be repeated.
func (c *Caller) Ask(server Server, want Want) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[server.VM]
	if k == nil || k.server != server {
		// A call to another process may be under way. Its answer changes nothing here.
		k = &known{server: server, open: map[Holder]storage.Attachment{}, refused: map[Holder]bool{}, failed: map[wish]failure{}}
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

// due returns what of the rest may be asked for now; if nothing, how long to wait. Nothing is opened before what is to be
// revoked is.
func (k *known) due(rest Want, now time.Time) (due Want, wait time.Duration) {
	if rest.Revoke > 0 {
		if wait := k.failed[wish{revoke: rest.Revoke}].next.Sub(now); wait > 0 {
			return Want{}, wait
		}
	}
	due.Revoke = rest.Revoke
	for _, holder := range rest.Open {
		next := k.failed[wish{open: holder}].next.Sub(now)
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
	errs := []error{k.failed[wish{revoke: rest.Revoke}].err}
	for _, holder := range rest.Open {
		errs = append(errs, k.failed[wish{open: holder}].err)
	}
	return errors.Join(errs...)
}

// fail notes that a wish was not fulfilled.
func (k *known) fail(w wish, err error, now time.Time) {
	count := k.failed[w].count
	k.failed[w] = failure{err: err, count: count + 1, next: now.Add(min(firstPause<<min(count, 8), maxPause))}
}

// call asks a server, keeps the answers, and requests a pass.
func (c *Caller) call(ctx context.Context, k *known, want Want) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := c.ask(ctx, k, want)
	c.keep(func() { k.calling, k.err = false, err })
	c.Enqueue(k.server.VM, 0) // the condition says why it failed
}

// ask opens nothing before what is to be revoked is.
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

// failAll notes that nothing was fulfilled.
func (k *known) failAll(want Want, err error, now time.Time) {
	if want.Revoke > 0 {
		k.fail(wish{revoke: want.Revoke}, err, now)
	}
	for _, holder := range want.Open {
		k.fail(wish{open: holder}, err, now)
	}
}

// answerRevoke keeps the answer to a revocation. Nobody can attach the disks with a revoked token any more.
func (k *known) answerRevoke(upTo storage.Token, err error, now time.Time) {
	if err != nil {
		k.fail(wish{revoke: upTo}, err, now)
		return
	}
	k.revoked = max(k.revoked, upTo)
	maps.DeleteFunc(k.open, func(h Holder, _ storage.Attachment) bool { return h.Token <= upTo })
	maps.DeleteFunc(k.failed, func(w wish, _ failure) bool { return max(w.revoke, w.open.Token) <= upTo })
}

// answerOpen keeps the answer to an opening. A refusal is final.
func (k *known) answerOpen(holder Holder, at storage.Attachment, err error, now time.Time) {
	switch {
	case err == nil:
		k.open[holder] = at
	case errors.Is(err, storage.ErrRevoked):
		k.refused[holder] = true
	default:
		k.fail(wish{open: holder}, err, now)
		return
	}
	delete(k.failed, wish{open: holder})
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

// Forget drops what is known of the server of a VM, which has ended, and reports whether there was something.
func (c *Caller) Forget(vm types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, is := c.known[vm]
	delete(c.known, vm)
	return is
}
