// Package runfolder keeps the files of a hypervisor that go with its Pod.
package runfolder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
)

// NextRun creates the folder, and returns the number of this run: the time in nanoseconds
// since the Unix epoch, or one more than the last number, which is stored in the folder, if
// the clock was set back.
func NextRun(path string, now time.Time) (uint64, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return 0, fmt.Errorf("making the run folder: %w", err)
	}
	return nextRunID(filepath.Join(path, "run-id"), now)
}

func nextRunID(path string, now time.Time) (uint64, error) {
	last, err := lastRunID(path)
	if err != nil {
		return 0, err
	}
	next := max(uint64(max(0, now.UnixNano())), last+1)
	if err := Replace(path, []byte(strconv.FormatUint(next, 10)+"\n")); err != nil {
		return 0, fmt.Errorf("recording the run: %w", err)
	}
	return next, nil
}

// lastRunID returns 0 if there is no number. Runs write the file atomically, so something
// else is none either.
func lastRunID(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("reading the last run: %w", err)
	}
	last, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, nil
	}
	return last, nil
}

// Replace replaces a file in one step: a crash, also of the machine, leaves the old one or the
// new one. After a failure nothing is left beside it.
func Replace(path string, data []byte) error {
	partial, err := disk.CreatePartial(path, 0o600)
	if err != nil {
		return err
	}
	defer partial.Discard()
	if _, err := partial.Write(data); err != nil {
		return err
	}
	return partial.Commit()
}
