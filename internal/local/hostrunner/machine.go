package hostrunner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/local/folder"
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

func (d layout) pods() string             { return filepath.Join(string(d), "pods") }
func (d layout) pod(uid string) podFolder { return podFolder(filepath.Join(d.pods(), uid)) }
func (d layout) lock() string             { return filepath.Join(string(d), "lock") }

// podFolder is the folder of one Pod.
type podFolder string

func (f podFolder) path(elements ...string) string {
	return filepath.Join(append([]string{string(f)}, elements...)...)
}
func (f podFolder) root() string              { return f.path("root") }
func (f podFolder) volume(name string) string { return f.path("volumes", name) }
func (f podFolder) log() string               { return f.path("log") }
func (f podFolder) manifest() string          { return f.path("pod.json") }
func (f podFolder) process() string           { return f.path("process.json") }

// lockDir takes the folder for this process. The kernel gives the lock back when the
// process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	lock, err := folder.Lock(layout(dir).lock())
	if errors.Is(err, folder.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("the host's folder cannot be locked: %w", err)
	}
	return lock, nil
}
