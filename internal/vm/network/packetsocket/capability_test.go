package packetsocket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// envContainer makes this program the first process of a container. Its value is the set of capabilities of the container, as a
// number. envProgram is the path of the program that the container then executes.
const (
	envContainer = "MILLWRIGHT_TEST_CONTAINER"
	envProgram   = "MILLWRIGHT_TEST_PROGRAM"
)

func TestMain(m *testing.M) {
	switch capabilities, path := os.Getenv(envContainer), os.Getenv(envProgram); {
	case capabilities != "":
		fmt.Println(enter(capabilities, path))
		os.Exit(1)
	case path != "":
		_, err := Open("lo", Guest{MAC: guestMAC}, slog.New(slog.DiscardHandler))
		switch {
		case err == nil:
			fmt.Print("open")
		case errors.Is(err, ErrNotPermitted):
			fmt.Print("not permitted")
		default:
			fmt.Print(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// enter executes a program as container runtimes do: as a user other than root, with the given capabilities, and without new
// privileges.
func enter(capabilities, path string) error {
	runtime.LockOSThread()
	number, err := strconv.Atoi(capabilities)
	if err != nil {
		return err
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if number&(1<<c) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				return fmt.Errorf("dropping capability %d: %w", c, err)
			}
		}
	}
	const user = 65532
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return err
	}
	for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} { // of this thread only
		if _, _, number := unix.RawSyscall(call, user, user, user); number != 0 {
			return number
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: uint32(number), Permitted: uint32(number)}}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return syscall.Exec(path, []string{path}, []string{envProgram + "=" + path})
}

// TestOpen_InContainers checks that a program can open packet sockets only if both its container and its file have the
// capability, and that it starts in all containers.
func TestOpen_InContainers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing capabilities requires root")
	}
	dir, err := os.MkdirTemp("/var/tmp", "packetsocket-") // other users must have access
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	for name, test := range map[string]struct {
		container, file int
		want            string
	}{
		"container and file":         {1 << unix.CAP_NET_RAW, 1 << unix.CAP_NET_RAW, "open"},
		"container without the file": {1 << unix.CAP_NET_RAW, 0, "not permitted"},
		"file without the container": {0, 1 << unix.CAP_NET_RAW, "not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strconv.Itoa(test.container)+"-"+strconv.Itoa(test.file))
			program, err := os.ReadFile(os.Args[0])
			must(t, err)
			must(t, os.WriteFile(path, program, 0o755))
			if test.file != 0 {
				must(t, unix.Setxattr(path, "security.capability", fileCapabilities(uint32(test.file)), 0))
			}
			command := exec.Command(os.Args[0])
			command.Env = []string{envContainer + "=" + strconv.Itoa(test.container), envProgram + "=" + path}
			if got, err := command.CombinedOutput(); string(got) != test.want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// fileCapabilities returns the attribute for permitted capabilities, as the image of hypervisors has it.
func fileCapabilities(permitted uint32) []byte {
	const version2 = 0x02000000
	data := make([]byte, 20)
	binary.LittleEndian.PutUint32(data, version2)
	binary.LittleEndian.PutUint32(data[4:], permitted)
	return data
}
