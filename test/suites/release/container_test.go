package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// container is the part of a container runtime's configuration that matters to the manager. The container has no
// seccomp profile, and uses the host's network.
type container struct {
	// Root is the directory with the unpacked image. It is mounted read-only.
	Root string
	// Mounts maps mount points to other directories, which are also mounted read-only.
	Mounts map[string]string
	// UID and GID are those of the process, which has no capabilities.
	UID, GID int
	// Args begin with the program. The program is not looked up in Env.
	Args, Env []string
}

// asContainer is an environment variable. It makes a test binary run as the container that it describes.
const asContainer = "MILLWRIGHT_TEST_AS_CONTAINER"

// command returns the command of the container. Its process is the first of its PID namespace, so signals that it
// does not handle have no effect. It is killed when the test exits.
func (c *container) command(t *testing.T) *exec.Cmd {
	t.Helper()
	for at := range c.Mounts {
		if err := os.MkdirAll(filepath.Join(c.Root, at), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(c.Root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	description, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(context.Background(), os.Args[0])
	command.Env = []string{asContainer + "=" + string(description)}
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	return command
}

// enterContainer does not return if this process is that of a container.
func enterContainer() {
	description, is := os.LookupEnv(asContainer)
	if !is {
		return
	}
	runtime.LockOSThread() // some of the following applies to a single thread
	c := &container{}
	err := json.Unmarshal([]byte(description), c)
	for _, step := range []func() error{c.mount, c.changeRoot, c.dropPrivileges, c.execute} {
		if err == nil {
			err = step()
		}
	}
	fmt.Fprintln(os.Stderr, "entering the container:", err)
	os.Exit(1)
}

// mount sets up the container's file system in its own mount namespace.
func (c *container) mount() error {
	const none = ""
	if err := unix.Mount(none, "/", none, unix.MS_REC|unix.MS_PRIVATE, none); err != nil {
		return fmt.Errorf("keeping mounts apart: %w", err)
	}
	if err := bind(c.Root, c.Root); err != nil {
		return err
	}
	for at, from := range c.Mounts {
		at = filepath.Join(c.Root, at)
		if err := bind(from, at); err != nil {
			return err
		}
		if err := protect(at); err != nil {
			return err
		}
	}
	if err := unix.Mount("proc", filepath.Join(c.Root, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, none); err != nil {
		return fmt.Errorf("mounting proc: %w", err)
	}
	return protect(c.Root)
}

func bind(from, at string) error {
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", from, at, err)
	}
	return nil
}

// protect makes a mount read-only.
func protect(at string) error {
	if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", at, err)
	}
	return nil
}

func (c *container) changeRoot() error {
	if err := unix.Chroot(c.Root); err != nil {
		return fmt.Errorf("changing the root to %s: %w", c.Root, err)
	}
	return unix.Chdir("/")
}

// dropPrivileges drops all privileges that the security context of the Pod drops.
func (c *container) dropPrivileges() error {
	for capability := range uintptr(unix.CAP_LAST_CAP + 1) {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) { // unknown to this kernel
			return fmt.Errorf("dropping capability %d: %w", capability, err)
		}
	}
	if err := syscall.Setgroups([]int{}); err != nil {
		return fmt.Errorf("leaving groups: %w", err)
	}
	if err := syscall.Setgid(c.GID); err != nil {
		return fmt.Errorf("changing the group: %w", err)
	}
	if err := syscall.Setuid(c.UID); err != nil {
		return fmt.Errorf("changing the user: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up new privileges: %w", err)
	}
	// The change of the user has reset this.
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

func (c *container) execute() error { return unix.Exec(c.Args[0], c.Args, c.Env) }

// needsRoot skips a test that cannot start containers.
func needsRoot(t *testing.T) {
	t.Helper()
	const takes = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SETPCAP
	var has uint64
	effective := processStatus(t, os.Getpid())["CapEff"]
	if _, err := fmt.Sscanf(effective, "%x", &has); err != nil {
		t.Fatalf("capabilities %q: %v", effective, err)
	}
	if has&takes != takes {
		t.Skipf("a container requires root privileges: CapEff of this process is %s (/proc/self/status), and lacks some of %016x", effective, takes)
	}
}

// isConfined checks that a process has exactly the privileges of the container.
func (c *container) isConfined(t *testing.T, pid int) {
	t.Helper()
	status := processStatus(t, pid)
	four := func(id int) string { return strings.TrimSuffix(strings.Repeat(fmt.Sprint(id, "\t"), 4), "\t") }
	for key, want := range map[string]string{
		"Uid": four(c.UID), "Gid": four(c.GID), "Groups": "", "NoNewPrivs": "1",
		"CapInh": noCapabilities, "CapPrm": noCapabilities, "CapEff": noCapabilities, "CapBnd": noCapabilities, "CapAmb": noCapabilities,
	} {
		if got, ok := status[key]; !ok || got != want {
			t.Errorf("the manager's %s is %q, want %q", key, got, want)
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		at, options := fields[4], strings.Split(fields[5], ",")
		seen[at] = true
		if at != "/proc" && options[0] != "ro" {
			t.Errorf("the manager sees %s as %v", at, options)
		}
	}
	for at := range c.Mounts {
		if !seen[at] {
			t.Errorf("the manager does not see %s", at)
		}
	}
}

const noCapabilities = "0000000000000000"

// processStatus reads a process's status from /proc.
func processStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.TrimSpace(value)
	}
	return status
}
