package proc

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func start(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.Command(arguments[0], arguments[1:]...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill() // fails only if it has exited
		command.Wait()         // it was killed
	})
	return command
}

func TestStat(t *testing.T) {
	running := start(t, "sleep", "1000")
	stat, err := Stat(running.Process.Pid)
	if err != nil || stat.PID != running.Process.Pid || stat.PPID != os.Getpid() || stat.Starttime == 0 {
		t.Errorf("got %+v, %v", stat, err)
	}
	// The name is in parentheses in /proc/PID/stat, and may itself contain some.
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(t.TempDir(), "a) Z 9 (b")
	if err := os.Symlink(sleep, odd); err != nil {
		t.Fatal(err)
	}
	named := start(t, odd, "1000")
	if stat, err := Stat(named.Process.Pid); err != nil || stat.State == "Z" || stat.PPID != os.Getpid() {
		t.Errorf("a process with parentheses in its name: %+v, %v", stat, err)
	}
}

func TestStat_ProcessNotFound(t *testing.T) {
	zombie := start(t, "true") // its parent has not waited for it yet
	process, err := os.FindProcess(zombie.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := AwaitEnd(process); err != nil {
		t.Fatal(err)
	}
	if _, err := Stat(zombie.Process.Pid); !errors.Is(err, ErrNotFound) {
		t.Errorf("a zombie: %v", err)
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if _, err := Stat(pid); !errors.Is(err, ErrNotFound) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

func TestOpen(t *testing.T) {
	command := start(t, "sleep", "1000")
	process, err := Open(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- AwaitEnd(process) }()
	select {
	case err := <-ended:
		t.Errorf("a running process ended: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{<-ended, AwaitEnd(process)} {
		if err != nil {
			t.Errorf("a killed process: %v", err)
		}
	}
	command.Wait() // it was killed
	for _, pid := range []int{command.Process.Pid, 0, -1} {
		if _, err := Open(pid); !errors.Is(err, ErrNotFound) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

func TestListener(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp6"} {
		listener, err := net.Listen(network, "localhost:0")
		if err != nil {
			t.Logf("no %s: %v", network, err)
			continue
		}
		port := listener.Addr().(*net.TCPAddr).Port
		if got := Listener(port); got != os.Getpid() {
			t.Errorf("%s: process %d listens, want %d", network, got, os.Getpid())
		}
		client, err := net.Dial(network, listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		own := client.LocalAddr().(*net.TCPAddr).Port
		if got := Listener(own); got != 0 {
			t.Errorf("%s: process %d listens on the port of a connection", network, got)
		}
		client.Close()
		listener.Close()
		if got := Listener(port); got != 0 {
			t.Errorf("%s: process %d listens on a closed port", network, got)
		}
	}
}
