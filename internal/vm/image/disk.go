package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// blockSize is the number of bytes that are read and written at a time.
	blockSize = 1 << 20
	// holeSize is the granularity of holes in the file, in bytes.
	holeSize = 64 << 10
	// How far back a compressed stream may refer, in bytes, which determines the memory of the decoder. For zstd,
	// the format recommends that decoders support 8 MiB; this value is the window of --ultra --long=27. For xz, it
	// is the window of the highest preset. The window of gzip is 32 KiB.
	maxZstdWindow = 128 << 20
	maxXZWindow   = 64 << 20
)

// The first bytes of each format.
const (
	magicQCOW2 = "QFI\xfb"
	magicGzip  = "\x1f\x8b\x08"
	magicXZ    = "\xfd7zXZ\x00"
	magicZstd  = "\x28\xb5\x2f\xfd"
	// skippableZstd follows a byte from 0x50 to 0x5f.
	skippableZstd = "\x2a\x4d\x18"
)

// draft is a file or a device that becomes complete with Commit: a *disk.Partial or a *disk.Draft.
type draft interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Name() string
	Commit() error
	Discard()
}

// create starts to write the disk.
func (t Target) create(ctx context.Context) (draft, error) {
	if t.device() {
		return disk.Disk{Path: t.Path, Bytes: uint64(max(0, t.Bytes))}.Draft(ctx)
	}
	return disk.CreatePartial(t.Path, 0o600)
}

func (j *job) writeDisk(ctx context.Context, target Target) error {
	from, err := j.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := target.create(ctx)
	if err != nil {
		return j.storage(err)
	}
	defer to.Discard()
	if err := j.fill(ctx, to, target, from); err != nil {
		return err
	}
	return j.commit(to)
}

// fill writes the content of the disk.
func (j *job) fill(ctx context.Context, to draft, target Target, from *content) error {
	decoded, err := j.decode(from)
	if err != nil {
		return err
	}
	defer decoded.close()
	if decoded.qcow2 {
		return j.fillFromQCOW2(ctx, to, target, decoded, from)
	}
	if decoded.plain && target.Bytes > 0 && from.total > target.Bytes {
		return j.tooLarge(from.total, target.Bytes)
	}
	size, err := j.writeSparse(to, decoded, from, target.Bytes)
	if err != nil {
		return err
	}
	if err := to.Truncate(diskSize(target, size)); err != nil {
		return j.storage(err)
	}
	return nil
}

// writeSparse writes and verifies everything that is read, up to limit bytes, and returns the number of bytes.
func (j *job) writeSparse(to io.WriterAt, decoded *decoded, from *content, limit int64) (int64, error) {
	size, err := copySparse(to, decoded, limit)
	if err == nil {
		err = from.drain()
	}
	var readErr *readError
	switch {
	case from.failed() != nil:
		return 0, from.failed()
	case errors.Is(err, errLimit):
		return 0, j.rejected("it is larger than the disk, which has %d bytes", limit)
	case errors.As(err, &readErr):
		return 0, j.rejected("it cannot be decompressed: %v", readErr.error)
	case err != nil:
		return 0, j.storage(err)
	}
	return size, j.verify(from.hash)
}

func (j *job) tooLarge(size, disk int64) error {
	return j.rejected("it has %d bytes, but the disk has only %d bytes", size, disk)
}

// diskSize returns the requested size, or the size of the image rounded up to whole sectors if no size is
// requested.
func diskSize(target Target, image int64) int64 {
	const sector = 512
	if target.Bytes > 0 {
		return target.Bytes
	}
	return (image + sector - 1) / sector * sector
}

// decoded is an image after decompression.
type decoded struct {
	*bufio.Reader
	close func()
	plain bool // the image was not compressed
	qcow2 bool // a QCOW2 file instead of the content of the disk
}

// decode detects the format of the image, and rejects content that is not a disk.
func (j *job) decode(from *content) (*decoded, error) {
	d, err := j.decompressed(from)
	if err != nil {
		return nil, err
	}
	start, err := d.Peek(formatStart)
	d.qcow2 = j.format != vmpb.InitialImage_FORMAT_RAW && bytes.HasPrefix(start, []byte(magicQCOW2))
	problem := ""
	if err == nil || err == io.EOF { // otherwise, reading fails in the same way
		problem = d.problem(start, j.format)
	}
	switch {
	case from.failed() != nil:
		err = from.failed()
	case problem != "":
		err = j.rejected("%s", problem)
	default:
		return d, nil
	}
	d.close()
	return nil, err
}

// decompressed starts to read the content of the image.
func (j *job) decompressed(from *content) (*decoded, error) {
	raw := bufio.NewReaderSize(from, blockSize)
	d := &decoded{Reader: raw, close: func() {}, plain: true}
	if j.format != vmpb.InitialImage_FORMAT_UNKNOWN {
		return d, nil
	}
	plain, closer, err := decompress(raw)
	switch {
	case from.failed() != nil:
		return nil, from.failed()
	case err != nil:
		return nil, j.rejected("it cannot be decompressed: %v", err)
	case plain != nil:
		return &decoded{Reader: bufio.NewReaderSize(plain, blockSize), close: closer}, nil
	}
	return d, nil
}

// decompress returns the content of a compressed file, or nil if the file is not compressed. If it returns an
// error, the caller does not need to close anything.
func decompress(from *bufio.Reader) (plain io.Reader, closer func(), err error) {
	start, _ := from.Peek(len(magicXZ)) // fewer bytes do not match
	switch {
	case begins(magicGzip)(start):
		reader, err := gzip.NewReader(from)
		if err != nil {
			return nil, nil, err
		}
		return reader, func() { _ = reader.Close() }, nil
	case begins(magicXZ)(start):
		reader, err := xz.NewReader(from, maxXZWindow) // applies to every block
		return reader, func() {}, err
	case isZstd(start):
		reader, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, err
		}
		return reader, reader.Close, nil
	default:
		return nil, nil, nil
	}
}

// errLimit means that there is more data than the limit allows.
var errLimit = errors.New("more than the limit")

// readError is an error of the reader, as opposed to the writer.
type readError struct{ error }

// Unwrap returns the reader's error.
func (e *readError) Unwrap() error { return e.error }

// copySparse copies to the same offsets of an empty file, and skips zeros. It returns the number of bytes that it
// read; the file may be shorter. A limit of 0 means no limit.
func copySparse(to io.WriterAt, from io.Reader, limit int64) (int64, error) {
	block := make([]byte, blockSize)
	var offset int64
	for {
		n, err := readBlock(from, block)
		if limit > 0 && offset+int64(n) > limit {
			return offset, errLimit
		}
		if writeErr := writeData(to, block[:n], offset); writeErr != nil {
			return offset, writeErr
		}
		offset += int64(n)
		if err == io.EOF {
			return offset, nil
		}
		if err != nil {
			return offset, &readError{err}
		}
	}
}

// readBlock fills the block as far as possible. It cannot use io.ReadFull, which returns io.ErrUnexpectedEOF at
// the end of the input: decoders return the same error for a truncated file.
func readBlock(from io.Reader, block []byte) (n int, err error) {
	for n < len(block) && err == nil {
		var got int
		got, err = from.Read(block[n:])
		n += got
	}
	return n, err
}

var zeros [holeSize]byte

// writeData writes the parts of block that contain data.
func writeData(to io.WriterAt, block []byte, offset int64) error {
	for len(block) > 0 {
		hole := block[:min(holeSize, len(block))]
		if !bytes.Equal(hole, zeros[:len(hole)]) {
			if _, err := to.WriteAt(hole, offset); err != nil {
				return err
			}
		}
		block, offset = block[len(hole):], offset+int64(len(hole))
	}
	return nil
}
