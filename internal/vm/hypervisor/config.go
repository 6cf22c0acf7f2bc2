package hypervisor

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Config is the input of Run.
type Config struct {
	// Spec is the VM, as ParseSpec returns it. Required.
	Spec *vmpb.VMSpec
	// Paths of files; see PathsFor. Required.
	Paths Paths
	// Network are the prefixes of the guest's user-mode network, at most one of each IP
	// version: IPv4 of 8 to 28 bits, IPv6 of 64 bits. The second address of each is the
	// gateway. They must contain the VM's addresses. Empty: no network. IPv6 alone is
	// refused.
	Network []netip.Prefix
	// HostPorts are the TCP ports of the host's loopback that the guest may connect to, at
	// the gateway's addresses. Empty: none.
	HostPorts []uint16
	// Machines starts the machine. Required.
	Machines Starter
	// WriteDisk creates the root disk from an image. Nil: image.WriteDisk.
	WriteDisk func(context.Context, image.Source, image.Target, image.Options) error
	// Fetch downloads a boot file to a path. Nil: image.Fetch.
	Fetch func(ctx context.Context, source image.Source, path string, options image.Options) error
	// Connect opens the connection to the controller, with the credentials of this
	// process and controller.DialOptions. It must not wait for the controller. Required.
	Connect func(target string) (*grpc.ClientConn, error)
	// Peers serves the services over the network. Zero: it does not.
	Peers service.Peers
	// Timing are the time limits. Zero: all defaults.
	Timing Timing
	// Log is the logger. Nil: none.
	Log *slog.Logger
}

// Paths of the files that a hypervisor uses.
type Paths struct {
	// RootDisk is the file with the root disk; its folder must exist. Beside it are its
	// lock (".lock") and, while it is written, the partial file (".partial").
	RootDisk string
	// Run is the folder for files that live as long as the Pod: the socket, and QEMU's
	// inputs. It is created if need be.
	Run string
	// UserData is the file with the guest's configuration. Empty: none.
	UserData string
}

// Socket is the unix socket of the services.
func (p Paths) Socket() string { return filepath.Join(p.Run, filepath.Base(vmpb.SocketPath)) }

// PathsFor returns the paths of the container's contract and the specification, below the
// folder root. An empty root is that of the file system.
func PathsFor(spec *vmpb.VMSpec, root string) Paths {
	paths := Paths{
		RootDisk: filepath.Join(root, vmpb.RootDiskPath),
		Run:      filepath.Join(root, vmpb.DirRun),
	}
	if path := spec.GetRootDiskPath(); path != "" {
		paths.RootDisk = filepath.Join(root, path)
	}
	if path := spec.GetUserData().GetPath(); path != "" {
		paths.UserData = filepath.Join(root, path)
	}
	return paths
}

// Timing are the time limits of a hypervisor. A zero field is the default.
type Timing struct {
	// LockRetry is the time between two attempts to lock the disk. Default: 1 s.
	LockRetry time.Duration
	// LockLimit is how long to wait for a locked disk: a process that is about to end may
	// still hold the lock. Default: 60 s.
	LockLimit time.Duration
	// FirstAnswer is how long to wait for the controller's first answer before the guest
	// starts without it. Default: 10 s.
	FirstAnswer time.Duration
	// Prepared is how long to wait for the controller's confirmation that the disk is
	// prepared. Default: 10 s.
	Prepared time.Duration
	// Grace is how long a guest may take to shut down. Default: 20 s.
	Grace time.Duration
	// Command is how long QEMU may take to start or to execute a command. Default: 30 s.
	Command time.Duration
	// Resume is the time between two attempts to continue a guest whose storage failed.
	// Default: 5 s.
	Resume time.Duration
	// Settle is how long such a guest must run until the storage counts as working again.
	// Default: 1 s.
	Settle time.Duration
}

// Starter starts machines.
type Starter interface {
	// Start is qemu.Start, but chooses the accelerator.
	Start(ctx context.Context, config qemu.Config) (Machine, error)
}

// Machine is a running machine: a *qemu.Process.
type Machine interface {
	service.Guest
	State(ctx context.Context) (qemu.State, error)
	Changed() <-chan struct{}
	Cont(ctx context.Context) error
	Stop(ctx context.Context) error
	Powerdown(ctx context.Context) error
	Quit(ctx context.Context) error
	Kill(ctx context.Context) error
	Done() <-chan struct{}
	Exit() qemu.Exit
}

// QEMU starts machines with QEMU.
type QEMU struct {
	// Program is the path of QEMU, or its name in PATH. Empty: qemu.DefaultProgram.
	Program string
	// Accelerator is "kvm", "tcg" or "auto"; see qemu.DetectAccelerator. Empty: auto.
	Accelerator string
}

// Start implements Starter.
func (q QEMU) Start(ctx context.Context, config qemu.Config) (Machine, error) {
	accelerator, err := qemu.DetectAccelerator(q.Accelerator)
	if err != nil {
		return nil, err
	}
	config.Processor.Accelerator = accelerator
	process, err := qemu.Start(ctx, q.Program, config)
	if err != nil {
		return nil, err // not an interface that holds nil
	}
	return process, nil
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.WriteDisk == nil {
		c.WriteDisk = image.WriteDisk
	}
	if c.Fetch == nil {
		c.Fetch = image.Fetch
	}
	for _, limit := range []struct {
		value        *time.Duration
		defaultValue time.Duration
	}{
		{&c.Timing.LockRetry, time.Second},
		{&c.Timing.LockLimit, time.Minute},
		{&c.Timing.FirstAnswer, 10 * time.Second},
		{&c.Timing.Prepared, 10 * time.Second},
		{&c.Timing.Grace, 20 * time.Second},
		{&c.Timing.Command, 30 * time.Second},
		{&c.Timing.Resume, 5 * time.Second},
		{&c.Timing.Settle, time.Second},
	} {
		if *limit.value == 0 {
			*limit.value = limit.defaultValue
		}
	}
	return c
}

// check validates the input before anything is changed.
func (c Config) check() error {
	switch {
	case c.Spec == nil:
		return &SpecError{"spec", "is required"}
	case c.Machines == nil || c.Connect == nil || c.Paths.RootDisk == "" || c.Paths.Run == "":
		return errors.New("the configuration lacks paths, machines or the connection")
	}
	if problem := checkSpec(c.Spec); problem != nil {
		return problem
	}
	if err := c.Peers.Check(); err != nil {
		return err
	}
	_, err := guestNetwork(c.Spec, c.Network, c.HostPorts)
	return err
}
