package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Authorization is what the controller said last about running the VM. The zero value:
// nothing yet.
type Authorization struct {
	// Granted says that the controller has said STATUS_OK at least once. It does not
	// expire.
	Granted bool
	// Paused says that the guest is to be held.
	Paused bool
	// Terminated says that the VM must be killed. It is never taken back.
	Terminated bool
}

// Lease keeps exactly one stream of run authorizations open, opening a new one
// whenever one ends.
type Lease struct {
	client vmpb.VMControllerClient
	us     *vmpb.HypervisorID
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	current Authorization
	changed chan struct{}
}

// OpenLease starts asking. The lease must be closed.
func OpenLease(client vmpb.VMControllerClient, us *vmpb.HypervisorID, log *slog.Logger) *Lease {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Lease{
		client: client, us: us, log: log, cancel: cancel,
		done: make(chan struct{}), changed: make(chan struct{}),
	}
	go l.keep(ctx)
	return l
}

// Current returns the last answer, and a channel that is closed when there is another.
func (l *Lease) Current() (Authorization, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.changed
}

// Close ends the stream, and waits until nothing is asked any more.
func (l *Lease) Close() {
	l.cancel()
	<-l.done
}

func (l *Lease) keep(ctx context.Context) {
	defer close(l.done)
	var pause delays
	for ctx.Err() == nil {
		opened := time.Now()
		err := l.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		// A stream that ends as soon as it was opened is no reason to hurry, also if
		// it brought an answer.
		if time.Since(opened) > lastDelay {
			pause.reset()
		}
		l.log.Info("the stream of run authorizations ended; opening another", "error", err)
		select {
		case <-time.After(pause.take()):
		case <-ctx.Done():
		}
	}
}

// follow lives as long as one stream.
func (l *Lease) follow(ctx context.Context) error {
	// The stream is released also where it did not end by itself.
	ctx, release := context.WithCancel(ctx)
	defer release()
	stream, err := l.client.RunLease(ctx, &vmpb.RunLeaseRequest{Us: l.us})
	if err != nil {
		return err
	}
	for {
		update, err := stream.Recv()
		if err != nil {
			return status.Convert(err).Err()
		}
		l.take(update)
	}
}

// take applies an answer. A termination stays, whatever comes after it: the guest may
// be dead already, and another one runs.
func (l *Lease) take(update *vmpb.RunLeaseUpdate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.current
	switch update.GetStatus() {
	case vmpb.RunLeaseUpdate_STATUS_OK:
		next.Granted, next.Paused = true, update.GetPaused()
	case vmpb.RunLeaseUpdate_STATUS_TERMINATE:
		next.Terminated = true
	default:
		l.log.Warn("the controller's answer is unknown and changes nothing", "status", update.GetStatus())
	}
	if next == l.current {
		return
	}
	l.current = next
	close(l.changed)
	l.changed = make(chan struct{})
}
