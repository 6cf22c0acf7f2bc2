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

// The name of a device does not show whether its disk is complete, and a file for that purpose cannot be placed
// next to it. The content of the device shows it. While an image is being written, the first sector is a mark; at
// the end, the first sector of the image replaces it. A device that starts with anything else has a disk, which is
// never overwritten.

// HeadBytes is the number of bytes at the start of a device that are written last. Every device can write blocks
// of this size.
const HeadBytes = 4096

// sector is the number of bytes that every device writes atomically.
const sector = 512

// edgeBytes is the number of bytes at each end of a device that must be zero for the device to count as blank.
// Partition tables, boot sectors and the superblocks of file systems are in these places.
const edgeBytes = 1 << 20

// zeroChunk is the number of bytes that are zeroed at a time.
const zeroChunk = 1 << 30

// mark is the first sector of a device while its disk is not complete.
var mark = append([]byte(marking), make([]byte, sector-len(marking))...)

const marking = "millwright: this disk is not complete yet\n"

// ErrTooSmall means that a device is smaller than the disk.
var ErrTooSmall = errors.New("the device is too small")

// Content describes what is on a device.
type Content string

const (
	// Blank means that the device is empty.
	Blank Content = "Blank"
	// Begun means that the device has a disk that was not completed.
	Begun Content = "Begun"
	// Data means that the device has a disk.
	Data Content = "Data"
)

// IsDevice reports whether the disk is a block device. The device must be at the path itself, because a link could
// point to any device of the host.
func (d Disk) IsDevice() bool {
	var info unix.Stat_t
	return unix.Lstat(d.Path, &info) == nil && info.Mode&unix.S_IFMT == unix.S_IFBLK
}

// Length returns the current size of the disk.
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

// openDevice opens a block device and returns its size.
func openDevice(path string, flags int) (*os.File, int64, error) {
	device, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := device.Stat()
	if err == nil && (info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0) {
		err = fmt.Errorf("%s is not a block device", path)
	}
	size, seekErr := device.Seek(0, io.SeekEnd)
	if err = errors.Join(err, seekErr); err != nil {
		return nil, 0, errors.Join(err, device.Close())
	}
	return device, size, nil
}

// Content returns what is on the device.
func (d Disk) Content() (Content, error) {
	device, size, err := openDevice(d.Path, os.O_RDONLY)
	if err != nil {
		return "", fmt.Errorf("opening the disk: %w", err)
	}
	defer device.Close()
	if size < HeadBytes {
		return "", fmt.Errorf("%w: the device has %d bytes", ErrTooSmall, size)
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

// Clear zeroes a device without a disk. An earlier attempt to write a disk may have left data on it. Clear returns
// ErrTooSmall if the device is smaller than the requested size.
func (d Disk) Clear(ctx context.Context) error {
	draft, err := d.Draft(ctx)
	if err != nil {
		return err
	}
	defer draft.Discard()
	return draft.Commit()
}

// Draft is a disk on a device while it is being written. It is zero at first and complete after Commit.
type Draft struct {
	device *os.File
	head   [HeadBytes]byte
	size   int64
}

// Draft marks the disk on the device as incomplete and zeroes everything else. If the storage cannot do that
// efficiently, it writes zeros, which takes time. Errors: ErrTooSmall, and the context's cause.
func (d Disk) Draft(ctx context.Context) (*Draft, error) {
	device, size, err := openDevice(d.Path, os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("opening the disk: %w", err)
	}
	draft := &Draft{device: device, size: size}
	if size < max(HeadBytes, int64(d.Bytes)) {
		draft.Discard()
		return nil, fmt.Errorf("%w: the device has %d bytes, the disk needs %d", ErrTooSmall, size, d.Bytes)
	}
	if err := draft.begin(ctx); err != nil {
		draft.Discard()
		return nil, fmt.Errorf("clearing the disk: %w", err)
	}
	return draft, nil
}

// begin marks the device before it changes anything else.
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

// zero deallocates a range of the storage, or writes zeros. The range then reads as zeros.
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

// WriteAt implements io.WriterAt. It holds back the first HeadBytes, which Commit writes to the device.
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

// ReadAt implements io.ReaderAt. It also returns bytes that are held back.
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

// Truncate has no effect, because a device has a fixed size. It returns ErrTooSmall if the device is smaller.
func (d *Draft) Truncate(size int64) error {
	if size > d.size {
		return fmt.Errorf("%w: the device has %d bytes, the disk needs %d", ErrTooSmall, d.size, size)
	}
	return nil
}

// Commit makes the content durable and then marks the disk as complete.
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

// Discard leaves the disk incomplete. It has no effect after Commit.
func (d *Draft) Discard() { _ = d.device.Close() }

// acquireDevice locks a device for one open file. Byte-range locks do not work, because they belong to a device
// node and each container has its own node. This lock belongs to the device, but only on this host.
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
