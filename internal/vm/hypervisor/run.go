package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Run runs a hypervisor process and returns why it ended. The end of the context is the
// request to end (SIGTERM): the guest is asked to shut down, and killed after
// Timing.Grace.
//
// When Run returns, the machine's process is gone, the disk's lock is free and nothing
// is served any more. A wrong specification is found before anything is touched.
//
// It may be called once per process and run folder at a time.
func Run(ctx context.Context, config Config) vmpb.Termination {
	return terminationOf(run(ctx, config.withDefaults(), listenAll))
}

func run(ctx context.Context, config Config, listen listenFunc) error {
	if err := config.check(); err != nil {
		return err
	}
	l := &life{config: config, log: config.Log, server: service.New(config.Peers), listen: listen}
	return l.live(ctx)
}

// life is one run of a hypervisor. Its fields are set by the steps of start.go, in
// their order, and used by one goroutine.
type life struct {
	config Config
	log    *slog.Logger
	server *service.Server
	listen listenFunc

	us       *vmpb.HypervisorID
	endpoint string
	conn     *grpc.ClientConn
	reporter *controller.Reporter
	lock     *disk.Lock
	lease    *controller.Lease
	machine  Machine

	// state is what the guest does: nothing, RUNNING or PAUSED.
	state vmpb.ReportStateRequest_State
}

// live returns the reason of the end, which is never nil.
func (l *life) live(outer context.Context) error {
	defer l.close()
	ctx, end := context.WithCancelCause(outer)
	defer end(nil)

	for _, step := range starting {
		l.log.Debug("starting", "step", step.name)
		err := step.do(l, ctx)
		if ctx.Err() != nil {
			return wanted(ctx) // whatever else the step says, it is a consequence
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if step.watch {
			go l.watchTermination(ctx, end)
		}
	}
	return l.serve(ctx)
}

// wanted returns the cause of the context's end: the controller, or a signal.
func wanted(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errTerminated) {
		return errTerminated
	}
	return errStopped
}

// watchTermination ends the context when the controller wants the end. It does not
// outlive the context.
func (l *life) watchTermination(ctx context.Context, end context.CancelCauseFunc) {
	for {
		authorization, changed := l.lease.Current()
		if authorization.Terminated {
			end(errTerminated)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// close undoes what was done, the last first. The lock goes last of all: nothing of
// ours touches the disk then.
func (l *life) close() {
	if l.machine != nil {
		// Without limit: as long as the process is there, so is our hold on its disk.
		_ = l.machine.Kill(context.Background())
		<-l.machine.Done()
	}
	l.server.Stop()
	if l.lease != nil {
		l.lease.Close()
	}
	if l.reporter != nil {
		l.reporter.Close()
	}
	if l.conn != nil {
		_ = l.conn.Close()
	}
	_ = l.lock.Release()
}

// listenFunc makes the listeners for the socket and for the network; the latter is nil
// if it is not wanted.
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

// podName is how the process is known: the Pod's name is the host name by default.
func podName(spec *vmpb.VMSpec) (string, error) {
	if name := spec.GetPodName(); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("looking for the Pod's name: %w", err)
	}
	return name, nil
}
