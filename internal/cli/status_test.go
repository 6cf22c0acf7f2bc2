package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/local/process"
	"github.com/millwright-dev/millwright/test/support/env"
)

// printed runs a command that must succeed, and returns its output.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if status := Main(Program{Version: "v1.2.3", Args: args, Stdout: &stdout, Stderr: &stderr}); status != 0 {
		t.Fatalf("%v: status %d, %s", args, status, &stderr)
	}
	return stdout.String()
}

// stoppedDir creates a directory of an "up" that is no longer running.
func stoppedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "lock"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestStatus_AfterUpWasKilled checks that "status" reports the processes that a killed "up" left running and
// how to stop them, and that "down" stops them.
func TestStatus_AfterUpWasKilled(t *testing.T) {
	dir := stoppedDir(t)
	for _, uid := range []string{"first", "second"} {
		pod := filepath.Join(dir, "hosts", "host-1", "pods", uid)
		if err := os.MkdirAll(pod, 0o700); err != nil {
			t.Fatal(err)
		}
		left, err := process.Start(filepath.Join(pod, "process.json"), process.Command{Path: "/bin/sleep", Args: []string{"600"}, Log: filepath.Join(pod, "log")}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { left.Kill(); <-left.Ended() })
	}
	for range 2 { // "status" changes nothing
		message := printed(t, "status", "--dir", dir)
		if strings.Contains(message, "No cluster runs") || !strings.Contains(message, "2 virtual machines") || !strings.Contains(message, "millwright down --dir "+dir) {
			t.Errorf("says:\n%s", message)
		}
	}
	if message := printed(t, "down", "--dir", dir); !strings.Contains(message, "Stopped 2 virtual machines of an earlier") {
		t.Errorf("down printed:\n%s", message)
	}
	if message := printed(t, "status", "--dir", dir); !strings.Contains(message, "No cluster runs") {
		t.Errorf("afterwards, status printed:\n%s", message)
	}
}

// TestList_LocalClusterIsStopped checks that if the kubeconfig belongs to a stopped local cluster, the error reports
// that the cluster is stopped instead of the failed connection.
func TestList_LocalClusterIsStopped(t *testing.T) {
	dir := stoppedDir(t)
	path := env.Kubeconfig(t, "https://127.0.0.1:1")
	if err := os.Rename(path, filepath.Join(dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	list := func() string {
		var stdout, stderr bytes.Buffer
		if status := Main(Program{Args: []string{"vm", "list", "--kubeconfig", filepath.Join(dir, "kubeconfig")}, Stdout: &stdout, Stderr: &stderr}); status != 1 {
			t.Errorf("status %d", status)
		}
		return stderr.String()
	}
	want := "millwright: no cluster runs in " + dir + "; start it with: millwright up --dir " + dir + "\n"
	if message := list(); message != want {
		t.Errorf("got %q, want %q", message, want)
	}
	// The directory is locked, so the connection failed for another reason.
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if message := list(); strings.Contains(message, "no cluster runs") || !strings.Contains(message, "127.0.0.1:1") {
		t.Errorf("got %q for a directory in use", message)
	}
}
