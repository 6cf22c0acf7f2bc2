// Package hypervisor runs one virtual machine in the current process.
//
// Package vmspec reads the VM's specification, and [Run] runs the VM. Run locks the disks, asks the controller for
// authorization, prepares the disks, starts the guest, and serves requests until the guest or the process
// terminates. The startup steps are in start.go, and the main loop is in serve.go. Package qemu runs QEMU, package
// controller calls the controller, and package service serves the gRPC API.
//
// Two locks prevent two processes from running the same VM: this package locks a file next to the disk, and QEMU
// locks the disk. The controller's authorization only decides which process should terminate.
package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/unixsocket"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/network/packetsocket"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Run runs a hypervisor and returns why it terminated. When the context is canceled (by SIGTERM), Run asks the
// guest to shut down, and kills it after Timing.Grace.
//
// When Run returns, the machine's process has terminated, the disks are unlocked and no service is available. Run
// rejects an invalid specification before it changes anything.
//
// At most one call for a run directory may be active at a time.
func Run(ctx context.Context, config Config) vmpb.Termination {
	return TerminationOf(run(ctx, config.withDefaults(), listenAll))
}

func run(ctx context.Context, config Config, listen listenFunc) error {
	if err := config.check(); err != nil {
		return err
	}
	h := &hypervisor{
		config: config, log: config.Log, server: service.New(config.Peers), listen: listen,
		disks: newGuestDisks(config), lease: &runLease{config: config},
	}
	defer h.close()
	if err := h.start(ctx); err != nil {
		return err
	}
	return h.serve(ctx.Done())
}

// hypervisor is one run of the process. The steps in start.go set its fields in this order. It is used by a single
// goroutine.
type hypervisor struct {
	config Config
	log    *slog.Logger
	server *service.Server
	listen listenFunc
	disks  *guestDisks
	lease  *runLease

	us       *vmpb.HypervisorID
	endpoint string
	conn     *grpc.ClientConn
	// unfollow makes Config.Follow return, after which followed is done. It is nil if Follow was not called.
	unfollow func()
	followed sync.WaitGroup
	reporter *controller.Reporter
	// machine describes the machine to start. Its disks are set when it is started.
	machine qemu.Config
	guest   *guest // nil until the machine has been started
	// received is true if this hypervisor received its guest by a migration.
	received   bool
	evacuation evacuation
	overlay    guestOverlay
	clients    clients
	networks   []*packetsocket.Socket
}

// start runs the steps until the guest is ready to run.
func (h *hypervisor) start(outer context.Context) error {
	ctx, end := context.WithCancelCause(outer)
	defer end(nil)
	for _, step := range steps {
		if step.only != "" && step.only != h.origin() {
			continue
		}
		h.log.Debug("starting", "step", step.name)
		err := step.do(h, ctx)
		if ctx.Err() != nil && !h.received {
			return endReason(ctx) // the error of the step is only a consequence
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if step.watch {
			h.lease.watch(ctx, end)
		}
	}
	return nil
}

// origin returns how the guest gets to this process.
func (h *hypervisor) origin() guestOrigin {
	if h.config.Spec.GetMode() == vmpb.VMSpec_SM_INCOMING_MIGRATION {
		return migrated
	}
	return booted
}

// endReason returns why the context of the startup was canceled: by the controller, or by a signal.
func endReason(ctx context.Context) error {
	for _, cause := range []error{errTerminated, errExpired} {
		if errors.Is(context.Cause(ctx), cause) {
			return cause
		}
	}
	return errStopped
}

// close undoes the steps in reverse order. It unlocks the disks when nothing in this process uses them any more. Only
// connections of clients to a guest that has moved may remain then.
func (h *hypervisor) close() {
	if h.guest != nil {
		// No timeout: QEMU may write to the disk for as long as its process exists.
		_ = h.guest.machine.Kill(context.Background())
		<-h.guest.machine.Done()
	}
	h.closeNetworks()
	h.evacuation.close()
	h.clients.detach()
	h.server.Stop()
	h.overlay.close(h.conn, h.us, h.log)
	h.lease.close()
	h.disks.detach()
	h.lease.release(h.conn, h.us)
	if h.reporter != nil {
		h.reporter.Close()
	}
	if h.unfollow != nil {
		h.unfollow()
		h.followed.Wait()
	}
	if h.conn != nil {
		_ = h.conn.Close()
	}
	_ = h.disks.Unlock()
	h.clients.close(h.evacuation.shutdownTime)
}

// reportState reports a state with a message for users.
func (h *hypervisor) reportState(state vmpb.ReportStateRequest_State, message string) {
	h.reporter.Update(func(r *controller.Report) { r.State, r.Message = state, message })
}

// reportMigration reports the progress of a migration. It leaves the other fields of the report unchanged.
func (h *hypervisor) reportMigration(progress controller.Migration) {
	h.reporter.Update(func(r *controller.Report) { r.Migration = progress })
}

// reportReadiness reports whether the guest is ready for connections. It leaves the other fields of the report unchanged.
func (h *hypervisor) reportReadiness(problem error) {
	guest := controller.Guest{Checked: true, Ready: problem == nil}
	if problem != nil {
		guest.Message = problem.Error()
	}
	h.reporter.SetGuest(guest)
}

// listenFunc returns the listeners on the socket and on the network. The latter may be nil.
type listenFunc func(Config) (local, peers net.Listener, err error)

func listenAll(config Config) (local, peers net.Listener, err error) {
	if config.Peers.Listen != "" {
		if peers, err = net.Listen("tcp", config.Peers.Listen); err != nil {
			return nil, nil, fmt.Errorf("listening for peers: %w", err)
		}
	}
	if local, err = unixsocket.Listen(config.Paths.Socket()); err != nil {
		if peers != nil {
			_ = peers.Close()
		}
		return nil, nil, err
	}
	return local, peers, nil
}

// PodName returns the name of the hypervisor's Pod. If the specification does not name it, it is the host name.
func PodName(spec *vmpb.VMSpec) (string, error) {
	if name := spec.GetPodName(); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("determining the Pod's name: %w", err)
	}
	return name, nil
}
