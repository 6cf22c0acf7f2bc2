package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

// ErrNeverStarted means that no process was started with a record.
var ErrNeverStarted = errors.New("no process was started")

// record is the stored start of a process.
type record struct {
	// PID is 0 until the process exists, or if it could not be recorded. It is meaningful only together with
	// the lock, since PIDs are reused.
	PID int `json:"pid,omitempty"`
	// Began is when the process was about to be started.
	Began time.Time `json:"began"`
}

func readRecord(file string) (record, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, ErrNeverStarted
	}
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		return record{}, nil // lost in a power failure, but there was a process
	}
	return r, nil
}

// write replaces the record atomically.
func (r record) write(file string) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return directory.WriteFile(file, content)
}

func lockPath(file string) string { return strings.TrimSuffix(file, ".json") + ".lock" }

// Running reports whether the process with this record or a descendant of it is running.
func Running(file string) (bool, error) {
	pids, err := members(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(pids) > 0, err
}

// A process between fork and exec holds the lock, but is not recognized. settleTime is how long that may take,
// settleInterval the time between two checks.
const (
	settleTime     = 5 * time.Second
	settleInterval = 5 * time.Millisecond
)

// settledMembers returns the running processes. If there are none, none is about to appear.
func settledMembers(file string) ([]int, error) {
	for deadline := time.Now().Add(settleTime); ; time.Sleep(settleInterval) {
		lock, err := directory.Lock(lockPath(file))
		if err == nil {
			return nil, lock.Close()
		}
		if !errors.Is(err, directory.ErrLocked) {
			return nil, err
		}
		members, err := members(file)
		if err != nil || len(members) > 0 {
			return members, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s is locked, but no process has it open", lockPath(file))
		}
	}
}

// members returns the processes that have inherited the lock.
func members(file string) ([]int, error) {
	lock, err := os.Stat(lockPath(file))
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

// holds reports whether the process has the lock open. Processes of other users cannot be examined; they are
// not descendants.
func holds(pid int, lock os.FileInfo) bool {
	file, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, lockFD))
	return err == nil && os.SameFile(file, lock)
}

// openMember returns a handle of a process that holds the lock. It returns proc.ErrNotFound if the process does
// not.
func openMember(file string, pid int) (*os.Process, error) {
	lock, err := os.Stat(lockPath(file))
	if err != nil {
		return nil, err
	}
	process, err := proc.Open(pid)
	if err == nil && !holds(pid, lock) {
		err = proc.ErrNotFound
	}
	return process, err
}

// killAll kills the processes that hold the lock and waits until all have exited.
func killAll(file string) error {
	for {
		pids, err := settledMembers(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the directory was removed
		}
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			process, err := openMember(file, pid)
			if errors.Is(err, proc.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			_ = process.Kill() // fails only if the process has exited
			if err := proc.AwaitEnd(process); err != nil {
				return err
			}
		}
	}
}
