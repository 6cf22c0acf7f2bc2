package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// settleTime is how long the lock may be held by a process that is still between fork
// and exec, and so is not to be recognised.
const settleTime = 5 * time.Second

// settleInterval is the time between two looks at such a lock.
const settleInterval = 5 * time.Millisecond

// errLocked means that a process of the folder lives.
var errLocked = errors.New("a process of the folder is still running")

// takeLock takes the folder's lock, which must be free.
func takeLock(dir string) (*os.File, error) {
	file, err := os.OpenFile(lockPath(dir), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLocked
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// settledMembers returns the living processes of the folder. None means that there are
// none, not even one about to appear.
func settledMembers(dir string) ([]int, error) {
	for deadline := time.Now().Add(settleTime); ; time.Sleep(settleInterval) {
		lock, err := takeLock(dir)
		if err == nil {
			return nil, lock.Close()
		}
		if !errors.Is(err, errLocked) {
			return nil, err
		}
		members, err := members(dir)
		if err != nil || len(members) > 0 {
			return members, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w, but none is found that has %s open", errLocked, lockPath(dir))
		}
	}
}

// members returns the processes that have the folder's lock open by inheritance.
func members(dir string) ([]int, error) {
	lock, err := os.Stat(lockPath(dir))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && holds(pid, lock) {
			pids = append(pids, pid)
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

// openMember returns a handle of a process of the folder.
func openMember(dir string, pid int) (int, error) {
	lock, err := os.Stat(lockPath(dir))
	if err != nil {
		return -1, err
	}
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return -1, errNoProcess
	}
	if err != nil {
		return -1, err
	}
	// A handle goes on meaning the same process, so that what is found out now still
	// holds when signals are sent through it.
	if !holds(pid, lock) {
		return -1, errors.Join(errNoProcess, unix.Close(handle))
	}
	return handle, nil
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
			handle, err := openMember(dir, pid)
			if errors.Is(err, errNoProcess) {
				continue
			}
			if err != nil {
				return err
			}
			unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0) // it has ended then
			awaitEnd(handle)
			unix.Close(handle) // nothing was written
		}
	}
}

// awaitEnd returns when the process has ended: its handle becomes readable.
func awaitEnd(handle int) {
	for {
		count, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, -1)
		if count > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
