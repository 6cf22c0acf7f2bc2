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
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/ports"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/served"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/watchdog"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	"github.com/millwright-dev/millwright/internal/vm/network/overlay"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Config is the configuration of Run.
type Config struct {
	// Spec is the VM's specification, as returned by vmspec.Parse. Required.
	Spec *vmpb.VMSpec
	// Paths are the paths of files; see PathsFor. Required.
	Paths Paths
	// Network holds the prefixes of the guest's user-mode network, at most one of each IP version: IPv4 with 8 to
	// 28 bits, IPv6 with 64 bits. The second address of each prefix is the gateway. The prefixes must contain the
	// VM's addresses. If empty, the guest has no network. IPv6 without IPv4 is rejected.
	Network []netip.Prefix
	// HostPorts are the TCP ports of the host's loopback interface that the guest may connect to, at the addresses
	// of the gateway. If empty, the guest may connect to none of them.
	HostPorts []uint16
	// Switch is the path of the socket of the switch that connects the guest to other guests; see package network.
	// If empty, the guest cannot reach other guests.
	Switch string
	// Overlay configures the network to the guests of other hypervisors, which replaces Switch. If nil, the guest
	// cannot reach guests on other hosts. Its logger is Log. It is not used if the guest has no network.
	Overlay *overlay.Config
	// Ports lets clients connect to the guest, and reports whether it is ready. If nil, it does neither. It is not used
	// if the guest has no network.
	Ports *ports.Config
	// NoOutside restricts the guest to other guests and HostPorts.
	NoOutside bool
	// Machines starts machines. Required.
	Machines Starter
	// WriteDisk creates the root disk from an image. The default is image.WriteDisk.
	WriteDisk func(context.Context, image.Source, image.Target, image.Options) error
	// Fetch downloads a boot file to a path. The default is image.Fetch.
	Fetch func(ctx context.Context, source image.Source, path string, options image.Options) error
	// Connect opens the connection to the controller, using the credentials of this process and
	// controller.DialOptions. It must not wait for the controller. Required.
	Connect func(target string) (*grpc.ClientConn, error)
	// Follow is called with the connection to the controller, and returns when its context is canceled. It is
	// identity.Credentials.FollowAuthorities. If nil, the trusted authorities never change.
	Follow func(context.Context, grpc.ClientConnInterface)
	// IdentityError returns why this process cannot authenticate to the controller, or nil if it can or the
	// controller is merely unreachable. The guest does not start while it returns an error. If IdentityError is
	// nil, the process can always authenticate.
	IdentityError func() error
	// Peers configures the services on the network. The zero value disables them.
	Peers service.Peers
	// Migration configures live migration. If nil, a guest is shut down instead of being migrated. Required for
	// SM_INCOMING_MIGRATION.
	Migration *Migration
	// DiskServer connects to the disk server. It is identity.Siblings.Connect. Required for disks_served.
	DiskServer served.Connect
	// Watchdog starts a watchdog for this process. Close stops it. Required for LM_FULL_LEASES.
	Watchdog func() (Watchdog, error)
	// Clock returns the current time. It never goes back and keeps running while the host is suspended. The
	// default is watchdog.Now.
	Clock func() lease.Instant
	// Timing holds the time limits. Zero fields use the defaults.
	Timing Timing
	// SecondSIGTERM receives a value when the process gets another SIGTERM. The time to wait for an unresponsive
	// controller then becomes short. If nil, further signals have no effect. See the function SecondSIGTERM.
	SecondSIGTERM <-chan struct{}
	// Log is the logger. If nil, nothing is logged.
	Log *slog.Logger
}

// Watchdog kills this process if it outlives its lease. It is implemented by *watchdog.Watchdog.
type Watchdog interface {
	controller.Watchdog
	Close()
}

// Migration configures live migration.
type Migration struct {
	// Siblings are the other hypervisors of the VM. Required.
	Siblings Siblings
	// Bandwidth limits the transfer of memory and the transfer of disks, each in bytes per second. If 0, QEMU's
	// default applies to the memory, and the disks are not limited.
	Bandwidth uint64
	// Departure holds the time limits of a source. Zero fields use the defaults.
	Departure departure.Timing
	// Arrival holds the time limits of a target. Zero fields use the defaults.
	Arrival arrival.Timing
}

// Siblings are the other hypervisors of the VM. It is implemented by identity.Siblings.
type Siblings interface {
	departure.Siblings
	arrival.Siblings
}

// Paths are the paths of the files that a hypervisor uses.
type Paths struct {
	// RootDisk is the file with the root disk. Its directory must exist. The disk's lock (".lock") and, while the
	// disk is being written, a partial file (".partial") are next to it.
	RootDisk string
	// DataDisks are the files with the data disks, by the name of the disk. The rules of RootDisk apply to them,
	// too.
	DataDisks map[string]string
	// Run is the directory for files that live as long as the Pod: the socket and QEMU's inputs. It is created if
	// necessary.
	Run string
	// UserData is the file with the guest's configuration. If empty, the guest has no user data.
	UserData string
}

// Socket returns the path of the Unix socket of the services.
func (p Paths) Socket() string { return filepath.Join(p.Run, filepath.Base(vmpb.SocketPath)) }

// PathsFor returns the paths that the container contract and the specification define, below the directory root.
// If root is empty, the paths start at the root of the file system.
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
	// LockLimit is how long to wait for a locked disk, because a process that is about to terminate may still hold
	// the lock. The default is 60 s.
	LockLimit time.Duration
	// FirstResponse is how long to wait for the controller's first response before the guest starts without one. The
	// default is 10 s.
	FirstResponse time.Duration
	// Identity is how long the process tries to get a certificate if no controller issues one. The default is 60
	// s.
	Identity time.Duration
	// Prepared is how long to wait until the controller confirms that the disks are prepared. The default is 10 s.
	Prepared time.Duration
	// Grace is how long a guest may take to shut down. The default is VMSpec.shutdown_time, or else 20 s.
	Grace time.Duration
	// Press is the time between two presses of the power button. A guest that is booting may miss the first one.
	// The default is 3 s.
	Press time.Duration
	// Command is how long QEMU may take to start or to execute a command. The default is 30 s.
	Command time.Duration
	// Quit is how long QEMU may take to exit after the quit command before it is killed. The default is 2 s.
	Quit time.Duration
	// Resume is the time between two attempts to continue a guest whose storage failed. The default is 5 s.
	Resume time.Duration
	// Settle is how long such a guest must run before its storage counts as working again. The default is 1 s.
	Settle time.Duration
	// Margin is the part of VMSpec.grace that remains if everything else takes as long as allowed. The default is
	// 2 s.
	Margin time.Duration
}

// Starter starts machines.
type Starter interface {
	// Accelerator returns the accelerator that the machines use.
	Accelerator() (qemu.Accelerator, error)
	// UEFI returns the UEFI firmware of this host, like qemu.FindUEFI.
	UEFI() (*qemu.UEFI, error)
	// Start starts a machine, like qemu.Start.
	Start(ctx context.Context, config qemu.Config) (Machine, error)
}

// Machine is a running machine. It is implemented by *qemu.Process.
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
	// Direct returns this process's connections to the guest; nil if the guest has no network.
	Direct() *dialer.Direct
}

// QEMU starts machines with QEMU.
type QEMU struct {
	// Program is the path of QEMU, or its name in PATH. The default is qemu.DefaultProgram.
	Program string
	// Override is "kvm", "tcg" or "auto"; see qemu.DetectAccelerator. The default is auto.
	Override string
	// Firmware is the path of the UEFI firmware. The default is qemu.DefaultUEFI.
	Firmware string
}

// Accelerator implements Starter.
func (q QEMU) Accelerator() (qemu.Accelerator, error) { return qemu.DetectAccelerator(q.Override) }

// UEFI implements Starter.
func (q QEMU) UEFI() (*qemu.UEFI, error) { return qemu.FindUEFI(q.Firmware) }

// Start implements Starter.
func (q QEMU) Start(ctx context.Context, config qemu.Config) (Machine, error) {
	process, err := qemu.Start(ctx, q.Program, config)
	if err != nil {
		return nil, err // a nil *qemu.Process would become a non-nil Machine
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
	t.FirstResponse = cmp.Or(t.FirstResponse, 10*time.Second)
	t.Identity = cmp.Or(t.Identity, time.Minute)
	t.Prepared = cmp.Or(t.Prepared, 10*time.Second)
	t.Grace = cmp.Or(t.Grace, c.Spec.GetShutdownTime().AsDuration(), 20*time.Second)
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
		return errors.New("the configuration must set Paths, Machines and Connect")
	case c.Spec.GetMode() == vmpb.VMSpec_SM_INCOMING_MIGRATION && c.Migration == nil:
		return &vmspec.Error{Field: "mode", Problem: "SM_INCOMING_MIGRATION requires connections to other hypervisors"}
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
	if _, err := c.uefi(); err != nil {
		return err
	}
	_, err := guestNetwork(c.Spec, c.Network, c.HostPorts)
	return err
}

// uefi returns the UEFI firmware that boots the guest, or nil if the guest does not boot by UEFI.
func (c Config) uefi() (*qemu.UEFI, error) {
	if c.Spec.GetFirmware() != vmpb.VMSpec_FIRMWARE_UEFI {
		return nil, nil
	}
	return c.Machines.UEFI()
}

// checkLeased returns an error if the configuration lacks something that a virtual machine with leases requires.
func (c Config) checkLeased() error {
	switch {
	case fullLeases(c.Spec) && c.Watchdog == nil:
		return &vmspec.Error{Field: "lease_mode", Problem: "LM_FULL_LEASES requires a watchdog"}
	case c.Spec.GetDisksServed() && c.DiskServer == nil:
		return &vmspec.Error{Field: "disks_served", Problem: "requires connections to the disk server"}
	}
	return nil
}
