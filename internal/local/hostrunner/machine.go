package hostrunner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what is to be known of the machine that the host is a part of.
type machine struct {
	processors int64
	memory     int64 // bytes
	storage    int64 // bytes
	kernel     string
	boot       string
	id         string
}

// measure looks at this machine, and at the file system of the folder.
func measure(dir string) (machine, error) {
	var system unix.Sysinfo_t
	var name unix.Utsname
	var files unix.Statfs_t
	if err := errors.Join(unix.Sysinfo(&system), unix.Uname(&name), unix.Statfs(dir, &files)); err != nil {
		return machine{}, fmt.Errorf("measuring the machine: %w", err)
	}
	return machine{
		processors: int64(runtime.NumCPU()),
		memory:     int64(system.Totalram) * int64(system.Unit),
		storage:    int64(files.Blocks) * files.Bsize,
		kernel:     unix.ByteSliceToString(name.Release[:]),
		boot:       readLine("/proc/sys/kernel/random/boot_id"),
		id:         readLine("/etc/machine-id"),
	}, nil
}

// readLine returns the file's content without its end of line, "" if it cannot be read.
func readLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return "" // a Node says nothing then
	}
	return strings.TrimSpace(string(content))
}

// layout names the files in a host's folder.
type layout string

func (d layout) pods() string          { return filepath.Join(string(d), "pods") }
func (d layout) pod(uid string) folder { return folder(filepath.Join(d.pods(), uid)) }
func (d layout) lock() string          { return filepath.Join(string(d), "lock") }

// folder is that of one Pod.
type folder string

func (f folder) path(elements ...string) string {
	return filepath.Join(append([]string{string(f)}, elements...)...)
}
func (f folder) root() string              { return f.path("root") }
func (f folder) volume(name string) string { return f.path("volumes", name) }
func (f folder) log() string               { return f.path("log") }
func (f folder) manifest() string          { return f.path("pod.json") }

// lockDir takes the folder for this process. The kernel gives the lock back when the
// process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	file, err := os.OpenFile(layout(dir).lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the host's folder is not writable: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
