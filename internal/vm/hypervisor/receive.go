package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/arrival"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
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
	{name: "locking the disk", do: (*life).lockOwn},
	{name: "asking for authorization", do: (*life).openLease, watch: true},
	{name: "fetching boot files", do: (*life).fetchBootFiles},
	{name: "receiving the virtual machine", do: (*life).receive},
}

var errReceived = errors.New("this Pod has received its virtual machine before")

// refuseSecond ends a second process of a Pod that was a target: the disk has run, and only the
// controller knows whether it may run here again.
func (l *life) refuseSecond(context.Context) error {
	had, err := disks.Recorded(l.config.Paths.Run)
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
	take := l.takeDisks
	if l.served != nil {
		take = nil // they are its own, by another token than the source's
		if err := l.served.Await(ctx, func(message string) { l.log.Info(message) }); err != nil {
			return err
		}
	}
	incoming := arrival.New(arrival.Options{
		Us: l.us, Source: l.config.Spec.GetMigrationSourcePod(), Controller: vmpb.NewVMControllerClient(l.conn),
		Siblings: l.config.Migration.Siblings, Describe: l.describeTarget, Start: l.startIncoming,
		TakeDisks: take, Lease: l.awaitLease,
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

// describeTarget returns what the source must have, too. The disks are not there yet, and so have no size.
func (l *life) describeTarget() (negotiation.Machine, error) {
	machine := negotiation.Machine{SharedDisk: l.storage.Shared(), Served: l.served != nil}
	config := l.guestConfig
	for _, data := range l.config.Spec.GetDataDisks() {
		machine.DataDisks = append(machine.DataDisks, negotiation.DataDisk{Name: data.GetName()})
		config.Disks.Data = append(config.Disks.Data, qemu.DataDisk{Serial: data.GetName()})
	}
	var err error
	machine.Hardware, err = config.Hardware()
	return machine, err
}

// startIncoming starts a machine without a guest, with empty disks of these sizes: those of the specification, as
// the negotiation has made sure. Disks that both sides have are there.
func (l *life) startIncoming(ctx context.Context, sizes []*vmpb.DiskSize) (arrival.Machine, error) {
	err := l.storage.Expect(sizes)
	if err == nil {
		err = l.storage.Attach(&l.guestConfig.Disks)
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
	if err := l.claimDisks(context.Background()); err != nil {
		return err
	}
	l.server.SetGuest(l.machine)
	if authorization, _ := l.lease.Current(); authorization.Granted {
		l.paused = authorization.Paused
	}
	err := l.goOn()
	l.reportMigration(controller.Migration{
		Phase: vmpb.ReportStateRequest_Migration_PHASE_DONE, TargetPod: l.us.GetPodName(),
	})
	if err != nil {
		return l.lost(err)
	}
	return disks.Record(l.config.Paths.Run)
}

// goOn runs or holds a guest that has come here, or back. One that is held has its disks, too: it may grow, or leave.
func (l *life) goOn() error {
	if l.paused {
		ctx, cancel := context.WithTimeout(context.Background(), l.config.Timing.Command)
		defer cancel()
		if err := l.machine.Activate(ctx); err != nil {
			return err
		}
	}
	_, err := l.hold(context.Background(), l.paused)
	return err
}
