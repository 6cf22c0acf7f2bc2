package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/millwright-dev/millwright/internal/local/directory"
)

// layout has the paths in a control plane's directory.
type layout string

func (d layout) path(elements ...string) string {
	return filepath.Join(append([]string{string(d)}, elements...)...)
}
func (d layout) pki(name string) string        { return d.path("pki", name) }
func (d layout) credential(name string) string { return d.path("credentials", name+".kubeconfig") }
func (d layout) kubeconfig() string            { return d.path("kubeconfig") }
func (d layout) data() string                  { return d.path("etcd") }
func (d layout) log(name string) string        { return d.path("logs", name+".log") }
func (d layout) record(name string) string     { return d.path("run", name+".json") }
func (d layout) ports() string                 { return d.path("ports.json") }
func (d layout) egress() string                { return d.path("egress.json") }
func (d layout) lock() string                  { return d.path("lock") }

// create creates the directories, only accessible to this user: all of them lead to secrets.
func (d layout) create() error {
	for _, dir := range []string{d.path(), d.path("pki"), d.path("credentials"), d.data(), d.path("logs"), d.path("run")} {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = os.Chmod(dir, 0o700)
		}
		if err != nil {
			return fmt.Errorf("the data directory %s is not writable: %w", d, err)
		}
	}
	return nil
}

// InUseError means that another control plane, in this process or another, uses the directory.
type InUseError struct {
	// Dir is the directory.
	Dir string
	// PID is the process that holds it, or 0 if unknown.
	PID int
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("the data directory %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("the data directory %s is in use by process %d", e.Dir, e.PID)
}

// lockDir locks the directory for this process. The kernel releases the lock when the process exits. The PID in
// the file is for messages.
func lockDir(dir layout) (*os.File, error) {
	file, err := directory.LockWithRetry(dir.lock())
	if errors.Is(err, directory.ErrLocked) {
		content, _ := os.ReadFile(dir.lock()) // without it the PID stays 0
		pid, _ := strconv.Atoi(strings.TrimSpace(string(content)))
		return nil, &InUseError{Dir: string(dir), PID: pid}
	}
	if err != nil {
		return nil, fmt.Errorf("locking the data directory %s: %w", dir, err)
	}
	err = file.Truncate(0)
	if err == nil {
		_, err = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", dir.lock(), err), file.Close())
	}
	return file, nil
}

// IsDirectory reports whether a control plane was ever started in the directory.
func IsDirectory(dir string) bool {
	_, err := os.Stat(layout(dir).lock())
	return err == nil
}

// Holder returns the PID of the process that uses the directory of a control plane: 0 if there is none, -1 if
// the PID is unknown. A directory that does not exist is not in use.
func Holder(dir string) (int, error) {
	locked, err := directory.IsLocked(layout(dir).lock())
	if err != nil {
		return 0, fmt.Errorf("finding the process that uses %s: %w", dir, err)
	}
	if !locked {
		return 0, nil
	}
	content, _ := os.ReadFile(layout(dir).lock()) // without it the PID is not known
	if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
		return pid, nil
	}
	return -1, nil
}
