package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// rawTerminal turns off echo and line editing, which package console provides.
func rawTerminal(file *os.File) {
	terminal, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	if err != nil {
		return // not a terminal
	}
	terminal.Iflag &^= unix.ICRNL | unix.INLCR | unix.IGNCR | unix.IXON
	terminal.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	terminal.Cc[unix.VMIN], terminal.Cc[unix.VTIME] = 1, 0
	_ = unix.IoctlSetTermios(int(file.Fd()), unix.TCSETS, terminal)
}

// text is a string that several goroutines use.
type text struct{ value atomic.Pointer[string] }

func (t *text) set(value string) { t.value.Store(&value) }

// get returns "none" if the text is not set.
func (t *text) get() string {
	if value := t.value.Load(); value != nil {
		return orNone(*value)
	}
	return orNone("")
}

// status returns the output of the console's command "status".
func (g *guest) status() string {
	return fmt.Sprintf("VM %s, UUID %s, up %.0f s\nnetwork: %s\nnode: %s\nboot ID: %s\n",
		g.name.get(), orNone(systemUUID()), uptime().Seconds(), g.network.get(), g.node.get(), bootID())
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// readLine returns the content of a small file of the kernel, or "" if it cannot be read.
func readLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func bootID() string { return readLine("/proc/sys/kernel/random/boot_id") }

// systemUUID returns the UUID of SMBIOS, in lower case.
func systemUUID() string { return strings.ToLower(readLine("/sys/class/dmi/id/product_uuid")) }

// machineID returns systemd's machine ID for the UUID, or a new one for each boot.
func machineID(uuid string) string {
	if uuid == "" {
		uuid = bootID()
	}
	return strings.ReplaceAll(uuid, "-", "")
}

func processors() int { return runtime.NumCPU() }

func memoryKiB() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return info.Totalram * uint64(info.Unit) / 1024
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}
