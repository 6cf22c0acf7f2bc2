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
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Config is all that Run needs. Nothing is taken from the environment.
type Config struct {
	// Spec is the VM, as ParseSpec returns it. Required.
	Spec *vmpb.VMSpec
	// Paths are where things are; PathsFor returns them. Required.
	Paths Paths
	// Network are the prefixes of the user-mode network that the guest sees, at most
	// one of each IP version: IPv4 of 8 to 28 bits, IPv6 of 64. The second address of
	// each is the gateway. The VM's addresses must be of them. Empty: no network. IPv6
	// alone is refused.
	Network []netip.Prefix
	// Machines starts the machine: QEMU, or a fake. Required.
	Machines Starter
	// Images brings disk images and boot files. Required for SM_PREPARE_IMAGE and for
	// a direct kernel boot.
	Images Images
	// Connect opens the connection to the controller, with the credentials of this
	// process. It must not wait for the controller. Use ControllerDialOptions too.
	// Required.
	Connect func(target string) (*grpc.ClientConn, error)
	// Peers is how others reach the services over the network. The zero value: they
	// do not.
	Peers service.Peers
	// Timing are the limits. The zero value: all defaults.
	Timing Timing
	// Log gets what happens. Nil: nobody.
	Log *slog.Logger
}

// Paths are the places of the file system that a hypervisor uses.
type Paths struct {
	// RootDisk is the file with the root disk; its folder must exist. Beside it are
	// its lock (".lock") and, while it is prepared, what is written (".partial").
	RootDisk string
	// Run is the folder for what lives as long as the Pod: the socket, and what is
	// handed to QEMU. It is made if it is not there.
	Run string
	// UserData is the file with the guest's configuration. Empty: none.
	UserData string
}

// Socket is the unix socket with the services for whoever may open it.
func (p Paths) Socket() string { return filepath.Join(p.Run, filepath.Base(vmpb.SocketPath)) }

// PathsFor returns the places that the container's contract and the specification name,
// below the folder root; "" stands for the file system's own root.
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

// Timing has the time limits of a hypervisor. Zero fields have the default.
type Timing struct {
	// LockRetry is the time between two tries to get a locked disk. Default 1 s.
	LockRetry time.Duration
	// LockLimit is how long a locked disk is waited for: a process that is about to
	// end may still have it. Default 60 s.
	LockLimit time.Duration
	// FirstAnswer is how long the controller's first answer is waited for, before the
	// guest starts without it. Default 10 s.
	FirstAnswer time.Duration
	// Prepared is how long the controller's confirmation that the disk is prepared is
	// waited for. Default 10 s.
	Prepared time.Duration
	// Grace is the time that a guest has to shut down. Default 20 s.
	Grace time.Duration
	// Command is how long QEMU may take to start, or to carry out a command. Default
	// 30 s.
	Command time.Duration
}

// Starter starts machines.
type Starter interface {
	// Start runs a machine with the guest stopped before its first instruction; its
	// disks are locked from then on. The context bounds Start only. After an error
	// nothing is left. Errors are those of qemu.Start.
	//
	// Processor.Accelerator of the configuration is empty: it is the starter's choice.
	Start(ctx context.Context, config qemu.Config) (Machine, error)
}

// Machine is a running machine; *qemu.Process is one, and its comments say what the
// methods do.
type Machine interface {
	service.Guest
	Cont(ctx context.Context) error
	Stop(ctx context.Context) error
	Powerdown(ctx context.Context) error
	Quit(ctx context.Context) error
	Kill(ctx context.Context) error
	Done() <-chan struct{}
	Exit() qemu.Exit
}

// Images brings what a VM starts from.
//
// An error wraps ErrImageUnavailable or ErrImageRejected, or the system's
// (syscall.ENOSPC), or is the context's.
type Images interface {
	// WriteDisk makes the file disk, which does not exist, with the image's content and
	// at least so many bytes. The file appears whole and safe from a crash, or not at
	// all; what an interrupted attempt left beside it is of no use. The image may not
	// need more than size.
	WriteDisk(ctx context.Context, image *vmpb.InitialImage, disk string, size uint64, progress Listener) error
	// Fetch makes or replaces a file with the content behind a URL, whole or not at
	// all.
	Fetch(ctx context.Context, file *vmpb.BootFile, path string, progress Listener) error
}

// Listener gets the progress of an image. Its functions are never nil, and may be
// called at any rate, by one goroutine.
type Listener struct {
	// Progress says how many bytes are done, and of how many; 0 is not known.
	Progress func(done, total uint64)
	// Trouble says why there is no progress, while it is tried again.
	Trouble func(error)
}

var (
	// ErrImageUnavailable says that an image cannot be fetched now.
	ErrImageUnavailable = errors.New("the image cannot be fetched")
	// ErrImageRejected says that what was fetched cannot be used.
	ErrImageRejected = errors.New("the image cannot be used")
)

// withDefaults fills in what was left to us.
func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
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
	} {
		if *limit.value == 0 {
			*limit.value = limit.defaultValue
		}
	}
	return c
}

// check refuses what Run cannot work with, before anything is touched.
func (c Config) check() error {
	switch {
	case c.Spec == nil:
		return &SpecError{"spec", "is required"}
	case c.Machines == nil || c.Connect == nil || c.Paths.RootDisk == "" || c.Paths.Run == "":
		return errors.New("the configuration lacks paths, machines or the connection")
	case c.Images == nil && needsImages(c.Spec):
		return errors.New("the configuration lacks images")
	}
	if problem := checkSpec(c.Spec); problem != nil {
		return problem
	}
	if err := c.Peers.Check(); err != nil {
		return err
	}
	_, err := guestNetwork(c.Spec, c.Network)
	return err
}

func needsImages(spec *vmpb.VMSpec) bool {
	return spec.GetMode() == vmpb.VMSpec_SM_PREPARE_IMAGE || spec.GetKernelBoot() != nil
}
