package hypervisor_test

import (
	"context"
	"errors"
	"fmt"
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
)

// diskMark is what a guest writes to the beginning of its disk at its first boot. It identifies a disk that a guest
// has used.
const diskMark = "this disk has run"

// runState is QEMU's name for the state of a machine.
type runState = qemu.Status

const (
	prelaunch = qemu.Prelaunch
	running   = qemu.Running
	paused    = qemu.Paused
)

var errGone = errors.New("the machine is gone")

// fakeMachines starts fake machines. The zero value is ready for use; the fields are read at each Start.
type fakeMachines struct {
	// Deaf makes guests that do not notice the power button.
	Deaf bool
	// Stuck makes machines ignore Quit; they can only be killed.
	Stuck bool
	// Refuse, if set, is called before each start with the number of earlier starts; its error is the error of Start.
	Refuse func(starts int) error
	// Continued, if set, is called when a guest was continued, before the machine responds.
	Continued func(context.Context)

	mu       sync.Mutex
	starts   int
	machines []*fakeMachine
}

// Accelerator implements hypervisor.Starter.
func (m *fakeMachines) Accelerator() (qemu.Accelerator, error) { return qemu.TCG, nil }

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
	machine := newFakeMachine(config, m.Deaf, m.Stuck)
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

// fakeMachine is a machine whose guest prints echoBanner at each boot and then echoes its input. It is a
// hypervisor.Machine.
type fakeMachine struct {
	unmoved
	// Config is the configuration that it was started with.
	Config qemu.Config

	deaf   bool
	misses int // presses of the power button
	stuck  bool
	// continued, if set, is called when the guest was continued.
	continued func(context.Context)
	console   *console.Console
	port      net.Conn
	done      chan struct{}

	mu      sync.Mutex
	awake   *sync.Cond // on state
	state   runState
	failure *qemu.StorageFailure // of the storage, while there is one
	resets  int
	buttons int
	stops   int
	closed  bool // the connection is
	exit    qemu.Exit
	changed chan struct{}
}

func newFakeMachine(config qemu.Config, deaf, stuck bool) *fakeMachine {
	ours, port := net.Pipe()
	m := &fakeMachine{
		Config: config, deaf: deaf, stuck: stuck, console: console.New(ours), port: port,
		done: make(chan struct{}), state: prelaunch, changed: make(chan struct{}, 1),
	}
	m.awake = sync.NewCond(&m.mu)
	go m.echo()
	return m
}

// echo is the guest.
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

// awaitRunning waits until the guest runs; false means that it never will.
func (m *fakeMachine) awaitRunning() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.state != running && !m.over() {
		m.awake.Wait()
	}
	return !m.over()
}

// over reports whether the machine has terminated. The caller holds the lock.
func (m *fakeMachine) over() bool { return m.exit != qemu.Exit{} }

// Print is output of the guest.
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

// Become is a change by QEMU itself, or by someone else's command.
func (m *fakeMachine) Become(state runState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.become(state)
}

// become changes the state. The caller holds the lock.
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

// FailStorage stops the guest, immediately and whenever it is continued; nil ends that.
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

// Resets returns how often the machine was reset.
func (m *fakeMachine) Resets() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resets
}

// Stops returns how often it was told to stop the guest.
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

// Crash makes QEMU fail with this output.
func (m *fakeMachine) Crash(words string) {
	m.end(qemu.Exit{Reason: qemu.Crashed, Code: 1, Stderr: words})
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

// change makes a transition of a machine that has not terminated.
func (m *fakeMachine) change(apply func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over() {
		return errGone
	}
	apply()
	return nil
}

// Cont implements hypervisor.Machine. The first time it boots the guest.
func (m *fakeMachine) Cont(ctx context.Context) error {
	if m.continued != nil {
		defer m.continued(ctx)
	}
	var boots bool
	err := m.change(func() {
		boots = m.state == prelaunch
		if m.become(running); m.failure != nil {
			// The guest retries, and fails after a while.
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
		return nil // it is no client of NBD
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

// Powerdown implements hypervisor.Machine. Only a guest that runs, is not deaf and has booted obeys.
func (m *fakeMachine) Powerdown(context.Context) error {
	var obeys bool
	err := m.change(func() { m.buttons++; obeys = m.state == running && !m.deaf && m.buttons > m.misses })
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

// Done implements hypervisor.Machine.
func (m *fakeMachine) Done() <-chan struct{} { return m.done }

// Exit implements hypervisor.Machine.
func (m *fakeMachine) Exit() qemu.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exit
}
