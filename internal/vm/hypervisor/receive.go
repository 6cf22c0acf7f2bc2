package hypervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/arrival"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

var errReceivedBefore = fmt.Errorf("%w: this Pod has received its virtual machine before", arrival.ErrNotArrived)

// receive waits for the VM and then runs it.
func (h *hypervisor) receive(ctx context.Context) error {
	if err := h.describe(); err != nil {
		return err
	}
	if err := h.disks.await(ctx, func(message string) { h.log.Info(message) }); err != nil {
		return err
	}
	incoming := arrival.New(arrival.Options{
		Us: h.us, Source: h.config.Spec.GetMigrationSourcePod(), Controller: vmpb.NewVMControllerClient(h.conn),
		Siblings: h.config.Migration.Siblings, Describe: h.describeTarget, Start: h.startIncoming,
		TakeDisks: h.disks.takeOver, Lease: h.awaitLease,
		Timing: h.config.Migration.Arrival, Log: h.log,
	})
	h.server.SetIncoming(incoming)
	h.server.SetServing(true)
	h.reportState(vmpb.ReportStateRequest_STATE_INCOMING, "waiting for the virtual machine")
	err := incoming.Run(ctx)
	if err == nil {
		h.receiveClients(incoming.From().GetPodName())
	}
	h.server.SetIncoming(nil)
	if err != nil {
		h.server.SetServing(false)
		return err
	}
	return h.runReceived()
}

// describeTarget returns the properties that the source must match. The disks do not exist yet, so they have no
// size.
func (h *hypervisor) describeTarget() (negotiation.Machine, error) {
	machine := h.disks.describe()
	config := h.machine
	for _, data := range h.config.Spec.GetDataDisks() {
		machine.DataDisks = append(machine.DataDisks, negotiation.DataDisk{Name: data.GetName()})
		config.Disks.Data = append(config.Disks.Data, qemu.DataDisk{Serial: data.GetName()})
	}
	var err error
	machine.Hardware, err = config.Hardware()
	return machine, err
}

// startIncoming starts a machine without a guest. Disks that are copied are created empty with the given sizes,
// which the negotiation has compared with the specification. Shared disks already exist.
func (h *hypervisor) startIncoming(ctx context.Context, sizes []*vmpb.DiskSize) (arrival.Machine, error) {
	err := h.disks.Expect(sizes)
	if err == nil {
		err = h.disks.Attach(&h.machine.Disks)
	}
	if err != nil {
		return nil, err
	}
	config := h.machine
	config.Incoming = true
	if err := h.launch(ctx, config); err != nil {
		return nil, err
	}
	return h.guest.machine, nil
}

// awaitLease waits until this hypervisor, which is now authoritative, may run its guest. If the process is asked
// to terminate, it keeps waiting for the duration of a lease, because no other hypervisor has the guest.
func (h *hypervisor) awaitLease(ctx context.Context) error {
	h.received = true
	if !h.lease.expires() {
		return nil
	}
	h.lease.Renew()
	stop, late := ctx.Done(), (<-chan time.Time)(nil)
	for {
		authorization, changed := h.lease.current()
		if why := over(authorization); why != nil {
			return why
		}
		if authorization.Granted {
			return nil
		}
		select {
		case <-changed:
		case <-h.guest.machine.Done():
			return ended(h.guest.machine.Exit())
		case <-stop:
			stop, late = nil, time.After(h.lease.duration())
		case <-late:
			return errStopped
		}
	}
}

// runReceived runs the guest that was received.
func (h *hypervisor) runReceived() error {
	if err := h.disks.claim(h.us); err != nil {
		return err
	}
	h.guest.offer()
	if authorization, _ := h.lease.current(); authorization.Granted {
		h.guest.paused = authorization.Paused
	}
	err := h.guest.resume()
	h.clients.check(true, h.reportReadiness) // before, the guest would not be ready
	h.reportMigration(controller.Migration{
		Phase: vmpb.ReportStateRequest_Migration_PHASE_DONE, TargetPod: h.us.GetPodName(),
	})
	if err != nil {
		return h.guest.failed(err)
	}
	return disks.Record(h.config.Paths.Run)
}
