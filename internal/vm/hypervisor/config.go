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
	// Network holds the prefixes of the guest's user-mode network, at most one of each IP version: IPv4 of 8 to 28
	// bits, IPv6 of 64 bits. The second address of each is the gateway. They must contain the VM's addresses. If
	// empty, the guest has no network. IPv6 alone is rejected.
	Network []netip.Prefix
	// HostPorts are the TCP ports of the host's loopback that the guest may connect to, at the gateway's addresses.
	// If empty, there are none.
	HostPorts []uint16
	// Switch is the path of the socket of the switch that connects the guest to other guests; see package network. If
	// empty, the guest reaches no other guest.
	Switch string
	// NoOutside restricts the guest to other guests and HostPorts.
	NoOutside bool
	// Machines starts the machine. Required.
	Machines Starter
	// WriteDisk creates the root disk from an image. The default is image.WriteDisk.
	WriteDisk func(context.Context, image.Source, image.Target, image.Options) error
	// Fetch downloads a boot file to a path. The default is image.Fetch.
	Fetch func(ctx context.Context, source image.Source, path string, options image.Options) error
	// Connect opens the connection to the controller, with the credentials of this
	// process and controller.DialOptions. It must not wait for the controller. Required.
	Connect func(target string) (*grpc.ClientConn, error)
	// IdentityError returns why this process cannot authenticate to the controller, unless the reason is that the
	// controller is unreachable; nil if it can. With an error, the guest does not start. If IdentityError is nil, the
	// process can always authenticate.
	IdentityError func() error
	// Peers serves the services over the network. The zero value does not.
	Peers service.Peers
	// Migration configures live migration. If nil, a guest is shut down instead of migrated. Required for
	// SM_INCOMING_MIGRATION.
	Migration *Migration
	// DiskServer connects to the disk server: identity.Siblings.Connect. Required for disks_served.
	DiskServer served.Connect
	// Watchdog starts a watchdog for this process, which Close stops. Required for LM_FULL_LEASES.
	Watchdog func() (Watchdog, error)
	// Clock never goes back, and counts while the host is suspended. The default is watchdog.Now.
	Clock func() lease.Instant
	// Timing holds the time limits. Zero fields use the defaults.
	Timing Timing
	// SecondSIGTERM receives when the process is asked to terminate again: then the time for a controller that does not
	// respond becomes short. If nil, it never receives. See the function SecondSIGTERM.
	SecondSIGTERM <-chan struct{}
	// Log is the logger. If nil, nothing is logged.
	Log *slog.Logger
}

// Watchdog kills this process if it outlives its lease: a *watchdog.Watchdog.
type Watchdog interface {
	controller.Watchdog
	Close()
}

// Migration configures live migration.
type Migration struct {
	// Siblings are the other hypervisors of the VM: an identity.Siblings. Required.
	Siblings Siblings
	// Bandwidth is the limit for memory and for disks, each in bytes per second. If 0, QEMU's default applies to the
	// memory, and the disks have no limit.
	Bandwidth uint64
	// Departure holds the time limits of a source. Zero fields use the defaults.
	Departure departure.Timing
	// Arrival holds the time limits of a target. Zero fields use the defaults.
	Arrival arrival.Timing
}

// Siblings are the other hypervisors of the VM.
type Siblings interface {
	departure.Siblings
	arrival.Siblings
}

// Paths of the files that a hypervisor uses.
type Paths struct {
	// RootDisk is the file with the root disk; its directory must exist. Next to it are its lock (".lock") and, while
	// it is written, the partial file (".partial").
	RootDisk string
	// DataDisks are the files with the data disks, by the disk's name, as for RootDisk.
	DataDisks map[string]string
	// Run is the directory for files that live as long as the Pod: the socket, and QEMU's inputs. It is created if
	// necessary.
	Run string
	// UserData is the file with the guest's configuration. If empty, there is none.
	UserData string
}

// Socket is the unix socket of the services.
func (p Paths) Socket() string { return filepath.Join(p.Run, filepath.Base(vmpb.SocketPath)) }

// PathsFor returns the paths of the container's contract and the specification, below the directory root. An empty
// root is the root of the file system.
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

// Timing holds the time limits of a hypervisor. Zero fields use the defaults.
type Timing struct {
	// LockRetry is the time between two attempts to lock the disk. The default is 1 s.
	LockRetry time.Duration
	// LockLimit is how long to wait for a locked disk: a process that is about to terminate may still hold the lock.
	// The default is 60 s.
	LockLimit time.Duration
	// FirstAnswer is how long to wait for the controller's first response before the guest starts without it. The
	// default is 10 s.
	FirstAnswer time.Duration
	// Identity is how long a process tries to get a certificate if no one issues it. The default is 60 s.
	Identity time.Duration
	// Prepared is how long to wait for the controller's confirmation that the disk is prepared. The default is 10 s.
	Prepared time.Duration
	// Grace is how long a guest may take to shut down. The default is 20 s.
	Grace time.Duration
	// Press is the time between two presses of the power button: a guest that is booting does not notice the first
	// one. The default is 3 s.
	Press time.Duration
	// Command is how long QEMU may take to start or to execute a command. The default is 30 s.
	Command time.Duration
	// Quit is how long QEMU may take to exit after the quit command before it is killed. The default is 2 s.
	Quit time.Duration
	// Resume is the time between two attempts to continue a guest whose storage failed. The default is 5 s.
	Resume time.Duration
	// Settle is how long such a guest must run until the storage counts as working again. The default is 1 s.
	Settle time.Duration
	// Margin is what remains of VMSpec.grace when everything else has taken as long as allowed. The default is 2 s.
	Margin time.Duration
}

// Starter starts machines.
type Starter interface {
	// Accelerator returns the accelerator of the machines.
	Accelerator() (qemu.Accelerator, error)
	// Start starts a machine, like qemu.Start.
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
	// Program is the path of QEMU, or its name in PATH. The default is qemu.DefaultProgram.
	Program string
	// Override is "kvm", "tcg" or "auto"; see qemu.DetectAccelerator. The default is auto.
	Override string
}

// Accelerator implements Starter.
func (q QEMU) Accelerator() (qemu.Accelerator, error) { return qemu.DetectAccelerator(q.Override) }

// Start implements Starter.
func (q QEMU) Start(ctx context.Context, config qemu.Config) (Machine, error) {
	process, err := qemu.Start(ctx, q.Program, config)
	if err != nil {
		return nil, err // a nil *qemu.Process would not be a nil Machine
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
	if c.IdentityError == nil {
		c.IdentityError = func() error { return nil }
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

// checkLeased returns what is missing for a virtual machine with leases; nil if nothing is.
func (c Config) checkLeased() error {
	switch {
	case fullLeases(c.Spec) && c.Watchdog == nil:
		return &vmspec.Error{Field: "lease_mode", Problem: "LM_FULL_LEASES is not possible without a watchdog"}
	case c.Spec.GetDisksServed() && c.DiskServer == nil:
		return &vmspec.Error{Field: "disks_served", Problem: "is not possible without connections to the disk server"}
	}
	return nil
}
