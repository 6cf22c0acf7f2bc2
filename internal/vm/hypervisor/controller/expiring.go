package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Terms describe an expiring lease. All fields are required.
type Terms struct {
	// Duration is the duration of each lease.
	Duration time.Duration
	// Now is the clock.
	Now func() lease.Instant
	// Connect opens another connection to the controller. A connection on which a request got no response is
	// closed, because it may be broken, which would otherwise be detected too late.
	Connect func() (*grpc.ClientConn, error)
	// Watchdog kills this process when its lease has expired.
	Watchdog Watchdog
}

// Watchdog kills a process whose lease has expired. It is implemented by *watchdog.Watchdog.
type Watchdog interface {
	Until(kill lease.Instant) error
	Lost() <-chan struct{}
}

// expiring is the state of an expiring lease. The lock of the Lease guards holder and spare.
type expiring struct {
	Terms
	holder lease.Holder
	// spare is how much time was left when the last lease was renewed.
	spare time.Duration
	// due receives a value when a lease is requested before it is due.
	due chan struct{}
	// The following fields are used only by the goroutine: the connection, and whether the last stream is open and
	// had a response.
	conn   *grpc.ClientConn
	steady bool
}

// granted applies STATUS_OK and reports whether the guest may run. It passes the deadline to the watchdog first.
func (e *expiring) granted(update *vmpb.RunLeaseUpdate, sent lease.Instant, log *slog.Logger) bool {
	duration := update.GetValidFor().AsDuration()
	if duration <= 0 {
		// The target of a migration receives only such responses until the switchover.
		log.Info("the controller's response has no duration, so it is not a lease")
		return false
	}
	if before := e.holder.Lease(); before.Duration > 0 {
		e.spare = before.Stop() - e.Now()
	}
	e.holder.Granted(lease.Lease{Sent: sent, Duration: duration}, e.Now())
	if e.holder.State(e.Now()) != lease.Holding {
		return false
	}
	if err := e.Watchdog.Until(e.holder.Lease().Kill()); err != nil {
		log.Error("the watchdog has exited", "error", err)
		e.holder.Refused()
		return false
	}
	return true
}

// renew opens one stream after another, each before the lease of the previous one expires.
func (l *Lease) renew(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.expire(ctx)
	}()
	defer func() { <-ended }()
	defer l.expiring.hangUp()
	end := func() {}
	var pause delays
	for ctx.Err() == nil {
		sent := l.expiring.Now()
		next, err := l.open(ctx, sent)
		if err == nil {
			end()
			end, err = next.end, l.follows(ctx, next, sent)
		}
		if err == nil {
			pause.reset()
			continue
		}
		if ctx.Err() != nil {
			break
		}
		l.log.Info("cannot renew the lease; retrying", "error", err)
		l.expiring.hangUp()
		l.expiring.steady = false
		l.setConnected(false)
		await(ctx, min(pause.take(), lease.Retry(l.expiring.Duration)/2), l.expiring.due)
	}
	end()
}

var errEnded = errors.New("the controller closed the stream")

// stream is a stream of run authorizations.
type stream struct {
	end   func() // cancels the stream and waits until it is closed
	ended chan struct{}
}

// open opens a stream and waits for its first response.
func (l *Lease) open(ctx context.Context, sent lease.Instant) (*stream, error) {
	if l.expiring.conn == nil {
		conn, err := l.expiring.Connect()
		if err != nil {
			return nil, err
		}
		l.expiring.conn = conn
	}
	ctx, cancel := context.WithCancel(ctx)
	opened := &stream{ended: make(chan struct{})}
	opened.end = func() {
		cancel()
		<-opened.ended
	}
	responded := make(chan struct{})
	var failure error
	go func() {
		defer close(opened.ended)
		failure = l.read(ctx, vmpb.NewVMControllerClient(l.expiring.conn), sent, responded)
	}()
	select {
	case <-responded:
		return opened, nil
	case <-opened.ended:
		cancel()
		return nil, failure
	case <-time.After(lease.Retry(l.expiring.Duration)):
		opened.end()
		return nil, fmt.Errorf("no response within %v", lease.Retry(l.expiring.Duration))
	}
}

// read reads a stream until it is closed. It closes responded after the first response.
func (l *Lease) read(ctx context.Context, client vmpb.VMControllerClient, sent lease.Instant, responded chan<- struct{}) error {
	updates, err := client.RunLease(ctx, &vmpb.RunLeaseRequest{Us: l.us})
	if err != nil {
		return status.Convert(err).Err()
	}
	for first := true; ; first = false {
		update, err := updates.Recv()
		if err != nil {
			return status.Convert(err).Err()
		}
		l.take(update, sent)
		if first {
			close(responded)
		}
	}
}

// follows waits until the lease must be renewed. It returns an error if the stream is closed earlier.
func (l *Lease) follows(ctx context.Context, open *stream, sent lease.Instant) error {
	if l.responded && !l.expiring.steady {
		l.log.Info("renewed the lease after failures", "spare", l.spare())
		l.reopened()
	}
	l.responded, l.expiring.steady = true, true
	l.setConnected(true)
	due := lease.Lease{Sent: sent, Duration: l.expiring.Duration}.Renew()
	select {
	case <-time.After(due - l.expiring.Now()):
		return nil
	case <-l.expiring.due:
		return nil
	case <-open.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *expiring) hangUp() {
	if e.conn != nil {
		_ = e.conn.Close()
		e.conn = nil
	}
}

// expire waits until the lease expires or the watchdog has exited, and publishes that.
func (l *Lease) expire(ctx context.Context) {
	for {
		left, changed := l.left()
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-changed:
		case <-l.expiring.Watchdog.Lost():
			l.log.Error("the watchdog has exited; terminating the guest")
			l.mu.Lock()
			l.expiring.holder.Refused()
			l.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// left returns how long the guest may still run. If the lease has expired, left publishes that.
func (l *Lease) left() (time.Duration, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.expiring.Now()
	switch l.expiring.holder.State(now) {
	case lease.Ended:
		next := l.current
		next.Expired = true
		l.set(next)
		return 0, nil
	case lease.Holding:
		return l.expiring.holder.Lease().Stop() - now, l.changed
	default:
		return time.Hour, l.changed
	}
}

// spare returns how much time was left when the last lease was renewed.
func (l *Lease) spare() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expiring.spare
}

// Renew requests another lease immediately. It has no effect if leases do not expire.
func (l *Lease) Renew() {
	select {
	case l.expiring.due <- struct{}{}:
	default: // already requested
	}
}

// Left returns how long the guest may run under the last lease. It returns 0 if the guest must not run or there
// was no lease. Call it only for leases that expire.
func (l *Lease) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.expiring.Now()
	if l.expiring.holder.State(now) != lease.Holding {
		return 0
	}
	return l.expiring.holder.Lease().Stop() - now
}

// Release reports to the controller that the VM has terminated here and will not run here again. If that fails,
// the lease expires.
func Release(ctx context.Context, client vmpb.VMControllerClient, us *vmpb.HypervisorID) error {
	updates, err := client.RunLease(ctx, &vmpb.RunLeaseRequest{Us: us, Release: true})
	if err != nil {
		return err
	}
	if update, err := updates.Recv(); err == nil {
		return fmt.Errorf("the controller responded with %v", update.GetStatus())
	} else if ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}
