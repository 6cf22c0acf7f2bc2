package hypervisor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/arrival"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/departure"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

// diskMark is what a guest writes to the beginning of its disk when it boots for the first time. It identifies a
// disk that a guest has used.
const diskMark = "this disk has run"

// runState is QEMU's name for the state of a machine.
type runState = qemu.Status

const (
	prelaunch = qemu.Prelaunch
	running   = qemu.Running
	paused    = qemu.Paused
)

var errGone = errors.New("the machine has terminated")

// fakeMachines starts fake machines. The zero value is ready for use. The fields are read at each Start.
type fakeMachines struct {
	// IgnorePowerButton creates guests that ignore the power button.
	IgnorePowerButton bool
	// Stuck makes machines ignore Quit. They can only be killed.
	Stuck bool
	// Firmware is the path of the UEFI firmware. If empty, there is none.
	Firmware string
	// Refuse, if set, is called before each start with the number of earlier starts. Its error is the error of
	// Start.
	Refuse func(starts int) error
	// Continued, if set, is called when a guest was continued, before the machine responds.
	Continued func(context.Context)

	mu       sync.Mutex
	starts   int
	machines []*fakeMachine
}

// Accelerator implements hypervisor.Starter.
func (m *fakeMachines) Accelerator() (qemu.Accelerator, error) { return qemu.TCG, nil }

// UEFI implements hypervisor.Starter.
func (m *fakeMachines) UEFI() (*qemu.UEFI, error) {
	if m.Firmware == "" {
		return qemu.FindUEFI("/missing/OVMF.fd")
	}
	return qemu.FindUEFI(m.Firmware)
}

// Start implements hypervisor.Starter.
func (m *fakeMachines) Start(ctx context.Context, config qemu.Config) (hypervisor.Machine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	starts := m.starts
	m.starts++
	if m.Refuse != nil {
		if err := m.Refuse(starts); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	machine := newFakeMachine(config, m.IgnorePowerButton, m.Stuck)
	machine.continued = m.Continued
	m.machines = append(m.machines, machine)
	return machine, nil
}

// Started returns the machines in the order of their starts.
func (m *fakeMachines) Started() []*fakeMachine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*fakeMachine(nil), m.machines...)
}

// unmoved is a machine that cannot migrate.
type unmoved struct {
	leaves
	arrives
}

type (
	leaves  struct{ departure.Machine }
	arrives struct{ arrival.Machine }
)

// fakeMachine is a machine whose guest prints echoBanner at each boot and then echoes its input. It implements
// hypervisor.Machine.
type fakeMachine struct {
	unmoved
	// Config is the configuration with which the machine was started.
	Config qemu.Config

	ignoresButton bool
	misses        int // how many presses of the power button the guest misses
	stuck         bool
	// continued, if set, is called when the guest was continued.
	continued func(context.Context)
	console   *console.Console
	port      net.Conn
	done      chan struct{}
	direct    *dialer.Direct

	mu      sync.Mutex
	awake   *sync.Cond // signaled when state changes
	state   runState
	failure *qemu.StorageFailure // the failure of the storage, if any
	resets  int
	buttons int
	stops   int
	closed  bool // whether the connection is closed
	exit    qemu.Exit
	changed chan struct{}
}

func newFakeMachine(config qemu.Config, ignoresButton, stuck bool) *fakeMachine {
	ours, port := net.Pipe()
	m := &fakeMachine{
		Config: config, ignoresButton: ignoresButton, stuck: stuck, console: console.New(ours), port: port,
		done: make(chan struct{}), state: prelaunch, changed: make(chan struct{}, 1),
	}
	m.awake = sync.NewCond(&m.mu)
	go m.echo()
	return m
}

// echo runs the guest.
func (m *fakeMachine) echo() {
	buffer := make([]byte, 4096)
	for {
		n, err := m.port.Read(buffer)
		if err != nil || !m.awaitRunning() {
			return
		}
		m.Print(string(buffer[:n]))
	}
}

// awaitRunning waits until the guest runs. It returns false if the guest never will.
func (m *fakeMachine) awaitRunning() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.state != running && !m.over() {
		m.awake.Wait()
	}
	return !m.over()
}

// over reports whether the machine has terminated. The caller must hold the lock.
func (m *fakeMachine) over() bool { return m.exit != qemu.Exit{} }

// Print writes output of the guest.
func (m *fakeMachine) Print(text string) { _, _ = m.port.Write([]byte(text)) }

// Status returns the state of the machine.
func (m *fakeMachine) Status() runState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// State implements hypervisor.Machine.
func (m *fakeMachine) State(ctx context.Context) (qemu.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return qemu.State{}, context.Cause(ctx)
	}
	if m.over() {
		return qemu.State{}, errGone
	}
	if m.closed {
		return qemu.State{}, qmp.ErrDisconnected
	}
	state := qemu.State{Status: m.state}
	if m.state == qemu.StorageFailed && m.failure != nil {
		state.Failure = *m.failure
	}
	return state, nil
}

// Grow implements hypervisor.Machine.
func (m *fakeMachine) Grow(_ context.Context, serial string, bytes uint64) error {
	path := m.Config.Disks.Root.Path
	for _, data := range m.Config.Disks.Data {
		if data.Serial == serial {
			path = data.Path
		}
	}
	return os.Truncate(path, int64(bytes))
}

// Activate implements hypervisor.Machine.
func (m *fakeMachine) Activate(context.Context) error { return nil }

// Changed implements hypervisor.Machine.
func (m *fakeMachine) Changed() <-chan struct{} { return m.changed }

// Become changes the state, like QEMU itself or another client of QEMU.
func (m *fakeMachine) Become(state runState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.become(state)
}

// become changes the state. The caller must hold the lock.
func (m *fakeMachine) become(state runState) {
	m.state = state
	m.awake.Broadcast()
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Disconnect closes QEMU's connection, as QEMU does when it exits.
func (m *fakeMachine) Disconnect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.become(m.state)
}

// FailStorage stops the guest, immediately and whenever it is continued. If failure is nil, the storage works
// again.
func (m *fakeMachine) FailStorage(failure *qemu.StorageFailure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = failure
	if failure != nil {
		m.become(qemu.StorageFailed)
	}
}

func (m *fakeMachine) failAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil && m.state == running {
		m.become(qemu.StorageFailed)
	}
}

// Resets returns the number of resets.
func (m *fakeMachine) Resets() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resets
}

// Stops returns how often the machine was ordered to stop the guest.
func (m *fakeMachine) Stops() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stops
}

// Buttons returns how often the power button was pressed.
func (m *fakeMachine) Buttons() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buttons
}

// ShutDown makes the guest power itself off.
func (m *fakeMachine) ShutDown() { m.end(qemu.Exit{Reason: qemu.GuestShutdown}) }

// Crash makes QEMU fail with the given output.
func (m *fakeMachine) Crash(stderr string) {
	m.end(qemu.Exit{Reason: qemu.Crashed, Code: 1, Stderr: stderr})
}

func (m *fakeMachine) end(exit qemu.Exit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over() {
		return
	}
	m.exit = exit
	m.awake.Broadcast()
	_ = m.port.Close()
	close(m.done)
}

// change applies a change, unless the machine has terminated.
func (m *fakeMachine) change(apply func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over() {
		return errGone
	}
	apply()
	return nil
}

// Cont implements hypervisor.Machine. The first call boots the guest.
func (m *fakeMachine) Cont(ctx context.Context) error {
	if m.continued != nil {
		defer m.continued(ctx)
	}
	var boots bool
	err := m.change(func() {
		boots = m.state == prelaunch
		if m.become(running); m.failure != nil {
			// The guest retries and fails after a while.
			time.AfterFunc(10*time.Millisecond, m.failAgain)
		}
	})
	if err != nil || !boots {
		return err
	}
	if err := m.markDisk(); err != nil {
		return err
	}
	m.Print(echoBanner)
	return nil
}

func (m *fakeMachine) markDisk() error {
	if m.Config.Disks.Root.Served != (qemu.Served{}) {
		return nil // not a client of NBD
	}
	file, err := os.OpenFile(m.Config.Disks.Root.Path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("marking the disk: %w", err)
	}
	_, err = file.WriteAt([]byte(diskMark), 0)
	return errors.Join(err, file.Close())
}

// Stop implements hypervisor.Machine.
func (m *fakeMachine) Stop(context.Context) error {
	return m.change(func() {
		m.stops++
		if m.state == running {
			m.become(paused)
		}
	})
}

// Reset implements hypervisor.Machine.
func (m *fakeMachine) Reset(context.Context) error {
	var boots bool
	err := m.change(func() {
		m.resets++
		if boots = m.state == running; !boots {
			m.become(prelaunch) // as QEMU does
		}
	})
	if err == nil && boots {
		m.Print(echoBanner)
	}
	return err
}

// Boots makes the guest miss the next presses of the power button.
func (m *fakeMachine) Boots(misses int) { _ = m.change(func() { m.misses = misses }) }

// Powerdown implements hypervisor.Machine. Only a guest that runs, has booted and does not ignore the button reacts.
func (m *fakeMachine) Powerdown(context.Context) error {
	var obeys bool
	err := m.change(func() { m.buttons++; obeys = m.state == running && !m.ignoresButton && m.buttons > m.misses })
	if err == nil && obeys {
		m.ShutDown()
	}
	return err
}

// Quit implements hypervisor.Machine.
func (m *fakeMachine) Quit(ctx context.Context) error {
	if m.stuck {
		select {
		case <-m.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	m.end(qemu.Exit{Reason: qemu.HostQuit})
	return nil
}

// Kill implements hypervisor.Machine.
func (m *fakeMachine) Kill(context.Context) error {
	m.end(qemu.Exit{Reason: qemu.HostKilled, Code: -1, Signal: syscall.SIGKILL})
	return nil
}

// Console implements hypervisor.Machine.
func (m *fakeMachine) Console() *console.Console { return m.console }

// Direct implements hypervisor.Machine.
func (m *fakeMachine) Direct() *dialer.Direct { return m.direct }

// DialGuest implements hypervisor.Machine. The guest has no network.
func (m *fakeMachine) DialGuest(context.Context, uint16) (dialer.Conn, error) {
	return nil, qemu.ErrNoNetwork
}

// DialGuestUDP implements hypervisor.Machine. The guest has no network.
func (m *fakeMachine) DialGuestUDP(uint16, func([]byte)) (dialer.Flow, error) {
	return nil, qemu.ErrNoNetwork
}

// DialDisplay implements hypervisor.Machine. The guest has no display.
func (m *fakeMachine) DialDisplay(context.Context) (net.Conn, error) { return nil, qemu.ErrNoDisplay }

// Screenshot implements hypervisor.Machine. The guest has no display.
func (m *fakeMachine) Screenshot(context.Context, io.Writer) error { return qemu.ErrNoDisplay }

// Done implements hypervisor.Machine.
func (m *fakeMachine) Done() <-chan struct{} { return m.done }

// Exit implements hypervisor.Machine.
func (m *fakeMachine) Exit() qemu.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exit
}
