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

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
)

// NextRun creates the run directory and returns the ID of this run: the time in nanoseconds since the Unix epoch,
// or the last ID plus one if the clock was set back. The directory stores the last ID.
func NextRun(dir string, now time.Time) (uint64, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("creating the run directory: %w", err)
	}
	path := filepath.Join(dir, "run-id")
	last, err := lastRun(path)
	if err != nil {
		return 0, err
	}
	next := max(uint64(max(0, now.UnixNano())), last+1)
	if err := disk.ReplaceFile(path, []byte(strconv.FormatUint(next, 10)+"\n")); err != nil {
		return 0, fmt.Errorf("recording the run: %w", err)
	}
	return next, nil
}

// lastRun returns the stored ID, or 0 if there is none. Runs replace the file atomically, so content that is not a
// number comes from somewhere else.
func lastRun(path string) (uint64, error) {
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
