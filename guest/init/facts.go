package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// text is a string that one goroutine sets and others read.
type text struct{ value atomic.Pointer[string] }

func (t *text) set(value string) { t.value.Store(&value) }

// get returns what was set last, "none" if nothing was.
func (t *text) get() string {
	if value := t.value.Load(); value != nil {
		return orNone(*value)
	}
	return orNone("")
}

// status is the answer to the console's command.
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

// readLine returns the content of a small file of the kernel, "" if it cannot be read.
func readLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func bootID() string { return readLine("/proc/sys/kernel/random/boot_id") }

// systemUUID is that of SMBIOS, in lower case.
func systemUUID() string { return strings.ToLower(readLine("/sys/class/dmi/id/product_uuid")) }

// machineID is what systemd would make of the UUID; without one, it is new at each boot.
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
