// Package served has a machine use disks that a server serves, instead of disks of its own.
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

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// socket is where QEMU connects to, in the run folder.
const socket qemu.Socket = "disks.sock"

// lockedPath is what is locked in the run folder.
const lockedPath = "disks"

// ErrNowhere means that the controller has not said yet where the disks are served.
var ErrNowhere = errors.New("the controller has not said where the disks are served")

// Connect makes a connection one with the server in a Pod: identity.Siblings.Connect.
type Connect func(ctx context.Context, raw net.Conn, pod, protocol string) (*tls.Conn, error)

// Options are what disks are attached with. All fields are required, but for Disks.
type Options struct {
	// Disks are the data disks, in the order of the guest's bus. Only their names matter.
	Disks []*vmpb.DataDisk
	// Run is the folder for files that live as long as the Pod. No one else may open it.
	Run string
	// Connect connects to the server.
	Connect Connect
	// Retry is the time between two attempts to find the disks.
	Retry time.Duration
	// Log is the logger.
	Log *slog.Logger
}

// Disks are those of one virtual machine: the root disk, and then the data disks. Explain may be called by any
// goroutine, all else by one.
type Disks struct {
	options Options
	names   []string // of all disks; that of the root disk is empty
	lock    *disk.Lock
	// sizes are those that the server has said, in the order of the disks.
	sizes []uint64
	// end ends the sessions, and waits for that. Nil: there are none.
	end func()

	mu    sync.Mutex
	lease *controller.Lease
	// refusal is why the last session did not begin; nil if it did.
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

// Lock locks the run folder: a process before this one in the same Pod, whose QEMU may live on, could have the disks attached
// with the same token. What other Pods attach, the token ends. Errors: disk.ErrLocked.
func (d *Disks) Lock() (err error) {
	d.lock, err = disk.Acquire(filepath.Join(d.options.Run, lockedPath))
	return err
}

// Detach ends the sessions, and waits for that: nothing is sent any more.
func (d *Disks) Detach() {
	if d.end != nil {
		d.end()
		d.end = nil
	}
}

// Unlock releases what Lock has locked, and detaches the disks.
func (d *Disks) Unlock() error {
	d.Detach()
	return d.lock.Release()
}

// Follow has sessions begin where a lease says, with its token.
func (d *Disks) Follow(lease *controller.Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease = lease
}

// carrier returns where a session is to begin now, and a channel that is closed when that may be elsewhere.
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

// known returns an error if a lease does not say where a session begins, and with which token.
func known(carrier session.Carrier) error {
	switch {
	case carrier.To.Address == "":
		return ErrNowhere
	case carrier.Token == 0:
		return storage.ErrNoToken
	}
	return nil
}

// begin begins a session of QEMU.
func (d *Disks) begin(ctx context.Context) (net.Conn, error) {
	carrier, _ := d.carrier()
	if err := known(carrier); err != nil {
		return nil, err
	}
	conn, err := carrier.Begin(ctx)
	if err == nil {
		d.note(nil)
		d.options.Log.Info("the disks are attached", "server", carrier.To.Pod, "token", carrier.Token)
	}
	return conn, err
}

func (d *Disks) refused(err error) {
	d.note(err)
	d.options.Log.Warn("the disks cannot be attached", "error", err)
}

func (d *Disks) note(refusal error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusal = refusal
}

// Explain adds to a message why the disks cannot be attached, if that is so.
func (d *Disks) Explain(message string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refusal == nil {
		return message
	}
	return fmt.Sprintf("%s Attaching the disks: %v.", message, d.refusal)
}

// Somewhere reports whether it is known where a session begins, and with which token. Nil disks are not served: they are where
// they were.
func (d *Disks) Somewhere() bool {
	if d == nil {
		return true
	}
	carrier, _ := d.carrier()
	return known(carrier) == nil
}

// Shared reports that both sides of a migration have the disks: none is copied.
func (d *Disks) Shared() bool { return true }

// Expect returns an error if a disk would be copied here. The disks were found by Await.
func (d *Disks) Expect(sizes []*vmpb.DiskSize) error {
	if len(sizes) > 0 {
		return errors.New("there are sizes of disks that a server has")
	}
	return nil
}

// Await waits until the server has all disks, and says meanwhile what it waits for. It returns the context's cause otherwise.
func (d *Disks) Await(ctx context.Context, say func(string)) error {
	said := ""
	for {
		changed, err := d.Find(ctx)
		if err == nil {
			return nil
		}
		if reason := waitsFor(err); reason != said {
			said = reason
			say(reason)
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
		return "waiting for the server of the disks"
	case errors.Is(err, storage.ErrNoDisk):
		return fmt.Sprintf("the server of the disks lacks one: %v; trying again", err)
	}
	return fmt.Sprintf("the server of the disks cannot be used: %v; trying again", err)
}

// Find asks the server for the sizes of all disks. changed is closed when the server may be another one. Errors: ErrNowhere,
// storage.ErrNoToken, storage.ErrNoDisk, or those of a session.
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

// Attach gives the disks to the machine that is to be started, and serves its connections until Detach.
func (d *Disks) Attach(to *qemu.Disks) error {
	if d.end == nil {
		listener, err := service.ListenSocket(filepath.Join(d.options.Run, string(socket)))
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

// Sizes returns the sizes that the server had last when Find succeeded.
func (d *Disks) Sizes() ([]*vmpb.DiskSize, error) {
	var sizes []*vmpb.DiskSize
	for i, name := range d.names[:len(d.sizes)] {
		sizes = append(sizes, &vmpb.DiskSize{Name: name, Bytes: d.sizes[i]})
	}
	return sizes, nil
}
