package hypervisor

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/runfolder"
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
	{name: "claiming the disk", do: (*life).claimDisks},
	{name: "preparing the disk", do: (*life).prepareDisk},
	{name: "fetching boot files", do: (*life).fetchBootFiles},
	{name: "starting the machine", do: (*life).startMachine},
	{name: "reporting the disk", do: (*life).reportPrepared},
}

// startingServed are the steps of a hypervisor whose disks are served: the server locks and prepares them.
var startingServed = []step{
	{name: "opening the run folder", do: (*life).openRun},
	{name: "serving", do: (*life).openServices},
	{name: "connecting to the controller", do: (*life).connect},
	{name: "locking the run folder", do: (*life).lockDisk},
	{name: "asking for authorization", do: (*life).openLease, watch: true},
	{name: "waiting for authorization", do: (*life).awaitAuthorization},
	{name: "fetching boot files", do: (*life).fetchBootFiles},
	{name: "starting the machine", do: (*life).startServed},
}

// startServed waits for the disks, and starts the machine, once more if the server is away by then.
func (l *life) startServed(ctx context.Context) error {
	for {
		err := l.served.Await(ctx, func(message string) { l.reportState(vmpb.ReportStateRequest_STATE_WAITING, message) })
		if err != nil {
			return err
		}
		failure := l.startMachine(ctx)
		if failure == nil {
			return nil
		}
		if _, err := l.served.Find(ctx); err == nil {
			return failure // it is not for the server
		}
	}
}

func (l *life) openRun(context.Context) error {
	spec := l.config.Spec
	pod, err := PodName(spec)
	if err != nil {
		return err
	}
	run, err := runfolder.NextRun(l.config.Paths.Run, time.Now())
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
		prepare := l.preparation()
		prepare.Doing(doing)
		source := image.Source{URL: wanted.file.GetUrl(), Checksum: wanted.file.GetChecksum()}
		path := filepath.Join(l.config.Paths.Run, wanted.name)
		options := prepare.ImageOptions(doing)
		options.Progress = nil // the files are small
		options.Check = wanted.check
		if err := l.config.Fetch(ctx, source, path, options); err != nil {
			return fmt.Errorf("the %s: %w", wanted.name, err)
		}
	}
	return nil
}

// describe finds out what machine to start, but for its disks.
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
	if err := l.storage.Attach(&l.guestConfig.Disks); err != nil {
		return err
	}
	return l.preparation().Locked(ctx, func() error {
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
// next hypervisor still finds the disk, unless it is one that has to be known.
func (l *life) reportPrepared(ctx context.Context) error {
	if !l.newDisks {
		return nil
	}
	l.reporter.Update(func(r *controller.Report) {
		r.State, r.Message, r.Prepared = vmpb.ReportStateRequest_STATE_WAITING, "the disk is prepared", true
		r.Disks = l.diskSizes()
	})
	if l.disks.MustBeKnown() {
		return l.reporter.Confirmed(ctx)
	}
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
