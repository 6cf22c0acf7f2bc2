package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/local/folder"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

// identity distinguishes a process from a later one with the same number.
type identity struct {
	PID int `json:"pid"`
	// Start is when the process started, in clock ticks since the machine's boot.
	Start uint64 `json:"start"`
	// Boot is the ID of that boot.
	Boot string `json:"boot"`
}

// killGrace is how long a killed process may take to end: it may be in the middle of a
// write to a slow disk.
const killGrace = 5 * time.Second

// identify returns the identity of a living process. Errors: proc.ErrNotFound.
func identify(pid int) (identity, error) {
	stat, err := proc.Stat(pid)
	if err != nil {
		return identity{}, err
	}
	boot, err := proc.BootID()
	return identity{PID: pid, Start: stat.Starttime, Boot: boot}, err
}

func writeIdentity(path string, pid int) error {
	id, err := identify(pid)
	if errors.Is(err, proc.ErrNotFound) {
		return nil // it has ended already, which its supervisor is about to notice
	}
	if err != nil {
		return err
	}
	content, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return folder.WriteFile(path, content)
}

// find returns the process that a PID file names. Errors: proc.ErrNotFound if there is no
// file, or the process has ended.
func find(pidFile string) (*os.Process, error) {
	content, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, proc.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	var id identity
	if json.Unmarshal(content, &id) != nil {
		return nil, proc.ErrNotFound // not one of ours: they are never half written
	}
	if err := id.verify(); err != nil {
		return nil, err // it may be the number of a thread, of which there is no handle
	}
	process, err := proc.Open(id.PID)
	if err != nil {
		return nil, err
	}
	return process, id.verify()
}

// verify returns nil if the process is alive. Errors: proc.ErrNotFound, also if another
// process has its number now.
func (id identity) verify() error {
	actual, err := identify(id.PID)
	if err == nil && actual != id {
		return proc.ErrNotFound
	}
	return err
}

// IsRunning reports whether the process that a PID file names is alive.
func IsRunning(pidFile string) (bool, error) {
	process, err := find(pidFile)
	if errors.Is(err, proc.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the process of %s: %w", pidFile, err)
	}
	return true, process.Release()
}

// EndLeftOver ends the process that a PID file names, which an earlier parent left behind,
// and removes the file. It reports whether there was one. The process gets the grace
// period to end after SIGTERM.
func EndLeftOver(ctx context.Context, pidFile string, grace time.Duration) (bool, error) {
	process, err := find(pidFile)
	found := err == nil
	if found {
		if err := end(ctx, process, grace); err != nil {
			return true, fmt.Errorf("ending process %d: %w", process.Pid, err)
		}
	} else if !errors.Is(err, proc.ErrNotFound) {
		return false, err
	}
	if err := os.Remove(pidFile); !errors.Is(err, fs.ErrNotExist) {
		return found, err
	}
	return found, nil
}

// end asks the process to end, and kills it after the grace period.
func end(ctx context.Context, process *os.Process, grace time.Duration) error {
	for _, step := range []struct {
		signal syscall.Signal
		limit  time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, killGrace}} {
		if err := process.Signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, step.limit)
		err := proc.AwaitEnd(limited, process)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return errors.New("it does not even end when killed")
}
