package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// suffixPartial is that of a file that is being written; see the package's comment.
const suffixPartial = ".partial"

// partial is a file that gets its name when it is complete.
type partial struct {
	*os.File
	path string // the name to come
}

// createPartial begins at nothing, whatever an earlier attempt left.
func createPartial(path string, mode fs.FileMode) (*partial, error) {
	name := path + suffixPartial
	// Removed, not truncated: a process that still writes there must not write here.
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	return &partial{File: file, path: path}, nil
}

// commit makes the content durable, then the name.
func (p *partial) commit() error {
	if err := p.Sync(); err != nil {
		return err
	}
	if err := p.Close(); err != nil {
		return err
	}
	if err := os.Rename(p.Name(), p.path); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(p.path))
}

// discard removes what was not committed; after commit it does nothing.
func (p *partial) discard() {
	_ = p.Close()
	_ = os.Remove(p.Name())
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
