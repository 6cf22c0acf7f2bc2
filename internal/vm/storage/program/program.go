// Package program prepares the disks of one virtual machine and serves them.
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/storage/diskserver"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Config is the configuration of Run.
type Config struct {
	// Spec is the virtual machine with the paths of its disks, as returned by vmspec.Parse. Required.
	Spec *vmpb.VMSpec
	// Paths are the paths of files; see hypervisor.PathsFor. Required.
	Paths hypervisor.Paths
	// Control and Sessions are the addresses to listen on, in the form host:port; see vmpb.EnvDisksControl and
	// vmpb.EnvDisksSessions. Required.
	Control, Sessions string
	// Options are the options of the server at Control, which must require certificates. Required.
	Options []grpc.ServerOption
	// Accept authenticates a connection with a hypervisor of the virtual machine. It is
	// identity.Siblings.AcceptAny. Required.
	Accept diskserver.AcceptAny
	// Connect opens the connection to the controller, using the credentials of this process and
	// controller.DialOptions. It must not wait for the controller. Required.
	Connect func(target string) (*grpc.ClientConn, error)
	// Follow is called with the connection to the controller, and returns when its context is canceled. It is
	// identity.Credentials.FollowAuthorities. If nil, the trusted authorities never change.
	Follow func(context.Context, grpc.ClientConnInterface)
	// WriteDisk creates a disk from an image. The default is image.WriteDisk.
	WriteDisk func(context.Context, image.Source, image.Target, image.Options) error
	// Program is the storage daemon: a path, or a name in PATH. The default is diskserver.DefaultProgram.
	Program string
	// LockRetry, LockLimit and Prepared are like those of hypervisor.Timing, with the same defaults.
	LockRetry, LockLimit, Prepared time.Duration
	// Log is the logger. If nil, nothing is logged.
	Log *slog.Logger
}

// Run prepares and serves the disks until the context is canceled (by SIGTERM) and returns why it terminated. By
// then all sessions are closed, all daemons have terminated, and the locks are released. Run rejects an invalid
// specification before it changes anything.
func Run(ctx context.Context, config Config) vmpb.Termination {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.WriteDisk == nil {
		config.WriteDisk = image.WriteDisk
	}
	config.Program = cmp.Or(config.Program, diskserver.DefaultProgram)
	config.LockRetry, config.LockLimit = cmp.Or(config.LockRetry, time.Second), cmp.Or(config.LockLimit, time.Minute)
	config.Prepared = cmp.Or(config.Prepared, 10*time.Second)
	if err := config.check(); err != nil {
		return hypervisor.TerminationOf(err)
	}
	l := &life{config: config, log: config.Log, disks: disks.New(config.Spec, config.Paths.RootDisk, config.Paths.DataDisks)}
	err := l.live(ctx)
	if ctx.Err() != nil {
		return vmpb.Termination{Reason: vmpb.EndStopped, Message: "stopped on request"}
	}
	return hypervisor.TerminationOf(err)
}

// check validates the input before anything is changed.
func (c Config) check() error {
	if c.Spec.GetMode() == vmpb.VMSpec_SM_INCOMING_MIGRATION {
		return &vmspec.Error{Field: "mode", Problem: "SM_INCOMING_MIGRATION is not possible for a disk server"}
	}
	// Revoked tokens are recorded next to the root disk, so it must be a file.
	if problem := noDevice("root_disk_path", c.Spec.GetRootDiskPath()); problem != nil {
		return problem
	}
	for i, data := range c.Spec.GetDataDisks() {
		if problem := noDevice(fmt.Sprintf("data_disks[%d].path", i), data.GetPath()); problem != nil {
			return problem
		}
	}
	if _, err := exec.LookPath(c.Program); err != nil {
		return fmt.Errorf("%w: %w", qemu.ErrNotInstalled, err)
	}
	return nil
}

func noDevice(field, path string) error {
	if strings.HasPrefix(path, "/dev/") {
		return &vmspec.Error{Field: field, Problem: "a disk server supports only files"}
	}
	return nil
}

// life is one run of the process. It is used by a single goroutine.
type life struct {
	config   Config
	log      *slog.Logger
	disks    *disks.Set
	reporter *controller.Reporter
	growing  sync.Mutex // only one growth at a time
}

// live runs until the process must terminate, and returns the reason.
func (l *life) live(ctx context.Context) error {
	spec := l.config.Spec
	us, err := l.us()
	if err != nil {
		return err
	}
	conn, err := l.config.Connect(spec.GetControllerEndpoint())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	l.reporter = controller.NewReporter(vmpb.NewVMControllerClient(conn), us, l.log)
	defer l.reporter.Close()
	following, end := context.WithCancel(ctx)
	var followed sync.WaitGroup
	followed.Go(func() { onConnection(following, conn, l.reporter.Repeat) })
	if l.config.Follow != nil {
		followed.Go(func() { l.config.Follow(following, conn) })
	}
	defer followed.Wait()
	defer end()
	if err := l.prepare(ctx); err != nil {
		return errors.Join(err, l.disks.Unlock())
	}
	return errors.Join(l.serve(ctx, us.GetPodName()), l.disks.Unlock())
}

// us returns the ID of this process run.
func (l *life) us() (*vmpb.HypervisorID, error) {
	pod, err := hypervisor.PodName(l.config.Spec)
	if err != nil {
		return nil, err
	}
	run, err := hypervisor.NextRun(l.config.Paths.Run, time.Now())
	if err != nil {
		return nil, err
	}
	l.log = l.log.With("vm", l.config.Spec.GetNamespace()+"/"+l.config.Spec.GetName(), "run", run)
	return &vmpb.HypervisorID{
		VmName: l.config.Spec.GetName(), Namespace: l.config.Spec.GetNamespace(), PodName: pod, RunId: run,
	}, nil
}

// onConnection calls a function whenever a new connection is established, until the context is canceled. A new
// connection may lead to another controller, which needs the whole report.
func onConnection(ctx context.Context, conn *grpc.ClientConn, call func()) {
	for state := conn.GetState(); ; state = conn.GetState() {
		switch state {
		case connectivity.Idle:
			conn.Connect()
		case connectivity.Ready:
			call()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// prepare locks the disks and prepares them, as a hypervisor does.
func (l *life) prepare(ctx context.Context) error {
	preparing := disks.Preparer{
		Spec: l.config.Spec, Run: l.config.Paths.Run, WriteDisk: l.config.WriteDisk, Report: l.reporter.Update,
		LockRetry: l.config.LockRetry, LockLimit: l.config.LockLimit,
	}
	preparing.ReportProgress("preparing the disks")
	if err := preparing.AwaitLock(ctx, l.disks.Lock); err != nil {
		return fmt.Errorf("locking the disks: %w", err)
	}
	isNew, err := preparing.Prepare(ctx, l.disks)
	if err != nil {
		return fmt.Errorf("preparing the disks: %w", err)
	}
	sizes, err := l.disks.Sizes()
	if err != nil {
		return err
	}
	l.reporter.Update(func(r *controller.Report) {
		r.State, r.Message, r.Prepared = vmpb.ReportStateRequest_STATE_WAITING, "the disks are prepared", true
		r.Disks = (*controller.Disks)(&sizes)
	})
	if !isNew {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.config.Prepared)
	defer cancel()
	if err := l.reporter.Confirmed(ctx); err != nil {
		l.log.Warn("the controller has not confirmed that the disks are prepared", "waited", l.config.Prepared)
	}
	return nil
}

// serve serves the disks until the context is canceled.
func (l *life) serve(ctx context.Context, pod string) (err error) {
	server, err := diskserver.New(diskserver.Config{
		Disks: l.exports(), Run: l.config.Paths.Run, Program: l.config.Program, Log: l.log, Locks: l.disks.Locks(), Grow: l.grow,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	ports, err := listen(l.config.Control, l.config.Sessions)
	if err != nil {
		return err
	}
	defer ports.close()
	rpc := grpc.NewServer(append(keepaliveOptions(), l.config.Options...)...)
	server.Register(rpc, ports.attachment(pod))
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	failed := make(chan error, 1)
	serving.Go(func() { failed <- rpc.Serve(ports.bounded()) })
	serving.Go(func() { server.Serve(ctx, ports.sessions, l.config.Accept) })
	defer rpc.Stop()
	l.reporter.Update(func(r *controller.Report) {
		r.State, r.Endpoint = vmpb.ReportStateRequest_STATE_RUNNING, ports.control.Addr().String()
	})
	l.log.Info("serving the disks", "control", ports.control.Addr().String(), "sessions", ports.attachment(pod).Address)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serving the controller: %w", err)
	}
}

// exports returns the disks under the names that hypervisors use.
func (l *life) exports() []diskserver.Disk {
	exports := []diskserver.Disk{{Name: session.Export(""), Path: l.config.Paths.RootDisk}}
	for _, data := range l.config.Spec.GetDataDisks() {
		exports = append(exports, diskserver.Disk{Name: session.Export(data.GetName()), Path: l.config.Paths.DataDisks[data.GetName()]})
	}
	return exports
}

// grow enlarges disks, reports their sizes to the controller, and returns them.
func (l *life) grow(desired map[string]uint64) (map[string]uint64, error) {
	l.growing.Lock()
	defer l.growing.Unlock()
	var list []*vmpb.DiskSize
	for name, bytes := range desired {
		list = append(list, &vmpb.DiskSize{Name: name, Bytes: bytes})
	}
	if err := l.disks.Grow(list); err != nil {
		return nil, err
	}
	sizes, err := l.disks.Sizes()
	if err != nil {
		return nil, err
	}
	l.log.Info("enlarged the disks", "desired", desired)
	l.reporter.Update(func(r *controller.Report) { r.Disks = (*controller.Disks)(&sizes) })
	has := map[string]uint64{}
	for _, size := range sizes {
		has[size.GetName()] = size.GetBytes()
	}
	return has, nil
}
