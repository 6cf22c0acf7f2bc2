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
	// firstPause and maxPause bound the time between a call that failed and the next one.
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
	// Err is why the last call failed. Nil: it did not.
	Err error
	// Done reports whether it has done all that was wanted, or has refused it for ever.
	Done bool
}

// known is what is known of the server of one VM.
type known struct {
	server   Server
	revoked  storage.Token
	open     map[Holder]storage.Attachment
	refused  map[Holder]bool
	err      error
	calling  bool
	failures int
	next     time.Time
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
		k = &known{server: server, open: map[Holder]storage.Attachment{}, refused: map[Holder]bool{}}
		c.known[server.VM] = k
	}
	rest := k.rest(want)
	if k.done(want) {
		k.succeed(want)
	} else if wait := k.next.Sub(c.Clock.Now()); wait > 0 {
		c.Enqueue(server.VM, wait)
	} else if !k.calling {
		k.calling = c.Go(func(ctx context.Context) { c.call(ctx, k, rest) })
	}
	return State{Revoked: k.revoked, Refused: slices.Collect(maps.Keys(k.refused)), Err: k.err, Done: k.done(want)}
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

func (k *known) done(want Want) bool {
	rest := k.rest(want)
	return rest.Revoke == 0 && len(rest.Open) == 0
}

// succeed forgets that calls have failed. That nothing is wanted says nothing of the server.
func (k *known) succeed(want Want) {
	if want.Revoke > 0 || len(want.Open) > 0 {
		k.err, k.failures = nil, 0
	}
}

// call asks a server, keeps the answers, and requests a pass.
func (c *Caller) call(ctx context.Context, k *known, want Want) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := c.ask(ctx, k, want)
	c.keep(func() {
		k.calling, k.err = false, err
		if err == nil {
			k.failures = 0
			return
		}
		k.next = c.Clock.Now().Add(min(firstPause<<min(k.failures, 8), maxPause))
		k.failures++
	})
	c.Enqueue(k.server.VM, 0) // the condition says why it failed
}

// ask opens nothing before what is to be revoked is.
func (c *Caller) ask(ctx context.Context, k *known, want Want) error {
	volume, end, err := c.Connect(k.server)
	if err != nil {
		return err
	}
	defer end()
	if want.Revoke > 0 {
		if err := volume.Revoke(ctx, want.Revoke); err != nil {
			return err
		}
		c.keep(func() { k.revoke(want.Revoke) })
	}
	var failed error
	for _, holder := range want.Open {
		at, err := volume.Open(ctx, holder.Token, holder.Pod)
		switch {
		case err == nil:
			c.keep(func() { k.open[holder] = at })
		case errors.Is(err, storage.ErrRevoked):
			c.keep(func() { k.refused[holder] = true })
		default:
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

// revoke notes that tokens are revoked. Nobody can attach the disks with one any more.
func (k *known) revoke(upTo storage.Token) {
	k.revoked = max(k.revoked, upTo)
	maps.DeleteFunc(k.open, func(h Holder, _ storage.Attachment) bool { return h.Token <= upTo })
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
