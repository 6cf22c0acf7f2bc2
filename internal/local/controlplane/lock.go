package controlplane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/millwright-dev/millwright/internal/local/folder"
)

// InUseError says that another control plane, in this process or another, uses the folder.
type InUseError struct {
	// Dir is the folder.
	Dir string
	// PID is the process that holds it, 0 if it did not get to write that down.
	PID int
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("the data folder %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("the data folder %s is in use by process %d", e.Dir, e.PID)
}

// lockDir takes the folder for this process. The kernel gives the lock back when
// the process ends, however it ends; the number in the file is for people.
func lockDir(dir layout) (*os.File, error) {
	file, err := folder.Lock(dir.lock())
	if errors.Is(err, folder.ErrLocked) {
		content, _ := os.ReadFile(dir.lock()) // without it the number stays 0
		pid, _ := strconv.Atoi(strings.TrimSpace(string(content)))
		return nil, &InUseError{Dir: string(dir), PID: pid}
	}
	if err != nil {
		return nil, fmt.Errorf("the data folder %s cannot be locked: %w", dir, err)
	}
	if err := writePID(file); err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", dir.lock(), err), file.Close())
	}
	return file, nil
}

func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// IsFolder reports whether a control plane was started in the folder at some time.
func IsFolder(dir string) bool {
	_, err := os.Stat(layout(dir).lock())
	return err == nil
}

// Holder returns the process that uses the folder of a control plane: 0 if none does, -1
// if one does whose number is not known. A folder that does not exist is used by none.
func Holder(dir string) (int, error) {
	file, err := os.Open(layout(dir).lock())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("looking who uses %s: %w", dir, err)
	}
	defer file.Close()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return 0, nil // and the lock goes with the file
	}
	content, _ := io.ReadAll(file) // then the number is not known
	if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
		return pid, nil
	}
	return -1, nil
}
