package disks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
)

// record is the name of a file in the run directory. It exists if an earlier run of this Pod completed the disks.
// The specification, which is older, does not contain that information.
const record = "disk-complete"

// Recorded reports whether an earlier run has called Record with the same run directory.
func Recorded(run string) (bool, error) {
	_, err := os.Stat(filepath.Join(run, record))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("checking the record of the disk: %w", err)
	}
	return err == nil, nil
}

// Record records in the run directory that the disks are complete.
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
