// Package served attaches disks of a disk server to a machine.
package served

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/internal/unixsocket"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// socket is the socket in the run directory that QEMU connects to.
const socket qemu.Socket = "disks.sock"

// lockedPath is the path in the run directory that is locked.
const lockedPath = "disks"

// ErrNowhere means that the controller has not reported yet where the disks are served.
var ErrNowhere = errors.New("the controller has not reported where the disks are served")

// Connect authenticates a connection with the disk server in a Pod. It is identity.Siblings.Connect.
type Connect func(ctx context.Context, raw net.Conn, pod, protocol string) (*tls.Conn, error)

// Options configure Disks. All fields except Disks are required.
type Options struct {
	// Disks are the data disks, in the order of the guest's bus. Only their names are used.
	Disks []*vmpb.DataDisk
	// Run is the directory for files that live as long as the Pod. No other user may access it.
	Run string
	// Connect connects to the disk server.
	Connect Connect
	// Retry is the time between two attempts to find the disks.
	Retry time.Duration
	// Log is the logger.
	Log *slog.Logger
}

// Disks are the disks of one virtual machine: the root disk, followed by the data disks. Only Explain is safe for
// concurrent use.
type Disks struct {
	options Options
	names   []string // the names of all disks; that of the root disk is empty
	lock    *disk.Lock
	// sizes are the sizes that the server has reported, in the order of the disks.
	sizes []uint64
	// end closes the sessions and waits until they are closed. It is nil if there are no sessions.
	end func()

	mu    sync.Mutex
	lease *controller.Lease
	// refusal is the reason why the last session could not be started, or nil.
	refusal error
}

// New returns disks that are not attached yet.
func New(options Options) *Disks {
	d := &Disks{options: options, names: []string{""}}
	for _, data := range options.Disks {
		d.names = append(d.names, data.GetName())
	}
	return d
}

// Lock locks the run directory. An earlier process in the same Pod, whose QEMU may still run, could have attached
// the disks with the same token. The token excludes other Pods. Lock returns disk.ErrLocked if another process
// holds the lock.
func (d *Disks) Lock() (err error) {
	d.lock, err = disk.Acquire(filepath.Join(d.options.Run, lockedPath))
	return err
}

// Locked reports whether Lock has locked the run directory.
func (d *Disks) Locked() bool { return d.lock != nil }

// Detach closes the sessions. When it returns, nothing more is sent.
func (d *Disks) Detach() {
	if d.end != nil {
		d.end()
		d.end = nil
	}
}

// Unlock detaches the disks and releases the lock.
func (d *Disks) Unlock() error {
	d.Detach()
	return d.lock.Release()
}

// Follow makes new sessions use the server and the token of a lease.
func (d *Disks) Follow(lease *controller.Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease = lease
}

// carrier returns where to start a session now, and a channel that is closed when that may change.
func (d *Disks) carrier() (session.Carrier, <-chan struct{}) {
	d.mu.Lock()
	lease := d.lease
	d.mu.Unlock()
	if lease == nil {
		return session.Carrier{}, nil
	}
	authorization, changed := lease.Current()
	to := storage.Attachment{Address: authorization.DiskServer.Address, Pod: authorization.DiskServer.Pod}
	return session.Carrier{To: to, Token: storage.Token(authorization.Token), Connect: d.options.Connect}, changed
}

// known returns an error if a lease lacks the server or the token of a session.
func known(carrier session.Carrier) error {
	switch {
	case carrier.To.Address == "":
		return ErrNowhere
	case carrier.Token == 0:
		return storage.ErrNoToken
	}
	return nil
}

// begin starts a session for QEMU.
func (d *Disks) begin(ctx context.Context) (net.Conn, error) {
	carrier, _ := d.carrier()
	if err := known(carrier); err != nil {
		return nil, err
	}
	conn, err := carrier.Begin(ctx)
	if err == nil {
		d.note(nil)
		d.options.Log.Info("attached the disks", "server", carrier.To.Pod, "token", carrier.Token)
	}
	return conn, err
}

func (d *Disks) refused(err error) {
	d.note(err)
	d.options.Log.Warn("cannot attach the disks", "error", err)
}

func (d *Disks) note(refusal error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusal = refusal
}

// Explain appends the reason why the disks cannot be attached to a message, if there is one.
func (d *Disks) Explain(message string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refusal == nil {
		return message
	}
	return fmt.Sprintf("%s The disks cannot be attached: %v.", message, d.refusal)
}

// Located reports whether the lease contains the server and the token for a session.
func (d *Disks) Located() bool {
	carrier, _ := d.carrier()
	return known(carrier) == nil
}

// Shared returns true, because both sides of a migration use the same disks and none is copied.
func (d *Disks) Shared() bool { return true }

// Expect returns an error if a disk would be copied. Await has already found the disks.
func (d *Disks) Expect(sizes []*vmpb.DiskSize) error {
	if len(sizes) > 0 {
		return errors.New("unexpected sizes: served disks are not copied")
	}
	return nil
}

// Await waits until the server has all disks. Meanwhile it reports what it is waiting for. It returns the
// context's cause if the context is canceled first.
func (d *Disks) Await(ctx context.Context, report func(string)) error {
	reported := ""
	for {
		changed, err := d.Find(ctx)
		if err == nil {
			return nil
		}
		if reason := waitsFor(err); reason != reported {
			reported = reason
			report(reason)
		}
		select {
		case <-changed:
		case <-time.After(d.options.Retry):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func waitsFor(err error) string {
	switch {
	case errors.Is(err, ErrNowhere):
		return "waiting for the disk server"
	case errors.Is(err, storage.ErrNoDisk):
		return fmt.Sprintf("a disk is missing on the disk server: %v; retrying", err)
	}
	return fmt.Sprintf("cannot use the disk server: %v; retrying", err)
}

// Find queries the server for the sizes of all disks. It returns a channel that is closed when the server may have
// changed. Errors: ErrNowhere, storage.ErrNoToken, storage.ErrNoDisk, or those of a session.
func (d *Disks) Find(ctx context.Context) (changed <-chan struct{}, err error) {
	carrier, changed := d.carrier()
	if err := known(carrier); err != nil {
		return changed, err
	}
	var exports []string
	for _, name := range d.names {
		exports = append(exports, session.Export(name))
	}
	sizes, err := carrier.Sizes(ctx, exports)
	if err == nil {
		d.sizes = sizes
	}
	return changed, err
}

// Attach adds the disks to the description of a machine and serves its connections until Detach is called.
func (d *Disks) Attach(to *qemu.Disks) error {
	if d.end == nil {
		listener, err := unixsocket.Listen(filepath.Join(d.options.Run, string(socket)))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		carried := make(chan struct{})
		go func() {
			defer close(carried)
			session.Carry(ctx, listener, d.begin, d.refused)
		}()
		d.end = func() { cancel(); <-carried }
	}
	to.Root, to.Data, to.Locks = at(""), nil, nil
	for _, name := range d.names[1:] {
		to.Data = append(to.Data, qemu.DataDisk{Disk: at(name), Serial: name})
	}
	if d.lock != nil {
		to.Locks = append(to.Locks, d.lock.File())
	}
	return nil
}

func at(name string) qemu.Disk {
	return qemu.Disk{Served: qemu.Served{Socket: socket, Export: session.Export(name)}}
}

// Sizes returns the sizes from the last successful Find.
func (d *Disks) Sizes() ([]*vmpb.DiskSize, error) {
	var sizes []*vmpb.DiskSize
	for i, name := range d.names[:len(d.sizes)] {
		sizes = append(sizes, &vmpb.DiskSize{Name: name, Bytes: d.sizes[i]})
	}
	return sizes, nil
}
