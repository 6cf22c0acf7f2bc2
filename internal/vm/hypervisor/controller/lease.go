// Package controller is the hypervisor's client for the VM controller.
//
// A [Lease] keeps the stream of run authorizations open and holds the last response. A [Reporter] repeats the
// hypervisor's state until the controller has confirmed it. Neither of them fails, because the controller may be
// unavailable for any length of time.
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

// Back-off for all requests. While the controller is unavailable, hundreds of hypervisors retry.
const (
	firstDelay = 200 * time.Millisecond
	lastDelay  = 10 * time.Second
	// connectDelay is the longest delay between connection attempts. An attempt is cheap if nothing listens.
	connectDelay = 4 * time.Second
	// dialTime is the connection timeout for an address that does not respond, such as that of a deleted Pod. The
	// next attempt may reach another controller under the same name.
	dialTime = 2 * time.Second
)

// DialOptions returns the options for connections to a controller. A broken connection is detected even if nothing
// is sent for hours, and a reconnection is attempted at least every five seconds. With gRPC's defaults, broken
// connections are never detected and attempts are up to two minutes apart.
//
// The server must allow these pings with a keepalive.EnforcementPolicy whose MinTime is at most 20 s.
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

// delays generates the delays between attempts: they double, with jitter.
type delays struct{ next time.Duration }

func (d *delays) take() time.Duration {
	delay := max(d.next, firstDelay)
	d.next = min(2*delay, lastDelay)
	return delay + rand.N(delay/5+1) - delay/10
}

func (d *delays) reset() { d.next = 0 }

// Authorization is the controller's last response about running the VM. The zero value means that there is no
// response yet.
type Authorization struct {
	// Granted reports whether the controller has responded with STATUS_OK.
	Granted bool
	// Paused reports whether the guest must be stopped.
	Paused bool
	// Terminated reports whether the VM must be killed. Once true, it stays true.
	Terminated bool
	// Migrate reports whether the VM must move to another hypervisor.
	Migrate bool
	// Grow are the minimum sizes of the disks. A new pointer is a new request; nil requests nothing.
	Grow *Disks
	// Token is the fencing token of the lease. The target of a migration receives the token of its future lease,
	// which only allows it to attach the disks. 0 means that there is no token.
	Token uint64
	// DiskServer is where served disks are attached with the token. It is zero while the location is unknown.
	DiskServer DiskServer
	// Expired reports whether the lease has expired. A margin remains to terminate the guest. Once true, it stays
	// true.
	Expired bool
}

// DiskServer is the location of a disk server. Its fields are those of vmpb.DiskServer.
type DiskServer struct{ Address, Pod string }

// background is a client of the controller that runs in one goroutine.
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

// start runs the goroutine until Close is called.
func (b *background) start(run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() {
		defer close(b.done)
		run(ctx)
	}()
}

// wake announces a change. The caller must hold the lock.
func (b *background) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Close cancels all requests and waits until they have returned.
func (b *background) Close() {
	b.cancel()
	<-b.done
}

// Lease keeps exactly one stream of run authorizations open.
type Lease struct {
	*background
	current Authorization
	// reopened is called when a stream other than the first one gets a response.
	reopened  func()
	responded bool // whether any stream got a response
	// connected reports whether the current stream got a response. It is guarded by the lock.
	connected bool
	expiring  *expiring // nil if leases do not expire
}

// OpenLease opens the stream in the background. The caller must close the lease. OpenLease calls reopened when a
// later stream gets a response, which may come from another controller.
func OpenLease(client vmpb.VMControllerClient, us *vmpb.HypervisorID, log *slog.Logger, reopened func()) *Lease {
	l := &Lease{background: newBackground(client, us, log), reopened: reopened}
	l.start(l.keep)
	return l
}

// OpenExpiring opens and renews an expiring lease. It calls reopened when a stream gets a response after an
// earlier stream did not, or was closed.
func OpenExpiring(us *vmpb.HypervisorID, log *slog.Logger, reopened func(), terms Terms) *Lease {
	l := &Lease{background: newBackground(nil, us, log), reopened: reopened, expiring: &expiring{Terms: terms, due: make(chan struct{}, 1)}}
	l.start(l.renew)
	return l
}

// Connected reports whether a stream is open and the controller has responded to it.
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

// Current returns the last response, and a channel that is closed when there is a new one.
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
		// A stream that is closed immediately does not reset the delays, even if it had a response.
		if time.Since(opened) > lastDelay {
			pause.reset()
		}
		l.log.Info("the stream of run authorizations was closed; opening another one", "error", err)
		select {
		case <-time.After(pause.take()):
		case <-ctx.Done():
		}
	}
}

// follow reads one stream until it is closed.
func (l *Lease) follow(ctx context.Context) error {
	ctx, release := context.WithCancel(ctx) // releases the stream if the server does not close it
	defer release()
	// WaitForReady, because connecting has its own back-off, and both would add up.
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
		if first && l.responded {
			l.log.Info("the stream of run authorizations is open again")
			l.reopened()
		}
		l.responded = true
		l.setConnected(true)
		l.take(update, 0)
	}
}

// take applies the response to a request that was sent at the given time. A termination is final: the guest may
// have been killed, and another hypervisor may run the VM.
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
		l.log.Warn("ignoring an unknown response from the controller", "status", update.GetStatus())
	}
	l.set(next)
}

// set publishes a changed authorization. The caller must hold the lock.
func (l *Lease) set(next Authorization) {
	if next != l.current {
		l.current = next
		l.wake()
	}
}
