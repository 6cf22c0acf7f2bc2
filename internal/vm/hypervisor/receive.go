package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/arrival"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// receiving are the steps of a target until the guest runs.
var receiving = []step{
	{name: "opening the run folder", do: (*life).openRun},
	{name: "looking for an earlier arrival", do: (*life).refuseSecond},
	{name: "serving", do: (*life).openServices},
	{name: "connecting to the controller", do: (*life).connect},
	{name: "locking the disk", do: (*life).lockDisk},
	{name: "asking for authorization", do: (*life).openLease, watch: true},
	{name: "fetching boot files", do: (*life).fetchBootFiles},
	{name: "receiving the virtual machine", do: (*life).receive},
}

var errReceived = errors.New("this Pod has received its virtual machine before")

// refuseSecond ends a second process of a Pod that was a target: the disk has run, and only the
// controller knows whether it may run here again.
func (l *life) refuseSecond(context.Context) error {
	had, err := l.hadDisk()
	if err == nil && had {
		err = fmt.Errorf("%w: %w", arrival.ErrNotArrived, errReceived)
	}
	return err
}

// receive waits for the VM, and runs it.
func (l *life) receive(ctx context.Context) error {
	if err := l.describe(); err != nil {
		return err
	}
	incoming := arrival.New(arrival.Options{
		Us: l.us, Source: l.config.Spec.GetMigrationSourcePod(), Controller: vmpb.NewVMControllerClient(l.conn),
		Siblings: l.config.Migration.Siblings, Describe: l.describeTarget, Start: l.startIncoming,
		Lease:  l.awaitLease,
		Timing: l.config.Migration.Arrival, Log: l.log,
	})
	l.server.SetIncoming(incoming)
	l.server.SetServing(true)
	l.reportState(vmpb.ReportStateRequest_STATE_INCOMING, "waiting for the virtual machine")
	err := incoming.Run(ctx)
	l.server.SetIncoming(nil)
	if err != nil {
		l.server.SetServing(false)
		return err
	}
	return l.runArrived()
}

func (l *life) describeTarget() (negotiation.Machine, error) {
	hardware, err := l.guestConfig.Hardware()
	return negotiation.Machine{Hardware: hardware}, err
}

// startIncoming starts a machine without a guest, with an empty disk.
func (l *life) startIncoming(ctx context.Context, diskBytes uint64) (arrival.Machine, error) {
	if diskBytes > maxDiskBytes {
		return nil, fmt.Errorf("a disk of %d bytes is larger than 4 PiB", diskBytes)
	}
	root := disk.Disk{Path: l.config.Paths.RootDisk, Bytes: diskBytes}
	err := root.MakeBlank()
	if err == nil {
		l.guestConfig.Disks.Root, err = qemu.DiskAt(root.Path)
	}
	if err != nil {
		return nil, err
	}
	config := l.guestConfig
	config.Incoming = true
	machine, err := l.config.Machines.Start(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMachine, err)
	}
	l.machine = machine
	return machine, nil
}

// awaitLease waits until this hypervisor, which is authoritative from here on, may run its guest. Asked to end, it
// waits for the duration of a lease: it alone has the guest.
func (l *life) awaitLease(ctx context.Context) error {
	l.arrived = true
	if !fullLeases(l.config.Spec) {
		return nil
	}
	l.lease.Renew()
	asked, late := ctx.Done(), (<-chan time.Time)(nil)
	for {
		authorization, changed := l.lease.Current()
		if why := over(authorization); why != nil {
			return why
		}
		if authorization.Granted {
			return nil
		}
		select {
		case <-changed:
		case <-l.machine.Done():
			return ended(l.machine.Exit())
		case <-asked:
			asked, late = nil, time.After(l.config.Spec.GetLeaseDuration().AsDuration())
		case <-late:
			return errStopped
		}
	}
}

// runArrived runs the guest.
func (l *life) runArrived() error {
	l.server.SetGuest(l.machine)
	if authorization, _ := l.lease.Current(); authorization.Granted {
		l.paused = authorization.Paused
	}
	_, err := l.hold(context.Background(), l.paused)
	l.reportMigration(controller.Migration{
		Phase: vmpb.ReportStateRequest_Migration_PHASE_DONE, TargetPod: l.us.GetPodName(),
	})
	if err != nil {
		return l.lost(err)
	}
	return l.recordDisk()
}
