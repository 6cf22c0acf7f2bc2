package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

// identity tells a process from a later one with the same number.
type identity struct {
	PID int `json:"pid"`
	// Start is when the process started, in clock ticks since the machine did.
	Start uint64 `json:"start"`
	// Boot is the machine's boot, since numbers and ticks begin anew with it.
	Boot string `json:"boot"`
}

// killGrace is how long a killed process may take to end: it may be in the middle
// of a write to a slow disk.
const killGrace = 5 * time.Second

// errNoProcess means that there is no living process with that number.
var errNoProcess = errors.New("no such process")

// identify reads the identity of a living process. A zombie is not living: its
// parent has yet to take note, but it holds no port and no lock.
func identify(pid int) (identity, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return identity{}, errNoProcess
	}
	if err != nil {
		return identity{}, err
	}
	state, start, err := parseStat(string(stat))
	if err != nil {
		return identity{}, err
	}
	if state == "Z" || state == "X" {
		return identity{}, errNoProcess
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return identity{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, err
}

// parseStat finds the state (field 3) and the start time (field 22) in a line of
// /proc/PID/stat, see proc_pid_stat(5). The second field is the name in
// parentheses and may itself hold blanks and parentheses.
func parseStat(line string) (state string, start uint64, err error) {
	end := strings.LastIndexByte(line, ')')
	fields := strings.Fields(line[end+1:])
	const stateIndex, startIndex = 0, 19 // field 3 is the first one after the name
	if end < 0 || len(fields) <= startIndex {
		return "", 0, fmt.Errorf("process status %q is not understood", line)
	}
	start, err = strconv.ParseUint(fields[startIndex], 10, 64)
	return fields[stateIndex], start, err
}

func writeIdentity(path string, pid int) error {
	id, err := identify(pid)
	if errors.Is(err, errNoProcess) {
		return nil // it has ended already; its supervisor is about to notice
	}
	if err != nil {
		return err
	}
	content, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return writeFile(path, content)
}

// endLeftOver ends the process that the file at path names, if it is still that
// process, and removes the file. It reports whether there was one. The process
// gets grace to end in an orderly way.
func endLeftOver(ctx context.Context, path string, grace time.Duration) (bool, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var id identity
	if json.Unmarshal(content, &id) != nil {
		return false, os.Remove(path) // writeFile leaves no halves, so this was not ours
	}
	found, err := endProcess(ctx, id, grace)
	if err != nil {
		return found, err
	}
	return found, os.Remove(path)
}

// endProcess ends the process unless it has ended, and reports whether it had to.
func endProcess(ctx context.Context, id identity, grace time.Duration) (bool, error) {
	handle, err := openProcess(id)
	if errors.Is(err, errNoProcess) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("opening process %d: %w", id.PID, err)
	}
	defer unix.Close(handle) // nothing was written
	ended, err := signalAndWait(ctx, handle, unix.SIGTERM, grace)
	if !ended && err == nil {
		ended, err = signalAndWait(ctx, handle, unix.SIGKILL, killGrace)
	}
	if !ended && err == nil {
		err = errors.New("it does not even end when killed")
	}
	if err != nil {
		return true, fmt.Errorf("ending process %d: %w", id.PID, err)
	}
	return true, nil
}

// openProcess returns a handle of exactly that process; a process that merely has
// its number does not count.
func openProcess(id identity) (int, error) {
	handle, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return 0, errNoProcess
	}
	if err != nil {
		return 0, err
	}
	// A handle goes on meaning the same process, so that what is found out now
	// still holds when signals are sent through it.
	actual, err := identify(id.PID)
	if err == nil && actual != id {
		err = errNoProcess
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(handle))
	}
	return handle, nil
}

func signalAndWait(ctx context.Context, handle int, signal unix.Signal, patience time.Duration) (bool, error) {
	if err := unix.PidfdSendSignal(handle, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, err
	}
	return awaitEnd(ctx, handle, patience)
}

// awaitEnd waits for at most the given time until the process has ended.
func awaitEnd(ctx context.Context, handle int, patience time.Duration) (bool, error) {
	const slice = 100 * time.Millisecond // how late the end of the context may be noticed
	for deadline := time.Now().Add(patience); ; {
		rest := min(time.Until(deadline), slice)
		if rest <= 0 {
			return false, ctx.Err()
		}
		// A process handle becomes readable when the process ends.
		count, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, int(rest.Milliseconds())+1)
		if count > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
}

// LeftOvers names what a killed process left running in the folder of its control plane. It
// changes nothing. While somebody uses the folder, that is what runs.
func LeftOvers(dir string) ([]string, error) {
	files, err := filepath.Glob(layout(dir).pidFile("*"))
	if err != nil {
		return nil, fmt.Errorf("looking for what runs in %s: %w", dir, err)
	}
	var names []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was stopped just now
		}
		if err != nil {
			return nil, fmt.Errorf("looking for what runs in %s: %w", dir, err)
		}
		var id identity
		if json.Unmarshal(content, &id) != nil {
			continue // not ours
		}
		switch actual, err := identify(id.PID); {
		case err == nil && actual == id:
			names = append(names, strings.TrimSuffix(filepath.Base(file), ".json"))
		case err != nil && !errors.Is(err, errNoProcess):
			return nil, fmt.Errorf("looking for process %d: %w", id.PID, err)
		}
	}
	return names, nil
}

// EndLeftOvers ends the children that a killed process left behind in the folder of its
// control plane, in the order of Stop. Errors: *InUseError if somebody uses the folder.
func EndLeftOvers(ctx context.Context, dir string) error {
	folder := layout(dir)
	lock, err := lockDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close() // gives the lock back
	cp := &ControlPlane{dir: folder, log: logr.Discard()}
	return cp.endLeftOvers(ctx)
}
