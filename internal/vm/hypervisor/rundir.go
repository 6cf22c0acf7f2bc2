package hypervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// openRunDir makes the folder, and returns the number of this run: the time in
// nanoseconds since the Unix epoch, but always more than the last number, which the
// folder remembers. So it grows also when the clock was set back.
func openRunDir(path string, now time.Time) (uint64, error) {
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
	if err := replaceFile(path, []byte(strconv.FormatUint(next, 10)+"\n")); err != nil {
		return 0, fmt.Errorf("recording the run: %w", err)
	}
	return next, nil
}

// lastRunID is 0 where none is recorded. What cannot be read as a number is none: the
// folder lives no longer than the Pod, and an earlier run of it wrote the file whole.
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

// replaceFile writes a file that is never seen half written.
func replaceFile(path string, data []byte) error {
	partial := path + ".partial"
	if err := os.WriteFile(partial, data, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, path)
}
