package disks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
)

// record is a file in the run folder. It exists if an earlier run of this Pod had the disks complete: the specification
// is older than that, and says nothing about it.
const record = "disk-complete"

// Recorded reports whether an earlier run has called Record with the same run folder.
func Recorded(run string) (bool, error) {
	_, err := os.Stat(filepath.Join(run, record))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("looking for the record of the disk: %w", err)
	}
	return err == nil, nil
}

// Record stores in the run folder that the disks are complete.
func Record(run string) error {
	file, err := disk.CreatePartial(filepath.Join(run, record), 0o600)
	if err == nil {
		defer file.Discard()
		err = file.Commit()
	}
	if err != nil {
		return fmt.Errorf("recording that the disk is complete: %w", err)
	}
	return nil
}
