package departure

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/bulk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

var (
	errCanceled = errors.New("the migration was canceled")
	errStalled  = errors.New("the copy made no progress")
	errTooLong  = errors.New("the rest of the copy took too long while the guest was stopped")
	errTimedOut = errors.New("the copy did not complete within its timeout")
)

// patientWait is how long a request for a target must have waited for the next one to be sent immediately.
const patientWait = 10 * time.Second

// ask asks the controller for a target.
func (d *Departure) ask(ctx context.Context, emit func(Result)) {
	limited, cancel := context.WithTimeout(ctx, d.Timing.Ask)
	defer cancel()
	d.attempt = attempt{}
	begun := time.Now()
	request := &vmpb.EnsureMigrationTargetRequest{Us: d.Us}
	if leaving := d.leaving.Load(); leaving != nil {
		request.Stopping = durationpb.New(begun.Sub(leaving.since))
	}
	response, err := d.Controller.EnsureMigrationTarget(limited, request)
	switch {
	case status.Code(err) == codes.Unimplemented:
		emit(Result{event: handover.NoTarget}) // the controller does not support migration
	case err != nil:
		d.Log.Warn("cannot get a target for the migration", "error", err)
		emit(Result{event: handover.Failed, waited: time.Since(begun) >= patientWait})
	case response.GetAction() == vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN:
		emit(Result{event: handover.NoTarget})
	case response.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE || response.GetTargetEndpoint() == "":
		d.Log.Warn("the controller responded with an unknown action", "response", response)
		emit(Result{event: handover.Failed})
	case response.GetTargetPod() == "":
		// Without the Pod, anyone with a certificate for the VM could be the target.
		d.Log.Warn("the controller's response does not name the Pod of the target; not migrating")
		emit(Result{event: handover.NoTarget})
	default:
		d.attempt = attempt{endpoint: response.GetTargetEndpoint(), pod: response.GetTargetPod(), limits: response.GetLimits()}
		emit(Result{event: handover.TargetFound, Grace: response.GetGrace().AsDuration()})
	}
}

// negotiate agrees on a protocol with the target.
func (d *Departure) negotiate(ctx context.Context, emit func(Result)) {
	limited, cancel := context.WithTimeout(ctx, d.Timing.Negotiate)
	defer cancel()
	agreed, err := d.offer(limited)
	if err != nil {
		d.failed(fmt.Errorf("negotiating with %s: %w", d.attempt.pod, err), emit)
		return
	}
	d.attempt.agreed = agreed
	emit(Result{event: handover.Agreed})
}

func (d *Departure) offer(ctx context.Context) (*vmpb.MigrationProtocol_QemuNBD, error) {
	machine, err := d.Describe()
	if err != nil {
		return nil, err
	}
	conn, err := d.Siblings.Dial(d.attempt.endpoint, d.attempt.pod)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	offered := negotiation.Offer(machine)
	// The call waits for a connection until its context expires.
	response, err := vmpb.NewHypervisorClient(conn).StartMigration(ctx,
		&vmpb.StartMigrationRequest{SupportedMigrationProtocol: offered, Us: d.Us}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	return negotiation.Verify(offered, response.GetMigrationProtocol())
}

// failed reports the failure of the attempt.
func (d *Departure) failed(err error, emit func(Result)) {
	d.Log.Warn("the migration failed", "target", d.attempt.pod, "error", err)
	d.Report(controller.Migration{
		Phase: vmpb.ReportStateRequest_Migration_PHASE_FAILED, TargetPod: d.attempt.pod, Message: err.Error(),
		Convergence: d.attempt.convergence, TimedOut: errors.Is(err, errTimedOut),
	})
	emit(Result{event: handover.Failed})
}

func (d *Departure) report(phase vmpb.ReportStateRequest_Migration_Phase, done qemu.Progress, message string) {
	d.Report(controller.Migration{
		Phase: phase, TargetPod: d.attempt.pod, DoneBytes: done.Done, TotalBytes: done.Total, Message: message,
		Convergence: d.attempt.convergence,
	})
}

// copy sends the disks and the memory. It reports an event when the guest has been stopped, and another when
// everything was sent.
func (d *Departure) copy(ctx context.Context, emit func(Result)) {
	d.report(vmpb.ReportStateRequest_Migration_PHASE_COPYING, qemu.Progress{}, "")
	to := d.destination()
	err := d.openSender(to)
	if err == nil {
		err = d.send(ctx, to)
	}
	if err != nil {
		d.failed(err, emit)
		return
	}
	d.report(vmpb.ReportStateRequest_Migration_PHASE_STOPPED, qemu.Progress{}, "")
	emit(Result{event: handover.GuestStopped})
	limited, cancel := context.WithTimeoutCause(ctx, d.Timing.Rest, errTooLong)
	defer cancel()
	if err = d.Machine.Finish(limited, to); err == nil {
		err = d.attempt.sender.Sent(limited)
	}
	if err != nil {
		d.failed(err, emit)
		return
	}
	emit(Result{event: handover.Copied})
}

// destination returns the destination of the copy, with the controller's limits.
func (d *Departure) destination() qemu.Destination {
	limits := d.attempt.limits
	return qemu.Destination{
		Exports:        exportsOf(d.attempt.agreed),
		Bandwidth:      cmp.Or(limits.GetBandwidth(), d.Bandwidth),
		Downtime:       limits.GetDowntime().AsDuration(),
		AutoConverge:   !limits.GetNoAutoConverge(),
		ForcedDowntime: d.Timing.Rest * 2 / 3, // the disks, and a wrong estimate of QEMU, need time, too
	}
}

// exportsOf returns the target's exports for the disks.
func exportsOf(agreed *vmpb.MigrationProtocol_QemuNBD) []qemu.Export {
	if !agreed.GetConstraintWithBlockmigration() {
		return nil
	}
	exports := []qemu.Export{{Name: agreed.GetNegotiatedExport(), Bytes: agreed.GetConstraintDiskBytes()}}
	for i, disk := range agreed.GetConstraintDataDisks() {
		exports = append(exports, qemu.Export{
			Serial: disk.GetName(), Name: agreed.GetNegotiatedDataExports()[i], Bytes: disk.GetBytes(),
		})
	}
	return exports
}

// openSender connects QEMU's sockets to the target.
func (d *Departure) openSender(to qemu.Destination) error {
	channels := map[bulk.Channel]bulk.Source{}
	memory, err := d.Machine.Listen(qemu.MemorySocket)
	if err != nil {
		return err
	}
	channels[bulk.Memory] = bulk.Source{From: memory, To: strings.TrimPrefix(d.attempt.agreed.GetNegotiatedEndpoint(), "tcp:")}
	if len(to.Exports) > 0 {
		disk, err := d.Machine.Listen(qemu.DiskSocket)
		if err != nil {
			_ = memory.Close()
			return err
		}
		channels[bulk.Disk] = bulk.Source{From: disk, To: d.attempt.agreed.GetNegotiatedNbdEndpoint()}
	}
	pod := d.attempt.pod
	d.attempt.sender = bulk.NewSender(func(ctx context.Context, raw net.Conn, channel bulk.Channel) (*tls.Conn, error) {
		return d.Siblings.Connect(ctx, raw, pod, string(channel))
	})
	d.attempt.sender.Start(channels)
	return nil
}

// send copies until QEMU has stopped the guest. It fails if it makes no progress for Timing.Stall, or if the pace of
// the copy requires it.
func (d *Departure) send(ctx context.Context, to qemu.Destination) error {
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(d.Timing.Stall, func() { cancel(errStalled) })
	defer stall.Stop()
	pace := paceOf(d.attempt.limits, time.Now())
	to.Force = func() bool {
		if pace.next(time.Now(), d.forceAt()) != forceRest {
			return false
		}
		d.Log.Info("stopping the guest for the rest of the copy as soon as possible", "target", d.attempt.pod)
		d.converges(vmpb.ReportStateRequest_Migration_CONVERGENCE_FORCED)
		return true
	}
	var last uint64
	err := d.Machine.Send(limited, to, func(now qemu.Progress) {
		if now.Done != last {
			last = now.Done
			stall.Reset(d.Timing.Stall)
		}
		if now.Diverging {
			d.converges(vmpb.ReportStateRequest_Migration_CONVERGENCE_FAILING)
		}
		d.report(vmpb.ReportStateRequest_Migration_PHASE_COPYING, now, "")
		if pace.next(time.Now(), d.forceAt()) == giveUp {
			cancel(pace.timedOut())
		}
	})
	if timedOut := context.Cause(limited); err != nil && errors.Is(timedOut, errTimedOut) {
		return timedOut // not the error of the command that it has interrupted
	}
	return err
}

// converges records the convergence of the copy, which does not return to an earlier value.
func (d *Departure) converges(now vmpb.ReportStateRequest_Migration_Convergence) {
	d.attempt.convergence = max(d.attempt.convergence, now)
}

// abandon cancels the attempt. It closes the channels first, because QEMU may be blocked on them.
func (d *Departure) abandon(ctx context.Context, emit func(Result)) {
	d.attempt.close()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.Timing.Command)
	defer cancel()
	if err := d.Machine.Abandon(limited); err != nil {
		d.Log.Warn("cannot cancel QEMU's migration", "error", err)
	}
	if ctx.Err() == nil {
		emit(Result{settled: true})
	}
}

// close cuts the channels. If no commit was sent by then, none will be sent.
func (a *attempt) close() {
	if a.sender != nil {
		a.sender.Close()
		a.sender = nil
	}
}

// commit signals the target that it may switch over, and waits until the target has stopped trying. It does not
// matter whether the target has received the commit: from now on, only a switchover decides. Disks that both sides
// use are released first. QEMU has written everything by then, and writes nothing more unless it is continued.
func (d *Departure) commit(ctx context.Context, emit func(Result)) {
	late := time.After(d.Timing.Switchover)
	if d.ReleaseDisks != nil {
		if err := d.ReleaseDisks(); err != nil {
			d.Log.Warn("cannot release the disks", "error", err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, d.Timing.Call)
	if err := d.attempt.sender.Commit(limited); err != nil {
		d.Log.Warn("the target has not confirmed the commit", "error", err)
	}
	cancel()
	d.attempt.close()
	select {
	case <-late:
		emit(Result{event: handover.TimeOver})
	case <-ctx.Done():
	}
}

// reclaim asks for the authority under another run.
func (d *Departure) reclaim(ctx context.Context, emit func(Result)) {
	if d.next == nil {
		next, err := d.NextRun()
		if err != nil {
			d.Log.Warn("cannot start another run", "error", err)
			emit(Result{event: handover.Unknown})
			return
		}
		d.next = next
	}
	limited, cancel := context.WithTimeout(ctx, d.Timing.Call)
	defer cancel()
	_, err := d.Controller.MigrationSwitchover(limited, &vmpb.MigrationSwitchoverRequest{Us: d.next, Them: d.Us})
	switch status.Code(err) {
	case codes.OK:
		d.report(vmpb.ReportStateRequest_Migration_PHASE_FAILED, qemu.Progress{}, "the target has not taken over the VM")
		emit(Result{event: handover.Granted})
	case codes.FailedPrecondition:
		emit(Result{event: handover.Denied})
	default:
		d.Log.Warn("cannot determine whether the authority was regained", "error", err)
		emit(Result{event: handover.Unknown})
	}
}
