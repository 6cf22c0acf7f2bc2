package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/console"
)

// flushLimit bounds how long the last words may take.
const flushLimit = 50 * time.Millisecond

// machine is what can be done to the machine as a whole.
type machine struct{ out *console.Output }

func (m *machine) powerOff() { m.end("powering off", unix.LINUX_REBOOT_CMD_POWER_OFF) }

func (m *machine) reboot() { m.end("rebooting", unix.LINUX_REBOOT_CMD_RESTART) }

func (m *machine) end(words string, command int) {
	m.out.Logf("power: %s", words)
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

// The form of the kernel's input events on 64 bit machines: a time of 16 bytes, type,
// code and value; see linux/input.h.
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

// pressed reports whether the power button's press is among the events.
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
