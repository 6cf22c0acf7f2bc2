package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/agent"
	"github.com/millwright-dev/millwright/guest/console"
)

// portRetry is how long a port rests on whose other end nobody is.
const portRetry = 200 * time.Millisecond

// serveAgent answers on the agent's port for ever, if the machine has one.
func serveAgent(a *agent.Agent, out *console.Output) {
	path := findPort()
	if path == "" {
		out.Logf("agent: there is no port %s", agent.PortName)
		return
	}
	// A port can be opened once only, so it stays open.
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

// findPort looks for the port's device file by its name.
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

// port is a descriptor whose reads and writes block; the end of a stream says that the
// other side is not connected.
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
