package watchdog_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/child"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/watchdog"
)

// role is the environment variable that selects one of the programs of the tests.
const role = "WATCHDOG_TEST_ROLE"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "watchdog" {
		if err := watchdog.Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(role) == "parent" {
		parent()
		return
	}
	os.Exit(m.Run())
}

// parent has its own child and a lease of half a second.
func parent() {
	dog, err := watchdog.Start(exec.Command(os.Args[0], "watchdog"))
	if err != nil {
		panic(err)
	}
	guest, err := child.Start(exec.Command("sleep", "600"), syscall.SIGKILL)
	if err != nil {
		panic(err)
	}
	if err := dog.Until(watchdog.Now() + 500*time.Millisecond); err != nil {
		panic(err)
	}
	fmt.Println(guest.PID())
	select {}
}

// A stopped process is killed when its lease expires, together with its children.
func TestWatchdog_KillsStoppedProcess(t *testing.T) {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), role+"=parent")
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var guest int
	if _, err := fmt.Fscan(out, &guest); err != nil {
		t.Fatal(err)
	}
	if err := command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = command.Wait()
	if status := command.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("process state = %v", command.ProcessState)
	}
	for deadline := time.Now().Add(time.Minute); syscall.Kill(guest, 0) == nil; {
		if time.Now().After(deadline) {
			t.Fatal("its child is still running")
		}
	}
}

// A process that renews its lease is not killed and can stop its watchdog.
func TestWatchdog_RenewedLease(t *testing.T) {
	dog, err := watchdog.Start(exec.Command(os.Args[0], "watchdog"))
	if err != nil {
		t.Fatal(err)
	}
	first := watchdog.Now() + 300*time.Millisecond
	for _, until := range []time.Duration{0, time.Hour} {
		if err := dog.Until(first + until); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-dog.Lost():
		t.Error("the watchdog exited")
	case <-time.After(first + 200*time.Millisecond - watchdog.Now()):
	}
	dog.Close()
}

// The loss of a watchdog is detected.
func TestWatchdog_Lost(t *testing.T) {
	dog, err := watchdog.Start(exec.Command(os.Args[0], "watchdog"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(dog.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-dog.Lost()
	dog.Close()
}
