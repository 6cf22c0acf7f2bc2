package process

import (
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
)

// ErrNeverStarted means that no process was started in the folder.
var ErrNeverStarted = errors.New("no process was started")

// record is what is written down of a start.
type record struct {
	// PID is the number of the process, 0 until it exists. It is trusted only together
	// with the lock, since numbers are used again.
	PID int `json:"pid,omitempty"`
	// Began is when the process was about to be started.
	Began time.Time `json:"began"`
}

func recordPath(dir string) string { return filepath.Join(dir, "process.json") }
func lockPath(dir string) string   { return filepath.Join(dir, "process.lock") }

func readRecord(dir string) (record, error) {
	content, err := os.ReadFile(recordPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, ErrNeverStarted
	}
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		// A file that was lost in a power cut: its process is lost with it, and the
		// lock tells so. What matters is that there was one.
		return record{}, nil
	}
	return r, nil
}

// write replaces the record in one step.
func (r record) write(dir string) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := recordPath(dir)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// errNoProcess means that there is no living process with that number.
var errNoProcess = errors.New("no such process")

// sessionOf returns the session that a process belongs to. A zombie is not found.
func sessionOf(pid int) (int, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0, errNoProcess
	}
	if err != nil {
		return 0, err
	}
	state, session, err := parseStat(string(line))
	if state == "Z" || state == "X" {
		return 0, errNoProcess
	}
	return session, err
}

// parseStat finds the state (field 3) and the session (6) in a line of /proc/PID/stat,
// see proc_pid_stat(5). The second field is the name in parentheses, and may itself
// hold blanks and parentheses.
func parseStat(line string) (state string, session int, err error) {
	end := strings.LastIndexByte(line, ')')
	fields := strings.Fields(line[end+1:])
	const stateIndex, sessionIndex = 0, 3 // field 3 is the first one after the name
	if end < 0 || len(fields) <= sessionIndex {
		return "", 0, fmt.Errorf("process status %q is not understood", line)
	}
	session, err = strconv.Atoi(fields[sessionIndex])
	return fields[stateIndex], session, err
}
