package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// progressEvery is how often mere numbers are reported.
	progressEvery = time.Second
	// reportLimit is how long one report may take.
	reportLimit = 5 * time.Second
)

// Report is what a hypervisor does. Its fields are those of vmpb.ReportStateRequest.
type Report struct {
	State      vmpb.ReportStateRequest_State
	Message    string
	DoneBytes  uint64
	TotalBytes uint64
	// Endpoint and Prepared are kept from one report to the next: see Reporter.Tell.
	Endpoint string
	Prepared bool
}

// withoutNumbers is what is worth a report at once.
func (r Report) withoutNumbers() Report {
	r.DoneBytes, r.TotalBytes = 0, 0
	return r
}

// Reporter tells the controller what the hypervisor does.
type Reporter struct {
	client vmpb.VMControllerClient
	us     *vmpb.HypervisorID
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	current Report
	// confirmed is the last report that the controller has answered.
	confirmed Report
	// silent says that the controller does not want to know.
	silent  bool
	changed chan struct{}
}

// NewReporter starts a reporter that has nothing to tell yet. It must be closed.
func NewReporter(client vmpb.VMControllerClient, us *vmpb.HypervisorID, log *slog.Logger) *Reporter {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Reporter{
		client: client, us: us, log: log, cancel: cancel,
		done: make(chan struct{}), changed: make(chan struct{}),
	}
	go r.keep(ctx)
	return r
}

// Update changes the report to send, and does not wait until it is sent. The function
// gets the last report with an empty message and no numbers.
func (r *Reporter) Update(change func(*Report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.current.withoutNumbers()
	next.Message = ""
	change(&next)
	if next != r.current {
		r.current = next
		r.wake()
	}
}

// Confirmed waits until the controller has answered what there is to tell, or does not
// want to know. Otherwise it returns the context's cause.
func (r *Reporter) Confirmed(ctx context.Context) error {
	for {
		r.mu.Lock()
		settled, changed := r.settled(), r.changed
		r.mu.Unlock()
		if settled {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close ends the reports, and waits until none is under way.
func (r *Reporter) Close() {
	r.cancel()
	<-r.done
}

// settled reports whether there is nothing to do. The caller holds the lock.
func (r *Reporter) settled() bool {
	unknown := r.current.State == vmpb.ReportStateRequest_STATE_UNKNOWN
	return r.silent || unknown || r.current == r.confirmed
}

// wake tells everybody that waits. The caller holds the lock.
func (r *Reporter) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// attempt is the last try to tell something.
type attempt struct {
	report Report
	// again is when the same may be told again, or with other numbers.
	again time.Time
}

// pending returns what is to be told now. Otherwise, how long to wait for; 0 is until
// something changes.
func (r *Reporter) pending(last attempt) (report Report, due bool, wait time.Duration, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled() {
		return Report{}, false, 0, r.changed
	}
	if r.current.withoutNumbers() == last.report.withoutNumbers() {
		wait = time.Until(last.again)
	}
	return r.current, wait <= 0, wait, r.changed
}

func (r *Reporter) keep(ctx context.Context) {
	defer close(r.done)
	var pause delays
	var last attempt
	for ctx.Err() == nil {
		report, due, wait, changed := r.pending(last)
		if !due {
			await(ctx, wait, changed)
			continue
		}
		last = attempt{report, time.Now().Add(progressEvery)}
		err := r.send(ctx, report)
		switch {
		case err == nil:
			pause.reset()
		case ctx.Err() == nil:
			last.again = time.Now().Add(pause.take())
			r.log.Log(ctx, importance(err), "the controller did not take a report; it is repeated", "error", err)
		}
	}
}

// importance of a failed report. That we are not authoritative is what the first report
// often hears, as it and the lease are under way at the same time.
func importance(err error) slog.Level {
	if status.Code(err) == codes.FailedPrecondition {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// await waits for the time or the channel, whichever comes first; a time of 0 never
// comes.
func await(ctx context.Context, limit time.Duration, changed <-chan struct{}) {
	var late <-chan time.Time
	if limit > 0 {
		late = time.After(limit)
	}
	select {
	case <-late:
	case <-changed:
	case <-ctx.Done():
	}
}

func (r *Reporter) send(ctx context.Context, report Report) error {
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	_, err := r.client.ReportState(ctx, &vmpb.ReportStateRequest{
		Us:            r.us,
		State:         report.State,
		Message:       report.Message,
		DoneBytes:     report.DoneBytes,
		TotalBytes:    report.TotalBytes,
		Endpoint:      report.Endpoint,
		ImagePrepared: report.Prepared,
	})
	silent := status.Code(err) == codes.Unimplemented
	if err != nil && !silent {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.confirmed, r.silent = report, silent
	r.wake()
	return nil
}
