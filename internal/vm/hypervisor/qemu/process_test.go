package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestGuest_BootsAndPowersOff(t *testing.T) {
	p, console := boot(t, echo, echoBanner)
	must(t, console.Write(bounded(t), []byte(powerOffKey)))
	<-p.Done()
	if exit := p.Exit(); exit.Reason != GuestShutdown || exit.Code != 0 {
		t.Errorf("exit = %s, want %s", exit, GuestShutdown)
	}
	if err := p.Quit(bounded(t)); err != nil {
		t.Errorf("quit after the exit: %v", err)
	}
}

func TestGuest_HandlesPowerdown(t *testing.T) {
	tier.All(t)
	p, _ := boot(t, echo, echoBanner)
	must(t, p.Powerdown(bounded(t)))
	<-p.Done()
	if exit := p.Exit(); exit.Reason != GuestShutdown {
		t.Errorf("exit = %s, want %s", exit, GuestShutdown)
	}
}

func TestGuest_IsStoppedUntilCont(t *testing.T) {
	tier.All(t)
	p := start(t, machine(t, counter))
	for _, step := range []struct {
		action func(context.Context) error
		want   string
	}{
		{func(context.Context) error { return nil }, "prelaunch"},
		{p.Cont, "running"},
		{p.Stop, "paused"},
		{p.Cont, "running"},
	} {
		must(t, step.action(bounded(t)))
		if state := runState(t, p); state != step.want {
			t.Errorf("state = %q, want %q", state, step.want)
		}
	}
}

func TestGuest_ContinuesAfterStop(t *testing.T) {
	tier.All(t)
	p, console := boot(t, counter, counterBanner)
	_, before := console.numbers(10)
	must(t, p.Stop(bounded(t)))
	must(t, p.Cont(bounded(t)))
	if first, _ := console.numbers(1000); first != before+1 {
		t.Errorf("continues with %d after %d", first, before)
	}
}

func TestReset_KeepsProcessAndConsole(t *testing.T) {
	tier.All(t)
	p, console := boot(t, counter, counterBanner)
	pid := p.PID()
	for range 2 {
		console.numbers(10)
		must(t, p.Reset(bounded(t)))
		console.until(counterBanner)
		if first, _ := console.numbers(10); first != 0 {
			t.Errorf("the counter starts at %d after the reset, want 0", first)
		}
	}
	if state := runState(t, p); state != "running" || p.PID() != pid {
		t.Errorf("state = %q; PID %d, was %d", state, p.PID(), pid)
	}
}

func TestStart_SecondMachineOnDiskIsRejected(t *testing.T) {
	tier.All(t)
	config := machine(t, counter)
	first := start(t, config)
	_, err := Start(bounded(t), requireQEMU(t), config)
	if !errors.Is(err, ErrDiskLocked) {
		t.Fatalf("error = %v, want ErrDiskLocked", err)
	}
	var refusal *StartError
	if !errors.As(err, &refusal) || refusal.Exit.Code != 1 {
		t.Errorf("error = %#v, want a *StartError with exit code 1", err)
	}
	must(t, first.Kill(bounded(t)))
	start(t, config) // fails if the disk is still locked
}

func TestKill_ReapsProcess(t *testing.T) {
	tier.All(t)
	p, port := boot(t, counter, counterBanner)
	alive := watchPID(t, p.PID())
	must(t, p.Kill(bounded(t)))
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("process %d is still listed: %v", p.PID(), err)
	}
	alive.awaitEnd()
	if exit := p.Exit(); exit.Reason != HostKilled || exit.Signal != syscall.SIGKILL || exit.Code != -1 {
		t.Errorf("exit = %s, want %s", exit, HostKilled)
	}
	if err := p.Cont(bounded(t)); !errors.Is(err, qmp.ErrDisconnected) {
		t.Errorf("cont of a terminated machine = %v, want ErrDisconnected", err)
	}
	if n, err := p.Agent().Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from the agent's port, want EOF", n)
	}
	if err := port.Write(bounded(t), []byte("x")); !errors.Is(err, console.ErrEnded) {
		t.Errorf("writing to its console = %v, want ErrEnded", err)
	}
}

func TestQuit(t *testing.T) {
	tier.All(t)
	p, _ := boot(t, counter, counterBanner)
	must(t, p.Quit(bounded(t)))
	if exit := p.Exit(); exit.Reason != HostQuit || exit.Code != 0 {
		t.Errorf("exit = %s, want %s", exit, HostQuit)
	}
}

func TestExit_ExternalTerminationIsReported(t *testing.T) {
	tier.All(t)
	for name, test := range map[string]struct {
		signal syscall.Signal
		want   ExitReason
	}{
		"killed":         {syscall.SIGKILL, Crashed},
		"terminated":     {syscall.SIGTERM, HostSignal},
		"like a crash":   {syscall.SIGSEGV, Crashed},
		"as by a limit":  {syscall.SIGXCPU, Crashed},
		"as by a Ctrl-C": {syscall.SIGINT, HostSignal},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, machine(t, counter))
			if exit := p.Exit(); exit != (Exit{}) {
				t.Errorf("exit of a running machine = %s", exit)
			}
			must(t, syscall.Kill(p.PID(), test.signal))
			<-p.Done()
			if exit := p.Exit(); exit.Reason != test.want {
				t.Errorf("exit = %s, want %s", exit, test.want)
			}
		})
	}
}

func TestStart_Fails(t *testing.T) {
	t.Run("no program", func(t *testing.T) {
		for _, program := range []string{"qemu-that-is-missing", filepath.Join(t.TempDir(), "qemu")} {
			if _, err := Start(bounded(t), program, machine(t, counter)); !errors.Is(err, ErrNotInstalled) {
				t.Errorf("%s: error = %v, want ErrNotInstalled", program, err)
			}
		}
	})
	t.Run("missing disk", func(t *testing.T) {
		config := machine(t, counter)
		must(t, os.Remove(config.Disks.Root.Path))
		_, err := Start(bounded(t), requireQEMU(t), config)
		var refusal *StartError
		if !errors.As(err, &refusal) || errors.Is(err, ErrDiskLocked) {
			t.Fatalf("error = %v, want a *StartError about another problem than a lock", err)
		}
		if !strings.Contains(refusal.Exit.Stderr, config.Disks.Root.Path) {
			t.Errorf("QEMU's message is missing: %q", refusal.Exit.Stderr)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		config := machine(t, counter)
		if _, err := Start(ctx, requireQEMU(t), config); !errors.Is(err, context.Canceled) {
			t.Fatalf("error = %v, want context.Canceled", err)
		}
		start(t, config) // no process holds the disk
	})
}

// The kernel kills QEMU when the thread that forked it terminates, not only when the process does.
func TestStart_MachineOutlivesCallersThread(t *testing.T) {
	tier.All(t)
	config := machine(t, counter)
	program := requireQEMU(t)
	var p *Process
	var err error
	onDyingThread(t, func() { p, err = Start(bounded(t), program, config) })
	must(t, err)
	defer func() { must(t, p.Kill(bounded(t))) }()
	console := attach(t, p)
	must(t, p.Cont(bounded(t)))
	console.until(counterBanner)
	console.numbers(1000)
}

// onDyingThread calls a function on its own thread and waits until the thread has terminated. The kernel then
// kills a process that was started on the thread.
func onDyingThread(t *testing.T, call func()) {
	canary := exec.Command("sleep", "1000")
	canary.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread terminates with the goroutine
		if unix.Gettid() == os.Getpid() {
			// The main thread never terminates. While this goroutine occupies it, another goroutine gets another
			// thread.
			defer runtime.UnlockOSThread()
			onDyingThread(t, call)
			started <- nil
			return
		}
		call()
		started <- canary.Start()
	}()
	must(t, <-started)
	if canary.Process != nil {
		_ = canary.Wait() // it was killed
	}
}

// watched is a process that need not be a child of the test.
type watched struct {
	t  *testing.T
	fd int
}

func watchPID(t *testing.T, pid int) watched {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return watched{t, fd}
}

func (w watched) awaitEnd() {
	w.t.Helper()
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	for deadline := time.Now().Add(waitTimeout); time.Now().Before(deadline); {
		n, err := unix.Poll(fds, int(time.Until(deadline).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		must(w.t, err)
		if n == 1 {
			return
		}
	}
	w.t.Fatal("the process does not terminate")
}
