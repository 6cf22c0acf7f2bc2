package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A device has no name that says that it is complete, nor room beside it for a file that does. Its content says it:
// while an image is written, the first sector is a mark, and that of the image replaces it in the end. A device that
// begins with something else has a disk, which is never written again.

// HeadBytes is how much of a device is written last, in blocks that any device can write.
const HeadBytes = 4096

// sector is what every device writes as a whole, or not at all.
const sector = 512

// edgeBytes is how much of each end of a device has to be zero for it to count as blank: partition tables, boot sectors and
// the superblocks of file systems are there.
const edgeBytes = 1 << 20

// zeroChunk is how much is made zero at once.
const zeroChunk = 1 << 30

// mark is the first sector of a device while its disk is not complete.
var mark = append([]byte(marking), make([]byte, sector-len(marking))...)

const marking = "millwright: this disk is not complete yet\n"

// ErrTooSmall means that a device is smaller than the disk.
var ErrTooSmall = errors.New("the device is too small")

// Content is what a device has.
type Content string

const (
	// Blank: nothing.
	Blank Content = "Blank"
	// Begun: a disk that was not completed.
	Begun Content = "Begun"
	// Data: a disk.
	Data Content = "Data"
)

// IsDevice reports whether the disk is a block device. Its node is at the path itself: a link might lead to any of the host.
func (d Disk) IsDevice() bool {
	var info unix.Stat_t
	return unix.Lstat(d.Path, &info) == nil && info.Mode&unix.S_IFMT == unix.S_IFBLK
}

// Length returns the size of the disk as it is.
func (d Disk) Length() (uint64, error) {
	if !d.IsDevice() {
		info, err := os.Stat(d.Path)
		if err != nil {
			return 0, err
		}
		return uint64(info.Size()), nil
	}
	device, size, err := openDevice(d.Path, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	return uint64(size), device.Close()
}

// openDevice opens a block device, and returns its size.
func openDevice(path string, flags int) (*os.File, int64, error) {
	device, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := device.Stat()
	if err == nil && (info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0) {
		err = fmt.Errorf("%s is no block device", path)
	}
	size, seekErr := device.Seek(0, io.SeekEnd)
	if err = errors.Join(err, seekErr); err != nil {
		return nil, 0, errors.Join(err, device.Close())
	}
	return device, size, nil
}

// Content returns what the device has.
func (d Disk) Content() (Content, error) {
	device, size, err := openDevice(d.Path, os.O_RDONLY)
	if err != nil {
		return "", fmt.Errorf("opening the disk: %w", err)
	}
	defer device.Close()
	if size < HeadBytes {
		return "", fmt.Errorf("%w: it has %d bytes", ErrTooSmall, size)
	}
	edge := make([]byte, min(size, edgeBytes))
	for _, at := range []int64{0, size - int64(len(edge))} {
		if _, err := device.ReadAt(edge, at); err != nil {
			return "", fmt.Errorf("reading the disk: %w", err)
		}
		switch {
		case at == 0 && bytes.Equal(edge[:sector], mark):
			return Begun, nil
		case len(bytes.TrimLeft(edge, "\x00")) > 0:
			return Data, nil
		}
	}
	return Blank, nil
}

// Clear makes a device blank that has no disk, and of which an attempt to write one may have left something. Errors:
// ErrTooSmall, if it is smaller than the requested size.
func (d Disk) Clear(ctx context.Context) error {
	draft, err := d.Draft(ctx)
	if err != nil {
		return err
	}
	defer draft.Discard()
	return draft.Commit()
}

// Draft is the disk on a device while it is being written: all zero at first, and complete after Commit.
type Draft struct {
	device *os.File
	head   [HeadBytes]byte
	size   int64
}

// Draft makes the device one whose disk is not complete, and zero but for that. Storage that cannot do that by itself is
// written, which takes its time. Errors: ErrTooSmall, and the cause of the context's end.
func (d Disk) Draft(ctx context.Context) (*Draft, error) {
	device, size, err := openDevice(d.Path, os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("opening the disk: %w", err)
	}
	draft := &Draft{device: device, size: size}
	if size < max(HeadBytes, int64(d.Bytes)) {
		draft.Discard()
		return nil, fmt.Errorf("%w: it has %d bytes, the disk %d", ErrTooSmall, size, d.Bytes)
	}
	if err := draft.begin(ctx); err != nil {
		draft.Discard()
		return nil, fmt.Errorf("clearing the disk: %w", err)
	}
	return draft, nil
}

// begin marks the device before anything else of it changes.
func (d *Draft) begin(ctx context.Context) error {
	if _, err := d.device.WriteAt(mark, 0); err != nil {
		return err
	}
	if err := d.device.Sync(); err != nil {
		return err
	}
	if _, err := d.device.WriteAt(make([]byte, HeadBytes-sector), sector); err != nil {
		return err
	}
	for at := int64(HeadBytes); at < d.size; at += zeroChunk {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := zero(d.device, at, min(zeroChunk, d.size-at)); err != nil {
			return err
		}
	}
	return nil
}

// zero gives the room back to the storage, or else writes zeros. Both read as zero after that.
func zero(device *os.File, at, length int64) error {
	err := unix.Fallocate(int(device.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = unix.Fallocate(int(device.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, at, length)
	}
	if err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	return nil
}

// Name returns the path of the device.
func (d *Draft) Name() string { return d.device.Name() }

// WriteAt implements io.WriterAt. The first HeadBytes reach the device with Commit.
func (d *Draft) WriteAt(data []byte, at int64) (int, error) {
	kept := 0
	if at >= 0 && at < HeadBytes {
		kept = copy(d.head[at:], data)
	}
	if kept == len(data) {
		return kept, nil
	}
	n, err := d.device.WriteAt(data[kept:], at+int64(kept))
	return kept + n, err
}

// ReadAt implements io.ReaderAt: it reads what was written.
func (d *Draft) ReadAt(data []byte, at int64) (int, error) {
	kept := 0
	if at >= 0 && at < HeadBytes {
		kept = copy(data, d.head[at:])
	}
	if kept == len(data) {
		return kept, nil
	}
	n, err := d.device.ReadAt(data[kept:], at+int64(kept))
	return kept + n, err
}

// Truncate changes nothing: a device has its size. Errors: ErrTooSmall.
func (d *Draft) Truncate(size int64) error {
	if size > d.size {
		return fmt.Errorf("%w: it has %d bytes, the disk %d", ErrTooSmall, d.size, size)
	}
	return nil
}

// Commit makes the content durable, and then the disk complete.
func (d *Draft) Commit() error {
	if _, err := d.device.WriteAt(d.head[sector:], sector); err != nil {
		return err
	}
	if err := d.device.Sync(); err != nil {
		return err
	}
	if _, err := d.device.WriteAt(d.head[:sector], 0); err != nil {
		return err
	}
	return errors.Join(d.device.Sync(), d.device.Close())
}

// Discard leaves a disk that is not complete. After Commit it does nothing.
func (d *Draft) Discard() { _ = d.device.Close() }

// acquireDevice locks a device for one open file. Locks of byte ranges would not do: they are those of a node, and each
// container has a node of its own. This one is of the device, on this host.
func acquireDevice(path string) (*Lock, error) {
	device, err := os.OpenFile(path, os.O_RDWR|os.O_EXCL|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("locking the disk: %w", err)
	}
	return &Lock{file: device, device: true}, nil
}
