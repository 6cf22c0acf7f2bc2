package hypervisor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/arrival"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/departure"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/served"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/watchdog"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Config is the input of Run.
type Config struct {
	// Spec is the VM, as vmspec.Parse returns it. Required.
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
	// Switch is the path of the socket of the switch that connects the guest to others; see
	// package network. Empty: the guest reaches none.
	Switch string
	// NoOutside forbids the guest everything but other guests and HostPorts.
	NoOutside bool
	// Machines starts the machine. Required.
	Machines Starter
	// WriteDisk creates the root disk from an image. Nil: image.WriteDisk.
	WriteDisk func(context.Context, image.Source, image.Target, image.Options) error
	// Fetch downloads a boot file to a path. Nil: image.Fetch.
	Fetch func(ctx context.Context, source image.Source, path string, options image.Options) error
	// Connect opens the connection to the controller, with the credentials of this
	// process and controller.DialOptions. It must not wait for the controller. Required.
	Connect func(target string) (*grpc.ClientConn, error)
	// Trouble returns why this process cannot show the controller who it is, if that is no matter of a
	// controller that is away; nil if it can. Then the guest does not start. Nil: it always can.
	Trouble func() error
	// Peers serves the services over the network. Zero: it does not.
	Peers service.Peers
	// Migration is what live migration needs. Nil: instead of migrating, a guest is shut
	// down. Required for SM_INCOMING_MIGRATION.
	Migration *Migration
	// DiskServer connects to the server of the disks: identity.Siblings.Connect. Required for disks_served.
	DiskServer served.Connect
	// Watchdog starts a watchdog for this process, which Close ends. Required for LM_FULL_LEASES.
	Watchdog func() (Watchdog, error)
	// Clock never goes back, and counts while the machine sleeps. Nil: watchdog.Now.
	Clock func() lease.Instant
	// Timing are the time limits. Zero: all defaults.
	Timing Timing
	// Urged receives when the process is asked to end again: then a controller that does not answer is not
	// waited for any more. Nil: never. See Urging.
	Urged <-chan struct{}
	// Log is the logger. Nil: none.
	Log *slog.Logger
}

// Watchdog kills this process if it outlives its lease: a *watchdog.Watchdog.
type Watchdog interface {
	controller.Watchdog
	Close()
}

// Migration is what live migration needs.
type Migration struct {
	// Siblings are the other hypervisors of the VM: an identity.Siblings. Required.
	Siblings Siblings
	// Bandwidth is the limit of memory and disk, each, in bytes per second. 0: QEMU's default
	// for the memory, and none for the disk.
	Bandwidth uint64
	// Departure are the time limits of a source. Zero: all defaults.
	Departure departure.Timing
	// Arrival are the time limits of a target. Zero: all defaults.
	Arrival arrival.Timing
}

// Siblings are the other hypervisors of the VM.
type Siblings interface {
	departure.Siblings
	arrival.Siblings
}

// Paths of the files that a hypervisor uses.
type Paths struct {
	// RootDisk is the file with the root disk; its folder must exist. Beside it are its
	// lock (".lock") and, while it is written, the partial file (".partial").
	RootDisk string
	// DataDisks are the files with the data disks, by the disk's name, as for RootDisk.
	DataDisks map[string]string
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
	for _, data := range spec.GetDataDisks() {
		if paths.DataDisks == nil {
			paths.DataDisks = map[string]string{}
		}
		paths.DataDisks[data.GetName()] = filepath.Join(root, data.GetPath())
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
	// Identity is how long a process tries to get a certificate if nobody issues one to it. Default: 60 s.
	Identity time.Duration
	// Prepared is how long to wait for the controller's confirmation that the disk is
	// prepared. Default: 10 s.
	Prepared time.Duration
	// Grace is how long a guest may take to shut down. Default: 20 s.
	Grace time.Duration
	// Press is the time between two presses of the power button: a guest that boots does not notice
	// the first one. Default: 3 s.
	Press time.Duration
	// Command is how long QEMU may take to start or to execute a command. Default: 30 s.
	Command time.Duration
	// Quit is how long QEMU may take to end after it was told to; then it is killed. Default: 2 s.
	Quit time.Duration
	// Resume is the time between two attempts to continue a guest whose storage failed.
	// Default: 5 s.
	Resume time.Duration
	// Settle is how long such a guest must run until the storage counts as working again.
	// Default: 1 s.
	Settle time.Duration
	// Margin is what remains of VMSpec.grace when everything else has taken as long as it may.
	// Default: 2 s.
	Margin time.Duration
}

// Starter starts machines.
type Starter interface {
	// Accelerator is what machines are started with.
	Accelerator() (qemu.Accelerator, error)
	// Start is qemu.Start.
	Start(ctx context.Context, config qemu.Config) (Machine, error)
}

// Machine is a running machine: a *qemu.Process.
type Machine interface {
	service.Guest
	departure.Machine
	arrival.Machine
	State(ctx context.Context) (qemu.State, error)
	Changed() <-chan struct{}
	Cont(ctx context.Context) error
	Stop(ctx context.Context) error
	Powerdown(ctx context.Context) error
	Quit(ctx context.Context) error
	Kill(ctx context.Context) error
	Grow(ctx context.Context, serial string, bytes uint64) error
	Activate(ctx context.Context) error
}

// QEMU starts machines with QEMU.
type QEMU struct {
	// Program is the path of QEMU, or its name in PATH. Empty: qemu.DefaultProgram.
	Program string
	// Override is "kvm", "tcg" or "auto"; see qemu.DetectAccelerator. Empty: auto.
	Override string
}

// Accelerator implements Starter.
func (q QEMU) Accelerator() (qemu.Accelerator, error) { return qemu.DetectAccelerator(q.Override) }

// Start implements Starter.
func (q QEMU) Start(ctx context.Context, config qemu.Config) (Machine, error) {
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
	if c.Clock == nil {
		c.Clock = watchdog.Now
	}
	if c.Trouble == nil {
		c.Trouble = func() error { return nil }
	}
	t := &c.Timing
	t.LockRetry = cmp.Or(t.LockRetry, time.Second)
	t.LockLimit = cmp.Or(t.LockLimit, time.Minute)
	t.FirstAnswer = cmp.Or(t.FirstAnswer, 10*time.Second)
	t.Identity = cmp.Or(t.Identity, time.Minute)
	t.Prepared = cmp.Or(t.Prepared, 10*time.Second)
	t.Grace = cmp.Or(t.Grace, 20*time.Second)
	t.Press = cmp.Or(t.Press, 3*time.Second)
	t.Command = cmp.Or(t.Command, 30*time.Second)
	t.Quit = cmp.Or(t.Quit, 2*time.Second)
	t.Resume = cmp.Or(t.Resume, 5*time.Second)
	t.Settle = cmp.Or(t.Settle, time.Second)
	t.Margin = cmp.Or(t.Margin, 2*time.Second)
	return c
}

// check validates the input before anything is changed.
func (c Config) check() error {
	switch {
	case c.Spec == nil:
		return &vmspec.Error{Field: "spec", Problem: "is required"}
	case c.Machines == nil || c.Connect == nil || c.Paths.RootDisk == "" || c.Paths.Run == "":
		return errors.New("the configuration lacks paths, machines or the connection")
	case c.Spec.GetMode() == vmpb.VMSpec_SM_INCOMING_MIGRATION && c.Migration == nil:
		return &vmspec.Error{Field: "mode", Problem: "SM_INCOMING_MIGRATION is not possible without connections to other hypervisors"}
	}
	if err := vmspec.Check(c.Spec); err != nil {
		return err
	}
	if problem := c.checkLeased(); problem != nil {
		return problem
	}
	if err := c.Peers.Check(); err != nil {
		return err
	}
	_, err := guestNetwork(c.Spec, c.Network, c.HostPorts)
	return err
}

// checkLeased returns what a virtual machine with leases lacks; nil if that is nothing.
func (c Config) checkLeased() error {
	switch {
	case fullLeases(c.Spec) && c.Watchdog == nil:
		return &vmspec.Error{Field: "lease_mode", Problem: "LM_FULL_LEASES is not possible without a watchdog"}
	case c.Spec.GetDisksServed() && c.DiskServer == nil:
		return &vmspec.Error{Field: "disks_served", Problem: "is not possible without connections to the server of the disks"}
	}
	return nil
}
