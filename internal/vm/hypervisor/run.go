// Package hypervisor is the process that runs one virtual machine.
//
// Package vmspec reads the VM's specification, and [Run] runs the VM: it locks the disk, asks
// the controller for authorization, prepares the disk, starts the guest, and serves until
// the end of either. The steps of the start are in start.go, what follows is in serve.go.
// Package qemu runs QEMU, package controller calls the controller, and package service
// serves the gRPC API.
//
// Two locks prevent two processes from running one VM: that of this package beside the disk,
// and QEMU's on the disk. The controller's answer only decides which process should end.
package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/served"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Run runs a hypervisor and returns why it ended. When the context ends (SIGTERM), the guest
// is asked to shut down, and killed after Timing.Grace.
//
// When Run returns, the machine's process has ended, the disk's lock is free and nothing is
// served. An invalid specification is found before anything is changed.
//
// There must be only one call per run folder at a time.
func Run(ctx context.Context, config Config) vmpb.Termination {
	return TerminationOf(run(ctx, config.withDefaults(), listenAll))
}

func run(ctx context.Context, config Config, listen listenFunc) error {
	if err := config.check(); err != nil {
		return err
	}
	l := &life{
		config: config, log: config.Log, server: service.New(config.Peers), listen: listen,
		disks: disks.New(config.Spec, config.Paths.RootDisk, config.Paths.DataDisks),
	}
	l.storage = l.disks
	if config.Spec.GetDisksServed() {
		l.served = served.New(served.Options{
			Disks: config.Spec.GetDataDisks(), Run: config.Paths.Run, Connect: config.DiskServer, Retry: config.Timing.LockRetry, Log: config.Log,
		})
		l.storage = l.served
	}
	return l.live(ctx)
}

// life is one run of a hypervisor. The steps of start.go set its fields, in their order. It
// is used by one goroutine.
type life struct {
	config Config
	log    *slog.Logger
	server *service.Server
	listen listenFunc

	us       *vmpb.HypervisorID
	endpoint string
	conn     *grpc.ClientConn
	reporter *controller.Reporter
	// storage is where the guest's disks are: disks or served.
	storage  storage
	disks    *disks.Set
	served   *served.Disks     // nil: they are not served
	lease    *controller.Lease // nil while the authority is asked back
	watchdog Watchdog          // nil without full leases
	// deadline receives when the lease of a run that is over has expired, while the next one has none; nil is never.
	deadline <-chan time.Time
	machine  Machine
	// guestConfig describes the guest. Its disks are set when the machine starts.
	guestConfig qemu.Config
	// claimed is the run that has claimed the disks.
	claimed string
	// newDisks is whether disks were created that the controller may not know of.
	newDisks bool
	// sizes are those of the disks. Nil: they are to be measured.
	sizes *controller.Disks
	// grown are the sizes that the machine was told last. Nil: none.
	grown *controller.Disks

	// guest is what is known of the guest once the machine has started.
	guest guest
	// paused is whether the controller wants the guest to be stopped.
	paused  bool
	leaving leaving
	// guestLeft is whether another hypervisor may run the guest.
	guestLeft bool
	// arrived is whether a guest that was received runs here.
	arrived bool
}

// live returns the reason of the end, which is never nil.
func (l *life) live(outer context.Context) error {
	defer l.close()
	if err := l.start(outer); err != nil {
		return err
	}
	return l.serve(outer.Done())
}

// start does the steps until the guest is ready to run.
func (l *life) start(outer context.Context) error {
	ctx, end := context.WithCancelCause(outer)
	defer end(nil)
	steps := starting
	switch {
	case l.config.Spec.GetMode() == vmpb.VMSpec_SM_INCOMING_MIGRATION:
		steps = receiving
	case l.served != nil:
		steps = startingServed
	}
	for _, step := range steps {
		l.log.Debug("starting", "step", step.name)
		err := step.do(l, ctx)
		if ctx.Err() != nil && !l.arrived {
			return wanted(ctx) // the step's error is a consequence
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if step.watch {
			go l.watchTermination(ctx, end)
		}
	}
	return nil
}

// wanted returns why the context ended: the controller, or a signal.
func wanted(ctx context.Context) error {
	for _, cause := range []error{errTerminated, errExpired} {
		if errors.Is(context.Cause(ctx), cause) {
			return cause
		}
	}
	return errStopped
}

// watchTermination ends the context when the controller terminates this hypervisor, or its lease expires.
func (l *life) watchTermination(ctx context.Context, end context.CancelCauseFunc) {
	for {
		authorization, changed := l.lease.Current()
		if why := over(authorization); why != nil {
			end(why)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// close undoes the steps in reverse order. The lock is released last: nothing of this process
// uses the disk then.
func (l *life) close() {
	if l.machine != nil {
		// Without limit: as long as the process lives, it may write to the disk.
		_ = l.machine.Kill(context.Background())
		<-l.machine.Done()
	}
	l.leaving.close()
	l.server.Stop()
	if l.lease != nil {
		l.lease.Close()
	}
	if l.served != nil {
		l.served.Detach()
	}
	l.release()
	if l.reporter != nil {
		l.reporter.Close()
	}
	if l.conn != nil {
		_ = l.conn.Close()
	}
	_ = l.storage.Unlock()
}

// listenFunc returns the listeners on the socket and the network; the latter may be nil.
type listenFunc func(Config) (local, peers net.Listener, err error)

func listenAll(config Config) (local, peers net.Listener, err error) {
	if config.Peers.Listen != "" {
		if peers, err = net.Listen("tcp", config.Peers.Listen); err != nil {
			return nil, nil, fmt.Errorf("listening for peers: %w", err)
		}
	}
	if local, err = service.ListenSocket(config.Paths.Socket()); err != nil {
		if peers != nil {
			_ = peers.Close()
		}
		return nil, nil, err
	}
	return local, peers, nil
}

// PodName returns the name of the hypervisor's Pod, which is the host name by default.
func PodName(spec *vmpb.VMSpec) (string, error) {
	if name := spec.GetPodName(); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("looking for the Pod's name: %w", err)
	}
	return name, nil
}
