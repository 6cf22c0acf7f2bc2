package diskserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/storage"
)

const (
	// recordSuffix is the suffix of the record's file, which is next to the first disk.
	recordSuffix = ".fence"

	// nextSuffix is the suffix of the file for the next record. Its space is reserved, so tokens can be revoked
	// even if the file system is full.
	nextSuffix = ".next"

	// recordBytes is the size of both files, which are padded with spaces.
	recordBytes = 512
)

// record is the state that is kept for as long as the disk exists.
type record struct {
	// Revoked is the highest token that was revoked, or 0.
	Revoked storage.Token `json:"revokedUpToToken"`
	// Opened is the highest token that was opened, or 0.
	Opened storage.Token `json:"openedUpToToken"`
	// Boot is the kernel's boot ID at the time when the token was opened.
	Boot string `json:"bootID"`
}

// after returns the record after a reboot of the host. Writes that were acknowledged to hypervisors may be lost,
// because they were in the kernel's memory, and a guest that continues would not notice. All open tokens are
// therefore revoked.
func (r record) after(boot string) record {
	if r.Boot != boot {
		r.Revoked = max(r.Revoked, r.Opened)
	}
	return r
}

// bootID returns the ID of the current boot.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// readRecord reads the record. If the file does not exist, the disk is new to this host.
func readRecord(path string) (record, error) {
	var r record
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("reading the record of tokens: %w", err)
	}
	defer func() { _ = file.Close() }()
	text := make([]byte, recordBytes+1)
	n, err := file.Read(text)
	if err == nil {
		err = json.Unmarshal(text[:n], &r)
	}
	if err == nil && r.Revoked == 0 && r.Opened == 0 { // such a file is never written
		err = errors.New("it has no token")
	}
	if err != nil {
		return r, fmt.Errorf("reading the record of tokens, %s: %w", path, err)
	}
	return r, nil
}

// write replaces the record and returns once it is durable. At any time, the file contains either the old or the
// new record.
func (r record) write(path string) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = fill(path+nextSuffix, text)
	}
	if err == nil {
		err = os.Rename(path+nextSuffix, path)
	}
	if err == nil {
		err = syncDirectory(path)
	}
	if err != nil {
		return fmt.Errorf("writing the record of tokens: %w", err)
	}
	_ = reserve(path) // if it fails, the next write may fail, too
	return nil
}

// reserve reserves the space for the next record.
func reserve(path string) error {
	err := fill(path+nextSuffix, nil)
	if err != nil {
		err = fmt.Errorf("reserving the space for a record of tokens: %w", err)
	}
	return err
}

// fill writes the content and pads the file with spaces. The file keeps its blocks.
func fill(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	padding := bytes.Repeat([]byte(" "), recordBytes-len(content)-1)
	_, err = file.WriteAt(append(append(content, padding...), '\n'), 0)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncDirectory(path string) error {
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
