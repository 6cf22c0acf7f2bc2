package diskserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// recordSuffix is what the name of the file ends with that remembers what was revoked, beside the first disk.
const recordSuffix = ".fence"

// maxRecord is the size of the largest file that is read, in bytes.
const maxRecord = 4096

// record is what is remembered for as long as there is the disk.
type record struct {
	// Revoked is the highest token that was revoked. 0: none.
	Revoked storage.Token `json:"revokedUpToToken"`
}

// readRecord reads the file. A disk without one is new here.
func readRecord(path string) (record, error) {
	var r record
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("reading what was revoked: %w", err)
	}
	defer func() { _ = file.Close() }()
	text := make([]byte, maxRecord)
	n, err := file.Read(text)
	if err == nil {
		err = json.Unmarshal(text[:n], &r)
	}
	if err == nil && r.Revoked == 0 { // such a file was never written
		err = errors.New("it has no token")
	}
	if err != nil {
		return r, fmt.Errorf("reading what was revoked, from %s: %w", path, err)
	}
	return r, nil
}

// write returns when the file is durable.
func (r record) write(path string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	file, err := disk.CreatePartial(path, 0o600)
	if err != nil {
		return fmt.Errorf("writing what was revoked: %w", err)
	}
	defer file.Discard()
	if _, err = file.Write(append(text, '\n')); err == nil {
		err = file.Commit()
	}
	if err != nil {
		return fmt.Errorf("writing what was revoked: %w", err)
	}
	return nil
}
