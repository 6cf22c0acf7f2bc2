package main

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/agent"
	"github.com/millwright-dev/millwright/guest/console"
)

// portRetry is the pause before a port without another end is read again.
const portRetry = 200 * time.Millisecond

// serveAgent serves the agent's port, if the machine has one.
func serveAgent(a *agent.Agent, out *console.Output) {
	path := findPort()
	if path == "" {
		out.Logf("agent: there is no port %s", agent.PortName)
		return
	}
	// A port can be opened only once.
	number, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		out.Logf("agent: opening %s: %v", path, err)
		return
	}
	for {
		if err := a.Serve(port(number)); err != nil {
			out.Logf("agent: %v", err)
		}
		time.Sleep(portRetry)
	}
}

// findPort returns the port's device file, or "" if there is none.
func findPort() string {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return ""
	}
	for _, name := range names {
		if readLine(name) == agent.PortName {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(name)))
		}
	}
	return ""
}

// port is a descriptor whose reads and writes block. Read returns io.EOF while the other end is not connected.
type port int

func (p port) Read(b []byte) (int, error) {
	for {
		count, err := unix.Read(int(p), b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case count == 0:
			return 0, io.EOF
		}
		return count, nil
	}
}

func (p port) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		count, err := unix.Write(int(p), b[written:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return written, os.NewSyscallError("write", err)
		}
		written += count
	}
	return written, nil
}

// flushLimit is how long to wait for the last output.
const flushLimit = 50 * time.Millisecond

// machine powers off and reboots the machine.
type machine struct{ out *console.Output }

func (m *machine) powerOff() { m.end("powering off", unix.LINUX_REBOOT_CMD_POWER_OFF) }

func (m *machine) reboot() { m.end("rebooting", unix.LINUX_REBOOT_CMD_RESTART) }

func (m *machine) end(doing string, command int) {
	m.out.Logf("power: %s", doing)
	m.out.Flush(flushLimit)
	unix.Sync()
	if err := unix.Reboot(command); err != nil {
		m.out.Logf("power: %v", err)
	}
}

// panic crashes the kernel.
func (m *machine) panic() {
	m.out.Logf("power: crashing the kernel")
	m.out.Flush(flushLimit)
	if err := os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0); err != nil {
		m.out.Logf("power: %v", err)
	}
}

// The format of the kernel's input events on 64-bit machines: a time of 16 bytes, type, code and value; see
// linux/input.h.
const (
	eventSize  = 24
	typeAt     = 16
	codeAt     = 18
	valueAt    = 20
	typeKey    = 1
	codePower  = 116
	valueDown  = 1
	eventsRead = 16
)

// watchPowerButton powers off when the button is pressed.
func (m *machine) watchPowerButton() {
	inputs, err := filepath.Glob("/dev/input/event*")
	if err != nil || len(inputs) == 0 {
		m.out.Logf("power: there is no power button")
		return
	}
	for _, input := range inputs {
		go m.watchInput(input)
	}
}

func (m *machine) watchInput(path string) {
	file, err := os.Open(path)
	if err != nil {
		m.out.Logf("power: %v", err)
		return
	}
	defer func() { _ = file.Close() }()
	events := make([]byte, eventsRead*eventSize)
	for {
		length, err := file.Read(events)
		if err != nil {
			m.out.Logf("power: %v", err)
			return
		}
		if pressed(events[:length]) {
			m.out.Logf("power: the button was pressed")
			m.powerOff()
		}
	}
}

// pressed reports whether the events include a press of the power button.
func pressed(events []byte) bool {
	for ; len(events) >= eventSize; events = events[eventSize:] {
		if binary.NativeEndian.Uint16(events[typeAt:]) == typeKey &&
			binary.NativeEndian.Uint16(events[codeAt:]) == codePower &&
			binary.NativeEndian.Uint32(events[valueAt:]) == valueDown {
			return true
		}
	}
	return false
}
