package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/prometheus/procfs"

	"github.com/millwright-dev/millwright/internal/local/folder"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

// settleTime is how long the lock may be held by a process that is still between fork
// and exec, and so cannot be recognised.
const settleTime = 5 * time.Second

// settleInterval is the time between two checks of such a lock.
const settleInterval = 5 * time.Millisecond

// settledMembers returns the living processes of the folder. None means that there are
// none, not even one about to appear.
func settledMembers(dir string) ([]int, error) {
	for deadline := time.Now().Add(settleTime); ; time.Sleep(settleInterval) {
		lock, err := folder.Lock(lockPath(dir))
		if err == nil {
			return nil, lock.Close()
		}
		if !errors.Is(err, folder.ErrLocked) {
			return nil, err
		}
		members, err := members(dir)
		if err != nil || len(members) > 0 {
			return members, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("a process of the folder is still running, but none is found that has %s open", lockPath(dir))
		}
	}
}

// members returns the processes that have the folder's lock open by inheritance.
func members(dir string) ([]int, error) {
	lock, err := os.Stat(lockPath(dir))
	if err != nil {
		return nil, err
	}
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, process := range all {
		if holds(process.PID, lock) {
			pids = append(pids, process.PID)
		}
	}
	return pids, nil
}

// holds reports whether the process has the lock open. Those of other users cannot be
// asked; they did not come from us.
func holds(pid int, lock os.FileInfo) bool {
	file, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, lockFD))
	return err == nil && os.SameFile(file, lock)
}

// openMember returns a handle of a process of the folder. Errors: proc.ErrNotFound.
func openMember(dir string, pid int) (*os.Process, error) {
	lock, err := os.Stat(lockPath(dir))
	if err != nil {
		return nil, err
	}
	process, err := proc.Open(pid)
	if err == nil && !holds(pid, lock) {
		err = proc.ErrNotFound
	}
	return process, err
}

// killAll kills the processes of the folder and waits until all are gone.
func killAll(dir string) error {
	for {
		pids, err := settledMembers(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the folder is gone
		}
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			process, err := openMember(dir, pid)
			if errors.Is(err, proc.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			process.Kill() // fails only if it has ended
			if err := proc.AwaitEnd(context.Background(), process); err != nil {
				return err
			}
		}
	}
}
