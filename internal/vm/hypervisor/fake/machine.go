package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
)

const (
	// Banner is what a guest prints when it boots.
	Banner = "ready\n"
	// Mark is what a guest writes to the beginning of its disk when it boots first:
	// a disk that has run is known by it.
	Mark = "this disk has run"
)

// ErrGone is what a machine answers when it has ended.
var ErrGone = errors.New("the machine is gone")

// Machines starts fake machines. The zero value is ready for use; the fields are read
// at each Start.
type Machines struct {
	// Deaf makes guests that do not notice the power button.
	Deaf bool
	// Stuck makes machines that do not quit; they can only be killed.
	Stuck bool
	// Refuse, if set, is asked before each start, with the number of starts before it;
	// its error is that of Start.
	Refuse func(starts int) error

	mu       sync.Mutex
	starts   int
	machines []*Machine
}

// Start implements hypervisor.Starter.
func (m *Machines) Start(ctx context.Context, config qemu.Config) (hypervisor.Machine, error) {
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
	machine := newMachine(config, m.Deaf, m.Stuck)
	m.machines = append(m.machines, machine)
	return machine, nil
}

// Started returns the machines so far, the first one first.
func (m *Machines) Started() []*Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*Machine(nil), m.machines...)
}

// Machine is a machine whose guest prints Banner at each boot and then sends back what
// it gets. It is a hypervisor.Machine.
type Machine struct {
	// Config is what it was started with.
	Config qemu.Config

	deaf    bool
	stuck   bool
	console *qemu.Console
	port    net.Conn
	done    chan struct{}

	mu      sync.Mutex
	awake   *sync.Cond // on state
	state   qemu.RunState
	resets  int
	buttons int
	exit    qemu.Exit
}

func newMachine(config qemu.Config, deaf, stuck bool) *Machine {
	ours, port := net.Pipe()
	m := &Machine{
		Config: config, deaf: deaf, stuck: stuck, console: qemu.NewConsole(ours), port: port,
		done: make(chan struct{}), state: qemu.Prelaunch,
	}
	m.awake = sync.NewCond(&m.mu)
	go m.echo()
	return m
}

// echo is the guest.
func (m *Machine) echo() {
	buffer := make([]byte, 4096)
	for {
		n, err := m.port.Read(buffer)
		if err != nil || !m.awaitRunning() {
			return
		}
		m.Print(string(buffer[:n]))
	}
}

// awaitRunning waits until the guest runs; false is never again.
func (m *Machine) awaitRunning() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.state != qemu.Running && !m.over() {
		m.awake.Wait()
	}
	return !m.over()
}

// over reports whether the machine has ended. The caller holds the lock.
func (m *Machine) over() bool { return m.exit != qemu.Exit{} }

// Print is output of the guest.
func (m *Machine) Print(text string) { _, _ = m.port.Write([]byte(text)) }

// State is what the machine does.
func (m *Machine) State() qemu.RunState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Resets says how often the machine was reset.
func (m *Machine) Resets() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resets
}

// Buttons says how often the power button was pressed.
func (m *Machine) Buttons() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buttons
}

// ShutDown is the guest powering itself off.
func (m *Machine) ShutDown() { m.end(qemu.Exit{Reason: qemu.GuestShutdown}) }

// Crash is QEMU failing, with these words.
func (m *Machine) Crash(words string) {
	m.end(qemu.Exit{Reason: qemu.Crashed, Code: 1, Stderr: words})
}

func (m *Machine) end(exit qemu.Exit) {
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

// change makes a transition of a machine that is there.
func (m *Machine) change(apply func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over() {
		return ErrGone
	}
	apply()
	return nil
}

// Cont implements hypervisor.Machine. The first time it boots the guest.
func (m *Machine) Cont(context.Context) error {
	var boots bool
	err := m.change(func() {
		boots = m.state == qemu.Prelaunch
		m.state = qemu.Running
		m.awake.Broadcast()
	})
	if err != nil || !boots {
		return err
	}
	if err := m.markDisk(); err != nil {
		return err
	}
	m.Print(Banner)
	return nil
}

func (m *Machine) markDisk() error {
	file, err := os.OpenFile(m.Config.Disks.Root.Path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("marking the disk: %w", err)
	}
	_, err = file.WriteAt([]byte(Mark), 0)
	return errors.Join(err, file.Close())
}

// Stop implements hypervisor.Machine.
func (m *Machine) Stop(context.Context) error {
	return m.change(func() {
		if m.state == qemu.Running {
			m.state = qemu.Paused
		}
	})
}

// Reset implements hypervisor.Machine.
func (m *Machine) Reset(context.Context) error {
	var boots bool
	err := m.change(func() { m.resets++; boots = m.state == qemu.Running })
	if err == nil && boots {
		m.Print(Banner)
	}
	return err
}

// Powerdown implements hypervisor.Machine. Only a guest that runs and is not deaf
// obeys.
func (m *Machine) Powerdown(context.Context) error {
	var obeys bool
	err := m.change(func() { m.buttons++; obeys = m.state == qemu.Running && !m.deaf })
	if err == nil && obeys {
		m.ShutDown()
	}
	return err
}

// Quit implements hypervisor.Machine.
func (m *Machine) Quit(ctx context.Context) error {
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
func (m *Machine) Kill(context.Context) error {
	m.end(qemu.Exit{Reason: qemu.HostKilled, Code: -1, Signal: syscall.SIGKILL})
	return nil
}

// Console implements hypervisor.Machine.
func (m *Machine) Console() *qemu.Console { return m.console }

// Done implements hypervisor.Machine.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Exit implements hypervisor.Machine.
func (m *Machine) Exit() qemu.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exit
}
