package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/millwright-dev/millwright/internal/local/folder"
)

// layout has the paths in a control plane's folder.
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

// create creates the folders, for this user only: all lead to secrets.
func (d layout) create() error {
	for _, dir := range []string{d.path(), d.path("pki"), d.path("credentials"), d.data(), d.path("logs"), d.path("run")} {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = os.Chmod(dir, 0o700)
		}
		if err != nil {
			return fmt.Errorf("the data folder %s is not writable: %w", d, err)
		}
	}
	return nil
}

// InUseError means that another control plane, in this process or another, uses the folder.
type InUseError struct {
	// Dir is the folder.
	Dir string
	// PID is the process that holds it, 0 if it is not known.
	PID int
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("the data folder %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("the data folder %s is in use by process %d", e.Dir, e.PID)
}

// lockDir locks the folder for this process. The kernel releases the lock when the process
// ends. The PID in the file is for messages.
func lockDir(dir layout) (*os.File, error) {
	file, err := folder.LockWithRetry(dir.lock())
	if errors.Is(err, folder.ErrLocked) {
		content, _ := os.ReadFile(dir.lock()) // without it the PID stays 0
		pid, _ := strconv.Atoi(strings.TrimSpace(string(content)))
		return nil, &InUseError{Dir: string(dir), PID: pid}
	}
	if err != nil {
		return nil, fmt.Errorf("the data folder %s cannot be locked: %w", dir, err)
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

// IsFolder reports whether a control plane was ever started in the folder.
func IsFolder(dir string) bool {
	_, err := os.Stat(layout(dir).lock())
	return err == nil
}

// Holder returns the PID of the process that uses the folder of a control plane: 0 if none
// does, -1 if the PID is not known. A folder that does not exist is not in use.
func Holder(dir string) (int, error) {
	locked, err := folder.IsLocked(layout(dir).lock())
	if err != nil {
		return 0, fmt.Errorf("looking for the process that uses %s: %w", dir, err)
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
