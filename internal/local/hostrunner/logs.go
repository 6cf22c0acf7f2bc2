package hostrunner

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// rotate moves a log that has outgrown the limit, in bytes, to PATH.1. The process goes
// on writing to the same file, so it is copied and cut; what is written between the two
// is lost.
func rotate(path string, limit int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= limit {
		return nil
	}
	if err != nil {
		return err
	}
	if err := copyTail(path, path+".1", limit); err != nil {
		return err
	}
	return os.Truncate(path, 0)
}

// copyTail copies the last bytes of a file.
func copyTail(from, to string, limit int64) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if _, err := source.Seek(-limit, io.SeekEnd); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	// The process may write faster than we read.
	_, err = io.CopyN(target, source, limit)
	return errors.Join(err, target.Close())
}
