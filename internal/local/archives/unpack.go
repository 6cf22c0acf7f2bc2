package archives

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
)

// unpack writes the directories, files and links of a compressed archive below a directory, and nothing outside it.
func unpack(archive io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	plain, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	for reader := tar.NewReader(io.LimitReader(plain, maxSize)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = write(root, header, reader)
		}
		if err != nil {
			return err
		}
	}
}

func write(root *os.Root, header *tar.Header, content io.Reader) error {
	name := path.Clean(header.Name)
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		// Only links to files of the same directory, as between the programs of the control plane.
		if path.Base(header.Linkname) != header.Linkname {
			return fmt.Errorf("%s is a link to another directory", header.Name)
		}
		return root.Symlink(header.Linkname, name)
	case tar.TypeReg:
		return writeFile(root, name, header.FileInfo().Mode().Perm()&0o755, content)
	default:
		return fmt.Errorf("%s is neither a file, nor a directory, nor a link", header.Name)
	}
}

// block is the unit in which zeros become holes: disks of guests are mostly empty.
const block = 64 << 10

func writeFile(root *os.Root, name string, mode os.FileMode, content io.Reader) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	return errors.Join(copySparse(file, content), file.Close())
}

// copySparse copies, and leaves holes where there are only zeros.
func copySparse(file *os.File, content io.Reader) error {
	var size int64
	buffer := make([]byte, block)
	for {
		n, err := io.ReadFull(content, buffer)
		if n > 0 && !zero(buffer[:n]) {
			if _, err := file.WriteAt(buffer[:n], size); err != nil {
				return err
			}
		}
		size += int64(n)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
			return file.Truncate(size)
		case err != nil:
			return err
		}
	}
}

func zero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
