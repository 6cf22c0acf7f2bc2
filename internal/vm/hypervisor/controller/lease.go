// Package controller is a hypervisor's client of the VM controller.
//
// A [Lease] keeps the stream of run authorizations open and holds the last response; a [Reporter] repeats the
// hypervisor's state until the controller has confirmed it. Neither fails: the controller may be unavailable for any
// time.
package controller

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Back-off of all requests: while the controller is unavailable, hundreds of hypervisors retry.
const (
	firstDelay = 200 * time.Millisecond
	lastDelay  = 10 * time.Second
	// connectDelay is the longest delay between attempts to connect, which cost nothing if nothing listens.
	connectDelay = 4 * time.Second
	// dialTime is the timeout for an address that does not respond, such as that of a deleted Pod. The next attempt
	// may reach another controller under the same name.
	dialTime = 2 * time.Second
)

// DialOptions are the options for connections to a controller. A broken connection is noticed even if nothing is sent
// for hours, and a new one is attempted at least every five seconds. With gRPC's defaults, broken connections are
// never noticed, and attempts are up to two minutes apart.
//
// The server must allow pings: keepalive.EnforcementPolicy with a MinTime of 20 s or less.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstDelay, Multiplier: 2, Jitter: 0.2, MaxDelay: connectDelay},
			MinConnectTimeout: lastDelay,
		}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", address)
		}),
	}
}

// delays returns the delays between attempts: doubling, with jitter.
type delays struct{ next time.Duration }

func (d *delays) take() time.Duration {
	delay := max(d.next, firstDelay)
	d.next = min(2*delay, lastDelay)
	return delay + rand.N(delay/5+1) - delay/10
}

func (d *delays) reset() { d.next = 0 }

// Authorization is the controller's last response about running the VM. The zero value means that there is none yet.
type Authorization struct {
	// Granted reports whether the controller has responded with STATUS_OK.
	Granted bool
	// Paused reports whether the guest must be stopped.
	Paused bool
	// Terminated reports whether the VM must be killed. It is never revoked.
	Terminated bool
	// Migrate reports whether the VM must move to another hypervisor.
	Migrate bool
	// Grow are the minimum sizes of the disks. A new pointer is a new request; nil requests nothing.
	Grow *Disks
	// Token is the fencing token of the lease. The target of a migration gets the token of its future lease, which
	// only allows it to attach the disks. 0 means that there is none.
	Token uint64
	// DiskServer is where served disks are attached with the token. It is zero if that is not known yet.
	DiskServer DiskServer
	// Expired reports whether a lease has expired, except for the time to terminate the guest. It is never revoked.
	Expired bool
}

// DiskServer locates a disk server. Its fields are those of vmpb.DiskServer.
type DiskServer struct{ Address, Pod string }

// background is a client of the controller with one goroutine.
type background struct {
	client vmpb.VMControllerClient
	us     *vmpb.HypervisorID
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed when a field that mu guards has changed
}

func newBackground(client vmpb.VMControllerClient, us *vmpb.HypervisorID, log *slog.Logger) *background {
	return &background{client: client, us: us, log: log, done: make(chan struct{}), changed: make(chan struct{})}
}

// start runs the goroutine until Close.
func (b *background) start(run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() {
		defer close(b.done)
		run(ctx)
	}()
}

// wake announces a change. The caller holds the lock.
func (b *background) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Close cancels the requests, and waits until none is in progress.
func (b *background) Close() {
	b.cancel()
	<-b.done
}

// Lease keeps exactly one stream of run authorizations open.
type Lease struct {
	*background
	current Authorization
	// reopened is called when a stream after the first one gets a response.
	reopened func()
	answered bool // a stream got a response
	// connected is whether the current stream got a response. The lock guards it.
	connected bool
	expiring  *expiring // nil if leases do not expire
}

// OpenLease opens the stream in the background. The lease must be closed. reopened is called when a later stream gets
// a response: it may come from another controller.
func OpenLease(client vmpb.VMControllerClient, us *vmpb.HypervisorID, log *slog.Logger, reopened func()) *Lease {
	l := &Lease{background: newBackground(client, us, log), reopened: reopened}
	l.start(l.keep)
	return l
}

// OpenExpiring opens and renews a lease that expires. reopened is called when a stream gets a response after one that
// did not, or that ended.
func OpenExpiring(us *vmpb.HypervisorID, log *slog.Logger, reopened func(), terms Terms) *Lease {
	l := &Lease{background: newBackground(nil, us, log), reopened: reopened, expiring: &expiring{Terms: terms, due: make(chan struct{}, 1)}}
	l.start(l.renew)
	return l
}

// Connected reports whether a stream is open to which the controller has responded.
func (l *Lease) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.connected
}

func (l *Lease) setConnected(connected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connected = connected
}

// Current returns the last response, and a channel that is closed when there is another one.
func (l *Lease) Current() (Authorization, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.changed
}

func (l *Lease) keep(ctx context.Context) {
	var pause delays
	for ctx.Err() == nil {
		opened := time.Now()
		err := l.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		// A stream that ends immediately does not reset the delays, even with a response.
		if time.Since(opened) > lastDelay {
			pause.reset()
		}
		l.log.Info("the stream of run authorizations ended; opening another one", "error", err)
		select {
		case <-time.After(pause.take()):
		case <-ctx.Done():
		}
	}
}

// follow reads one stream to its end.
func (l *Lease) follow(ctx context.Context) error {
	ctx, release := context.WithCancel(ctx) // releases a stream that does not end by itself
	defer release()
	// WaitForReady, since connecting has its own back-off, and both would add up.
	stream, err := l.client.RunLease(ctx, &vmpb.RunLeaseRequest{Us: l.us}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	defer l.setConnected(false)
	for first := true; ; first = false {
		update, err := stream.Recv()
		if err != nil {
			return status.Convert(err).Err()
		}
		if first && l.answered {
			l.log.Info("the stream of run authorizations is open again")
			l.reopened()
		}
		l.answered = true
		l.setConnected(true)
		l.take(update, 0)
	}
}

// take applies the response to a request that was sent at the given time. A termination is final: the guest may have
// been killed, and another hypervisor may run the VM.
func (l *Lease) take(update *vmpb.RunLeaseUpdate, sent lease.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.current
	switch update.GetStatus() {
	case vmpb.RunLeaseUpdate_STATUS_OK:
		// The target of a migration attaches the disks before it has a lease.
		next.Token = update.GetFencingToken()
		next.DiskServer = DiskServer{Address: update.GetDiskServer().GetAddress(), Pod: update.GetDiskServer().GetPod()}
		if l.expiring != nil && !l.expiring.granted(update, sent, l.log) {
			break
		}
		next.Granted, next.Paused, next.Migrate = true, update.GetPaused(), update.GetMigrate()
		next.Grow = next.Grow.orNew(update.GetGrow())
	case vmpb.RunLeaseUpdate_STATUS_TERMINATE:
		next.Terminated = true
	default:
		l.log.Warn("ignoring an unknown response of the controller", "status", update.GetStatus())
	}
	l.set(next)
}

// set publishes a changed authorization. The caller holds the lock.
func (l *Lease) set(next Authorization) {
	if next != l.current {
		l.current = next
		l.wake()
	}
}
