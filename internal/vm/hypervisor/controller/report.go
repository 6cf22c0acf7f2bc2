package controller

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// progressInterval is the minimum time between two reports that differ only in numbers.
	progressInterval = time.Second
	// reportLimit is the timeout of a report.
	reportLimit = 5 * time.Second
	// maxMessage is the maximum length of a message in bytes. Messages may come from QEMU or from the storage.
	maxMessage = 1024
)

// Report is the state of a hypervisor. Its fields are those of vmpb.ReportStateRequest.
type Report struct {
	State      vmpb.ReportStateRequest_State
	Cause      vmpb.ReportStateRequest_Cause
	Message    string
	DoneBytes  uint64
	TotalBytes uint64
	// Endpoint and Prepared are carried over from one report to the next; see Reporter.Update.
	Endpoint string
	Prepared bool
	// Disks is carried over, too. It is replaced, never modified. If nil, the sizes are unknown.
	Disks *Disks
	// Migration and CanMigrate are carried over, too. The zero Migration means that no migration is in progress.
	Migration  Migration
	CanMigrate bool
	// Guest is set by Reporter.SetGuest.
	Guest Guest

	sequence uint64
}

// Guest is whether the guest is ready for connections.
type Guest struct {
	// Checked is false if the guest is not checked.
	Checked bool
	Ready   bool
	// Message is why the guest is not ready.
	Message string
}

func (g Guest) message() *vmpb.ReportStateRequest_Guest {
	if !g.Checked {
		return nil
	}
	return &vmpb.ReportStateRequest_Guest{Ready: g.Ready, Message: g.Message}
}

// Disks are the sizes of disks.
type Disks []*vmpb.DiskSize

func (d *Disks) list() []*vmpb.DiskSize {
	if d == nil {
		return nil
	}
	return *d
}

// orNew returns d if it has these sizes, and a new value otherwise.
func (d *Disks) orNew(sizes []*vmpb.DiskSize) *Disks {
	same := slices.EqualFunc(d.list(), sizes, func(a, b *vmpb.DiskSize) bool {
		return a.GetName() == b.GetName() && a.GetBytes() == b.GetBytes()
	})
	switch {
	case same:
		return d
	case len(sizes) == 0:
		return nil
	}
	return (*Disks)(&sizes)
}

// Migration is the progress of a migration. Its fields are those of vmpb.ReportStateRequest_Migration.
type Migration struct {
	Phase      vmpb.ReportStateRequest_Migration_Phase
	TargetPod  string
	DoneBytes  uint64
	TotalBytes uint64
	Message    string
	// Convergence and TimedOut are not numbers: their changes are sent immediately.
	Convergence vmpb.ReportStateRequest_Migration_Convergence
	TimedOut    bool
}

func (m Migration) message() *vmpb.ReportStateRequest_Migration {
	if m == (Migration{}) {
		return nil
	}
	return &vmpb.ReportStateRequest_Migration{
		Phase: m.Phase, TargetPod: m.TargetPod, DoneBytes: m.DoneBytes, TotalBytes: m.TotalBytes, Message: text(m.Message),
		Convergence: m.Convergence, TimedOut: m.TimedOut,
	}
}

// withoutNumbers returns the part of the report whose changes are sent immediately.
func (r Report) withoutNumbers() Report {
	r.DoneBytes, r.TotalBytes, r.sequence = 0, 0, 0
	r.Migration.DoneBytes, r.Migration.TotalBytes = 0, 0
	return r
}

// Reporter reports the hypervisor's state to the controller.
type Reporter struct {
	*background
	current   Report
	confirmed Report // the last report that the controller has confirmed
	silent    bool   // whether the controller does not accept reports
}

// NewReporter returns a reporter without a report. The caller must close it.
func NewReporter(client vmpb.VMControllerClient, us *vmpb.HypervisorID, log *slog.Logger) *Reporter {
	r := &Reporter{background: newBackground(client, us, log)}
	r.start(r.keep)
	return r
}

// Update changes the report without waiting until it is sent. The function receives the last report without its
// cause, message and numbers. A message that is too long or not valid UTF-8 is changed so that it can be sent.
func (r *Reporter) Update(change func(*Report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.current.withoutNumbers()
	next.sequence, next.Migration = r.current.sequence, r.current.Migration
	next.Cause, next.Message = vmpb.ReportStateRequest_CAUSE_UNKNOWN, ""
	change(&next)
	next.Message = text(next.Message)
	if next != r.current {
		next.sequence++
		r.current = next
		r.wake()
	}
}

// SetGuest changes only whether the guest is ready. Unlike Update, it keeps the message of the report.
func (r *Reporter) SetGuest(guest Guest) {
	guest.Message = text(guest.Message)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current.Guest != guest {
		r.current.Guest = guest
		r.current.sequence++
		r.wake()
	}
}

// text returns the message in a form that can be sent.
func text(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "\uFFFD")
}

// Become changes the run on whose behalf later reports are sent.
func (r *Reporter) Become(us *vmpb.HypervisorID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.us = us
	r.confirmed = Report{}
	r.wake()
}

// Repeat sends the current report again, because the controller may be a different one.
func (r *Reporter) Repeat() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.confirmed, r.silent = Report{}, false
	r.wake()
}

// Confirmed waits until the controller has confirmed the current report. It also returns nil if the controller
// does not accept reports. Otherwise it returns the context's cause.
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

// settled reports whether there is nothing to send. The caller must hold the lock.
func (r *Reporter) settled() bool {
	unknown := r.current.State == vmpb.ReportStateRequest_STATE_UNKNOWN
	return r.silent || unknown || r.current == r.confirmed
}

// attempt describes the last attempt to send a report.
type attempt struct {
	report Report
	again  time.Time // when it may be sent again even if only numbers have changed
}

// pending returns the report to send now. If no report is due, wait is the time until one is; 0 means that it
// becomes due only when something changes.
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
	var pause delays
	var last attempt
	for ctx.Err() == nil {
		report, due, wait, changed := r.pending(last)
		if !due {
			await(ctx, wait, changed)
			continue
		}
		last = attempt{report, time.Now().Add(progressInterval)}
		err := r.send(ctx, report)
		switch {
		case err == nil:
			pause.reset()
		case ctx.Err() == nil:
			last.again = time.Now().Add(pause.take())
			level := slog.LevelInfo
			if status.Code(err) == codes.FailedPrecondition {
				// This hypervisor is not authoritative yet, because the first report and the lease are requested
				// concurrently.
				level = slog.LevelDebug
			}
			r.log.Log(ctx, level, "cannot report the state to the controller; retrying", "error", err)
		}
	}
}

// await waits for the time limit (0 means none) or until the channel is closed.
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
	r.mu.Lock()
	us := r.us
	r.mu.Unlock()
	_, err := r.client.ReportState(ctx, &vmpb.ReportStateRequest{
		Us:            us,
		State:         report.State,
		Cause:         report.Cause,
		Message:       report.Message,
		DoneBytes:     report.DoneBytes,
		TotalBytes:    report.TotalBytes,
		Endpoint:      report.Endpoint,
		ImagePrepared: report.Prepared,
		Sequence:      report.sequence,
		Migration:     report.Migration.message(),
		CanMigrate:    report.CanMigrate,
		Guest:         report.Guest.message(),
		Disks:         report.Disks.list(),
	})
	silent := status.Code(err) == codes.Unimplemented
	if err != nil && !silent {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.us == us { // otherwise the report belonged to another run
		r.confirmed, r.silent = report, silent
	}
	r.wake()
	return nil
}
