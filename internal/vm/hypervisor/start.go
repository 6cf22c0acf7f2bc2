package hypervisor

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/image/architecture"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// guestOrigin is how the guest gets to this process.
type guestOrigin string

const (
	// booted means that the guest boots here.
	booted guestOrigin = "booted"
	// migrated means that the guest is received by a live migration.
	migrated guestOrigin = "migrated"
)

// step is one step of the startup. Its context is canceled when the process is asked to terminate, or when the
// controller terminates it.
type step struct {
	name string
	do   func(*hypervisor, context.Context) error
	// only restricts the step to guests of one origin. If empty, it applies to all.
	only guestOrigin
	// watch is true if the controller can terminate the process after this step.
	watch bool
}

// steps are the steps until the guest is ready to run.
var steps = []step{
	{name: "opening the run directory", do: (*hypervisor).openRun},
	{name: "checking for an earlier migration", do: (*hypervisor).refuseSecondMigration, only: migrated},
	{name: "opening the guest's ports", do: (*hypervisor).openPorts},
	{name: "serving", do: (*hypervisor).openServices},
	{name: "connecting to the controller", do: (*hypervisor).connect},
	{name: "opening the overlay", do: (*hypervisor).openOverlay},
	{name: "opening the networks", do: (*hypervisor).openNetworks},
	{name: "locking the disks", do: (*hypervisor).lockDisks},
	// Authorization comes after locking the disks. The controller passes the authority from an old run of the Pod
	// to a new one because the lock proves that the old run has terminated.
	{name: "asking for authorization", do: (*hypervisor).openLease, watch: true},
	{name: "waiting for authorization", do: (*hypervisor).awaitAuthorization, only: booted},
	{name: "preparing the disks", do: (*hypervisor).prepareDisks, only: booted},
	{name: "fetching boot files", do: (*hypervisor).fetchBootFiles},
	{name: "starting the machine", do: (*hypervisor).startMachine, only: booted},
	{name: "reporting the disks", do: (*hypervisor).reportPrepared, only: booted},
	{name: "receiving the virtual machine", do: (*hypervisor).receive, only: migrated},
}

func (h *hypervisor) openRun(context.Context) error {
	spec := h.config.Spec
	pod, err := PodName(spec)
	if err != nil {
		return err
	}
	run, err := NextRun(h.config.Paths.Run, time.Now())
	if err != nil {
		return err
	}
	h.us = &vmpb.HypervisorID{VmName: spec.GetName(), Namespace: spec.GetNamespace(), PodName: pod, RunId: run}
	h.log = h.log.With("vm", spec.GetNamespace()+"/"+spec.GetName(), "run", run)
	h.lease.log, h.disks.log = h.log, h.log
	return nil
}

// openServices runs early, so that the health check reports that the guest does not run yet.
func (h *hypervisor) openServices(context.Context) error {
	local, peers, err := h.listen(h.config)
	if err != nil {
		return err
	}
	h.server.ServeLocal(local)
	if peers != nil {
		h.server.ServePeers(peers)
		h.endpoint = peers.Addr().String()
	}
	return nil
}

func (h *hypervisor) connect(context.Context) error {
	conn, err := h.config.Connect(h.config.Spec.GetControllerEndpoint())
	if err != nil {
		return err
	}
	h.conn = conn
	if h.config.Follow != nil {
		// Not the context of the step, which is canceled when the startup is complete.
		following, end := context.WithCancel(context.Background())
		h.unfollow = end
		h.followed.Go(func() { h.config.Follow(following, conn) })
	}
	h.reporter = controller.NewReporter(vmpb.NewVMControllerClient(conn), h.us, h.log)
	h.reporter.Update(func(r *controller.Report) {
		r.Endpoint, r.CanMigrate = h.endpoint, h.config.Migration != nil
	})
	h.disks.preparer.Report = h.reporter.Update
	if h.origin() == booted {
		h.clients.check(false, h.reportReadiness)
	}
	return nil
}

// lockDisks locks the disks before anything is written. The source of a migration holds the lock of shared disks
// until it commits.
func (h *hypervisor) lockDisks(ctx context.Context) error {
	if h.config.Spec.GetMode() == vmpb.VMSpec_SM_INCOMING_MIGRATION && h.config.Spec.GetRootDiskShared() {
		return nil
	}
	return h.disks.lock(ctx)
}

func (h *hypervisor) openLease(context.Context) error {
	if err := h.lease.open(h.conn, h.us, h.reporter.Repeat); err != nil {
		return err
	}
	h.disks.follow(h.lease.Lease)
	return nil
}

// awaitAuthorization waits for the controller's decision. Without full leases, the guest starts even if the
// controller does not respond: this process holds the lock, and hosts must be able to start VMs without the
// control plane. The guest does not start if this process has no certificate, because then the controller may be
// available but cannot be asked.
func (h *hypervisor) awaitAuthorization(ctx context.Context) error {
	begin, late := time.Now(), time.After(h.config.Timing.FirstResponse)
	for {
		authorization, changed := h.lease.current()
		if authorization.Granted {
			return nil
		}
		h.reportState(vmpb.ReportStateRequest_STATE_WAITING, "waiting for the controller's response")
		select {
		case <-changed:
		case <-late:
			switch problem := h.config.IdentityError(); {
			case problem != nil && time.Since(begin) >= h.config.Timing.Identity:
				return &ending{vmpb.EndNotAuthorized, "this hypervisor has no certificate: " + problem.Error()}
			case problem != nil:
				h.log.Error("the guest does not start because this hypervisor has no certificate; retrying", "error", problem)
			case !h.lease.expires():
				h.log.Warn("the controller does not respond; starting the VM without its authorization", "waited", h.config.Timing.FirstResponse)
				return nil
			}
			late = time.After(h.config.Timing.FirstResponse)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *hypervisor) prepareDisks(ctx context.Context) error {
	if err := h.disks.claim(h.us); err != nil {
		return err
	}
	return h.disks.prepare(ctx)
}

// fetchBootFiles downloads the kernel and the initrd at every start, because the content behind the URLs may have
// changed.
func (h *hypervisor) fetchBootFiles(ctx context.Context) error {
	kernelBoot := h.config.Spec.GetKernelBoot()
	for _, file := range []struct {
		boot  *vmpb.BootFile
		name  string
		check func(io.ReaderAt) string
	}{
		{kernelBoot.GetKernel(), kernelFile, architecture.CheckKernel(qemu.Architecture)}, {kernelBoot.GetInitrd(), initrdFile, nil},
	} {
		if file.boot == nil {
			continue
		}
		doing := "fetching the " + file.name
		preparer := h.disks.preparer
		preparer.ReportProgress(doing)
		source := image.Source{URL: file.boot.GetUrl(), Checksum: file.boot.GetChecksum()}
		path := filepath.Join(h.config.Paths.Run, file.name)
		options := preparer.ImageOptions(doing)
		options.Progress = nil // the files are small
		options.Check = file.check
		if err := h.config.Fetch(ctx, source, path, options); err != nil {
			return fmt.Errorf("the %s: %w", file.name, err)
		}
	}
	return nil
}

// describe sets the description of the machine, without its disks.
func (h *hypervisor) describe() error {
	machine, err := describeGuest(h.config)
	if err == nil {
		machine.UEFI, err = h.config.uefi()
	}
	if err == nil {
		machine.Processor.Accelerator, err = h.config.Machines.Accelerator()
	}
	if machine.Network != nil && h.overlay.endpoint != nil {
		machine.Network.Overlay = h.overlay.endpoint
	}
	machine.Interfaces = h.guestInterfaces()
	h.machine = machine
	return err
}

// startMachine starts the machine with the guest stopped, as soon as the disks are available.
func (h *hypervisor) startMachine(ctx context.Context) error {
	for {
		err := h.disks.await(ctx, func(message string) { h.reportState(vmpb.ReportStateRequest_STATE_WAITING, message) })
		if err != nil {
			return err
		}
		err = h.startOnce(ctx)
		if err == nil || h.disks.available(ctx) {
			return err
		}
		h.log.Warn("cannot start the machine because the disks are not available; retrying", "error", err)
	}
}

// startOnce starts the machine. An earlier QEMU process that is about to exit may still hold QEMU's lock.
func (h *hypervisor) startOnce(ctx context.Context) error {
	if err := h.describe(); err != nil {
		return err
	}
	if err := h.disks.Attach(&h.machine.Disks); err != nil {
		return err
	}
	return h.disks.preparer.AwaitLock(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, h.config.Timing.Command)
		defer cancel()
		if err := h.launch(ctx, h.machine); err != nil {
			return err
		}
		h.guest.offer()
		return nil
	})
}

// launch starts a machine.
func (h *hypervisor) launch(ctx context.Context, config qemu.Config) error {
	machine, err := h.config.Machines.Start(ctx, config)
	if err != nil {
		return fmt.Errorf("%w: %w", errMachine, err)
	}
	h.guest = &guest{
		machine: machine, disks: h.disks, server: h.server, clients: &h.clients, reporter: h.reporter, timing: h.config.Timing, log: h.log,
	}
	return nil
}

// reportPrepared reports before the first start that the disks are prepared. If the report fails, the next
// hypervisor still finds the disks, unless the controller must know about one of them.
func (h *hypervisor) reportPrepared(ctx context.Context) error {
	if !h.disks.isNew {
		return nil
	}
	h.reporter.Update(func(r *controller.Report) {
		r.State, r.Message, r.Prepared = vmpb.ReportStateRequest_STATE_WAITING, "the disks are prepared", true
		r.Disks = h.disks.sizes()
	})
	if h.disks.mustBeReported() {
		return h.reporter.Confirmed(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.Timing.Prepared)
	defer cancel()
	if err := h.reporter.Confirmed(ctx); err != nil {
		h.log.Warn("the controller has not confirmed that the disks are prepared", "waited", h.config.Timing.Prepared)
	}
	return nil
}

// refuseSecondMigration fails in a second process of a Pod that was the target of a migration. A guest has already
// used the disk, and only the controller knows whether the guest may run here again.
func (h *hypervisor) refuseSecondMigration(context.Context) error {
	complete, err := disks.Recorded(h.config.Paths.Run)
	if err == nil && complete {
		err = errReceivedBefore
	}
	return err
}
