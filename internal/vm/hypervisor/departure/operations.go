package departure

import (
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

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/bulk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

var (
	errCanceled = errors.New("the migration was canceled")
	errStalled  = errors.New("the copy makes no progress")
	errTooLong  = errors.New("copying the rest while the guest was stopped took too long")
)

// patientWait is how long a request for a target must have waited so that the next one is sent immediately.
const patientWait = 10 * time.Second

// ask asks the controller for a target.
func (d *Departure) ask(ctx context.Context, tell func(Result)) {
	limited, cancel := context.WithTimeout(ctx, d.Timing.Ask)
	defer cancel()
	d.attempt = attempt{}
	begun := time.Now()
	answer, err := d.Controller.EnsureMigrationTarget(limited, &vmpb.EnsureMigrationTargetRequest{Us: d.Us})
	switch {
	case status.Code(err) == codes.Unimplemented:
		tell(Result{event: handover.NoTarget}) // a controller that cannot migrate
	case err != nil:
		d.Log.Warn("no target for the migration", "error", err)
		tell(Result{event: handover.Failed, waited: time.Since(begun) >= patientWait})
	case answer.GetAction() == vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN:
		tell(Result{event: handover.NoTarget})
	case answer.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE || answer.GetTargetEndpoint() == "":
		d.Log.Warn("the controller's response names no known action", "answer", answer)
		tell(Result{event: handover.Failed})
	case answer.GetTargetPod() == "":
		// Anyone with a certificate for the VM could be the target.
		d.Log.Warn("the controller's response does not name the target's Pod; not migrating")
		tell(Result{event: handover.NoTarget})
	default:
		d.attempt = attempt{endpoint: answer.GetTargetEndpoint(), pod: answer.GetTargetPod()}
		tell(Result{event: handover.TargetFound})
	}
}

// negotiate agrees on a protocol with the target.
func (d *Departure) negotiate(ctx context.Context, tell func(Result)) {
	limited, cancel := context.WithTimeout(ctx, d.Timing.Negotiate)
	defer cancel()
	agreed, err := d.offer(limited)
	if err != nil {
		d.failed(fmt.Errorf("negotiating with %s: %w", d.attempt.pod, err), tell)
		return
	}
	d.attempt.agreed = agreed
	tell(Result{event: handover.Agreed})
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
	// The call waits for a connection until its context is done.
	answer, err := vmpb.NewHypervisorClient(conn).StartMigration(ctx,
		&vmpb.StartMigrationRequest{SupportedMigrationProtocol: offered, Us: d.Us}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	return negotiation.Verify(offered, answer.GetMigrationProtocol())
}

// failed reports that the attempt failed.
func (d *Departure) failed(err error, tell func(Result)) {
	d.Log.Warn("the migration failed", "target", d.attempt.pod, "error", err)
	d.report(vmpb.ReportStateRequest_Migration_PHASE_FAILED, qemu.Progress{}, err.Error())
	tell(Result{event: handover.Failed})
}

func (d *Departure) report(phase vmpb.ReportStateRequest_Migration_Phase, done qemu.Progress, message string) {
	d.Report(controller.Migration{
		Phase: phase, TargetPod: d.attempt.pod, DoneBytes: done.Done, TotalBytes: done.Total, Message: message,
	})
}

// copy sends the disks and the memory. It tells when the guest is stopped, and when everything was sent.
func (d *Departure) copy(ctx context.Context, tell func(Result)) {
	d.report(vmpb.ReportStateRequest_Migration_PHASE_COPYING, qemu.Progress{}, "")
	to := qemu.Destination{Exports: exportsOf(d.attempt.agreed), Bandwidth: d.Bandwidth}
	err := d.openSender(to)
	if err == nil {
		err = d.send(ctx, to)
	}
	if err != nil {
		d.failed(err, tell)
		return
	}
	d.report(vmpb.ReportStateRequest_Migration_PHASE_STOPPED, qemu.Progress{}, "")
	tell(Result{event: handover.GuestStopped})
	limited, cancel := context.WithTimeoutCause(ctx, d.Timing.Rest, errTooLong)
	defer cancel()
	if err = d.Machine.Finish(limited, to); err == nil {
		err = d.attempt.sender.Sent(limited)
	}
	if err != nil {
		d.failed(err, tell)
		return
	}
	tell(Result{event: handover.Copied})
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

// send copies until QEMU has stopped the guest. It fails without progress for Timing.Stall.
func (d *Departure) send(ctx context.Context, to qemu.Destination) error {
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(d.Timing.Stall, func() { cancel(errStalled) })
	defer stall.Stop()
	var last uint64
	return d.Machine.Send(limited, to, func(now qemu.Progress) {
		if now.Done != last {
			last = now.Done
			stall.Reset(d.Timing.Stall)
		}
		d.report(vmpb.ReportStateRequest_Migration_PHASE_COPYING, now, "")
	})
}

// abandon cancels the attempt. The channels are closed first, since QEMU may be blocked on them.
func (d *Departure) abandon(ctx context.Context, tell func(Result)) {
	d.attempt.close()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.Timing.Command)
	defer cancel()
	if err := d.Machine.Abandon(limited); err != nil {
		d.Log.Warn("cannot cancel QEMU's migration", "error", err)
	}
	if ctx.Err() == nil {
		tell(Result{settled: true})
	}
}

// close cuts the channels. Without a commit by then, there will be none.
func (a *attempt) close() {
	if a.sender != nil {
		a.sender.Close()
		a.sender = nil
	}
}

// commit tells the target that it may switch over, and waits until the target has stopped trying. It does not matter
// whether the target has received the commit: from now on only a switchover decides. Disks that both sides use are
// released first: QEMU has written everything, and writes nothing more unless it is continued.
func (d *Departure) commit(ctx context.Context, tell func(Result)) {
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
		tell(Result{event: handover.TimeOver})
	case <-ctx.Done():
	}
}

// reclaim asks for the authority under another run.
func (d *Departure) reclaim(ctx context.Context, tell func(Result)) {
	if d.next == nil {
		next, err := d.NextRun()
		if err != nil {
			d.Log.Warn("cannot begin another run", "error", err)
			tell(Result{event: handover.Unknown})
			return
		}
		d.next = next
	}
	limited, cancel := context.WithTimeout(ctx, d.Timing.Call)
	defer cancel()
	_, err := d.Controller.MigrationSwitchover(limited, &vmpb.MigrationSwitchoverRequest{Us: d.next, Them: d.Us})
	switch status.Code(err) {
	case codes.OK:
		d.report(vmpb.ReportStateRequest_Migration_PHASE_FAILED, qemu.Progress{}, "the target has not taken the VM")
		tell(Result{event: handover.Granted})
	case codes.FailedPrecondition:
		tell(Result{event: handover.Denied})
	default:
		d.Log.Warn("cannot determine whether the authority was regained", "error", err)
		tell(Result{event: handover.Unknown})
	}
}
