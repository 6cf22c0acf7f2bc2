package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/image/architecture"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// step is one of the start. Its context ends when the process is asked to end or the
// controller terminates it.
type step struct {
	name string
	do   func(*life, context.Context) error
	// watch reports whether the controller can terminate the process from here on.
	watch bool
}

// starting are the steps until the guest is ready to run.
var starting = []step{
	{name: "opening the run folder", do: (*life).openRun},
	{name: "serving", do: (*life).openServices},
	{name: "connecting to the controller", do: (*life).connect},
	{name: "locking the disk", do: (*life).lockDisk},
	// Not earlier: the controller passes authority from an old run of the Pod to a new one
	// because the lock proves that the old one has ended.
	{name: "asking for authorization", do: (*life).openLease, watch: true},
	{name: "waiting for authorization", do: (*life).awaitAuthorization},
	{name: "preparing the disk", do: (*life).prepareDisk},
	{name: "fetching boot files", do: (*life).fetchBootFiles},
	{name: "starting the machine", do: (*life).startMachine},
	{name: "reporting the disk", do: (*life).reportPrepared},
}

func (l *life) openRun(context.Context) error {
	spec := l.config.Spec
	pod, err := PodName(spec)
	if err != nil {
		return err
	}
	run, err := openRunDir(l.config.Paths.Run, time.Now())
	if err != nil {
		return err
	}
	l.us = &vmpb.HypervisorID{VmName: spec.GetName(), Namespace: spec.GetNamespace(), PodName: pod, RunId: run}
	l.log = l.log.With("vm", spec.GetNamespace()+"/"+spec.GetName(), "run", run)
	return nil
}

// openServices comes early: the health check answers that the guest does not run yet.
func (l *life) openServices(context.Context) error {
	local, peers, err := l.listen(l.config)
	if err != nil {
		return err
	}
	l.server.ServeLocal(local)
	if peers != nil {
		l.server.ServePeers(peers)
		l.endpoint = peers.Addr().String()
	}
	return nil
}

func (l *life) connect(context.Context) error {
	conn, err := l.config.Connect(l.config.Spec.GetControllerEndpoint())
	if err != nil {
		return err
	}
	l.conn = conn
	l.reporter = controller.NewReporter(vmpb.NewVMControllerClient(conn), l.us, l.log)
	l.reporter.Update(func(r *controller.Report) {
		r.Endpoint, r.CanMigrate = l.endpoint, l.config.Migration != nil
	})
	return nil
}

// lockDisk comes before the first write to the disk or beside it.
func (l *life) lockDisk(ctx context.Context) error {
	return l.retryLocked(ctx, func() error {
		lock, err := disk.Acquire(l.config.Paths.RootDisk)
		l.lock = lock
		return err
	})
}

// retryLocked tries until the disk is unlocked or LockLimit is over. An earlier run of this VM
// may be about to end.
func (l *life) retryLocked(ctx context.Context, try func() error) error {
	late := time.After(l.config.Timing.LockLimit)
	for {
		err := try()
		if !errors.Is(err, disk.ErrLocked) && !errors.Is(err, qemu.ErrDiskLocked) {
			return err
		}
		l.reporter.Update(func(r *controller.Report) {
			r.State, r.Cause = vmpb.ReportStateRequest_STATE_WAITING, vmpb.ReportStateRequest_CAUSE_DISK_LOCKED
			r.Message = "Another process holds the lock of the disk. Waiting for its end."
		})
		select {
		case <-time.After(l.config.Timing.LockRetry):
		case <-late:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *life) openLease(context.Context) error {
	if fullLeases(l.config.Spec) {
		return l.openExpiring()
	}
	l.lease = controller.OpenLease(vmpb.NewVMControllerClient(l.conn), l.us, l.log, l.reporter.Repeat)
	return nil
}

// awaitAuthorization lets the controller refuse. Without an answer the guest starts: this
// process holds the lock, and hosts must be able to start VMs without the control plane. With
// full leases it does not, nor if nobody issues a certificate to this process: then the controller may
// be there, and cannot be asked.
func (l *life) awaitAuthorization(ctx context.Context) error {
	begin, late := time.Now(), time.After(l.config.Timing.FirstAnswer)
	for {
		authorization, changed := l.lease.Current()
		if authorization.Granted {
			return nil
		}
		l.reportState(vmpb.ReportStateRequest_STATE_WAITING, "waiting for the controller's answer")
		select {
		case <-changed:
		case <-late:
			switch trouble := l.config.Trouble(); {
			case trouble != nil && time.Since(begin) >= l.config.Timing.Identity:
				return &ending{vmpb.EndNotAuthorized, "this hypervisor has no certificate: " + trouble.Error()}
			case trouble != nil:
				l.log.Error("the guest is not started, as this hypervisor has no certificate; trying again", "error", trouble)
			case !fullLeases(l.config.Spec):
				l.log.Warn("the controller does not answer; starting the VM without", "waited", l.config.Timing.FirstAnswer)
				return nil
			}
			late = time.After(l.config.Timing.FirstAnswer)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// prepareDisk has the disk complete. It is created only once.
func (l *life) prepareDisk(ctx context.Context) error {
	before, err := l.hadDisk()
	if err != nil {
		return err
	}
	if err := l.ensureDisk(ctx, before); err != nil || before {
		return err
	}
	return l.recordDisk()
}

// ensureDisk never writes to an existing disk: it is complete, and may have run. A disk that
// should exist is not created again: the guest would start without its data.
func (l *life) ensureDisk(ctx context.Context, before bool) error {
	root := disk.Disk{Path: l.config.Paths.RootDisk, Bytes: l.config.Spec.GetRootDiskBytes()}
	exists, err := root.Exists()
	switch {
	case err != nil:
		return err
	case exists:
		return root.Grow()
	case before || l.config.Spec.GetRootDiskExists():
		return errDiskLost
	case l.preparing():
		return l.writeImage(ctx, root)
	default:
		return root.MakeBlank()
	}
}

// diskRecord is a file in the run folder. It exists if an earlier run of this Pod had the disk
// complete: the specification is older than that, and says nothing about it.
const diskRecord = "disk-complete"

func (l *life) hadDisk() (bool, error) {
	_, err := os.Stat(filepath.Join(l.config.Paths.Run, diskRecord))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("looking for the record of the disk: %w", err)
	}
	return err == nil, nil
}

func (l *life) recordDisk() error {
	record, err := disk.CreatePartial(filepath.Join(l.config.Paths.Run, diskRecord), 0o600)
	if err == nil {
		defer record.Discard()
		err = record.Commit()
	}
	if err != nil {
		return fmt.Errorf("recording that the disk is complete: %w", err)
	}
	return nil
}

func (l *life) preparing() bool {
	return l.config.Spec.GetMode() == vmpb.VMSpec_SM_PREPARE_IMAGE
}

func (l *life) writeImage(ctx context.Context, root disk.Disk) error {
	const doing = "writing the initial image"
	l.reportState(vmpb.ReportStateRequest_STATE_PREPARING, doing)
	from, options := l.config.Spec.GetInitialImage(), l.imageOptions(doing)
	if l.config.Spec.GetKernelBoot() == nil {
		options.Check = architecture.CheckDisk(qemu.Architecture)
	}
	err := l.config.WriteDisk(ctx,
		image.Source{URL: from.GetUrl(), Checksum: from.GetChecksum(), Format: from.GetFormat()},
		image.Target{Path: root.Path, Bytes: int64(root.Size())}, options)
	if err != nil {
		return err
	}
	return root.Grow()
}

// imageOptions report the progress of a download.
func (l *life) imageOptions(doing string) image.Options {
	return image.Options{
		Progress: func(done, total int64) {
			l.reporter.Update(func(r *controller.Report) {
				r.Message, r.DoneBytes, r.TotalBytes = doing, uint64(done), uint64(total)
			})
		},
		Trouble: func(err error) {
			l.reportState(vmpb.ReportStateRequest_STATE_PREPARING, fmt.Sprintf("%v; trying again", err))
		},
	}
}

// fetchBootFiles downloads them for every start: the content of the URLs may have changed.
func (l *life) fetchBootFiles(ctx context.Context) error {
	boot := l.config.Spec.GetKernelBoot()
	for _, wanted := range []struct {
		file  *vmpb.BootFile
		name  string
		check func(io.ReaderAt) string
	}{
		{boot.GetKernel(), kernelFile, architecture.CheckKernel(qemu.Architecture)}, {boot.GetInitrd(), initrdFile, nil},
	} {
		if wanted.file == nil {
			continue
		}
		doing := "fetching the " + wanted.name
		l.reportState(vmpb.ReportStateRequest_STATE_PREPARING, doing)
		source := image.Source{URL: wanted.file.GetUrl(), Checksum: wanted.file.GetChecksum()}
		path := filepath.Join(l.config.Paths.Run, wanted.name)
		options := l.imageOptions(doing)
		options.Progress = nil // the files are small
		options.Check = wanted.check
		if err := l.config.Fetch(ctx, source, path, options); err != nil {
			return fmt.Errorf("the %s: %w", wanted.name, err)
		}
	}
	return nil
}

// describe finds out what machine to start, but for its root disk.
func (l *life) describe() error {
	config, err := describeGuest(l.config)
	if err == nil {
		config.Processor.Accelerator, err = l.config.Machines.Accelerator()
	}
	l.guestConfig = config
	return err
}

// startMachine starts it with the guest stopped. An earlier QEMU that is about to end may
// still hold QEMU's lock.
func (l *life) startMachine(ctx context.Context) error {
	if err := l.describe(); err != nil {
		return err
	}
	var err error
	if l.guestConfig.Disks.Root, err = qemu.DiskAt(l.config.Paths.RootDisk); err != nil {
		return err
	}
	return l.retryLocked(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, l.config.Timing.Command)
		defer cancel()
		machine, err := l.config.Machines.Start(ctx, l.guestConfig)
		if err != nil {
			return fmt.Errorf("%w: %w", errMachine, err)
		}
		l.machine = machine
		l.server.SetGuest(machine)
		return nil
	})
}

// reportPrepared reports before the first start that the disk is prepared. If that fails, the
// next hypervisor still finds the disk.
func (l *life) reportPrepared(ctx context.Context) error {
	if !l.preparing() {
		return nil
	}
	l.reporter.Update(func(r *controller.Report) {
		r.State, r.Message, r.Prepared = vmpb.ReportStateRequest_STATE_WAITING, "the disk is prepared", true
	})
	ctx, cancel := context.WithTimeout(ctx, l.config.Timing.Prepared)
	defer cancel()
	if err := l.reporter.Confirmed(ctx); err != nil {
		l.log.Warn("the controller has not confirmed that the disk is prepared", "waited", l.config.Timing.Prepared)
	}
	return nil
}

// reportState reports a state with a message for users.
func (l *life) reportState(state vmpb.ReportStateRequest_State, message string) {
	l.reporter.Update(func(r *controller.Report) { r.State, r.Message = state, message })
}
