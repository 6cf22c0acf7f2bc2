package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Target is the disk to write.
type Target struct {
	// Path is the file to make, in a folder that exists. Beside it, Path.partial and
	// Path.qcow2.partial are written in between. Whoever calls keeps others away from
	// all three.
	Path string
	// Bytes is the size of the disk; the file is sparse. An image that needs more is
	// refused, what it leaves is zero. 0: the size that the image has.
	Bytes int64
}

// WriteDisk makes a disk out of an image. The file at target.Path must not be there: a
// disk that may have run is never written, and the error is fs.ErrExist.
//
// Other errors: *Error; the context's cause; and those of the file system, but for the
// lack of space, which is an *Error. After an error there is no file of that name.
func WriteDisk(ctx context.Context, source Source, target Target, options Options) error {
	j, err := newJob("image", source, options)
	if err != nil {
		return err
	}
	if target.Bytes < 0 {
		return fmt.Errorf("%s: a disk of %d bytes", j.subject, target.Bytes)
	}
	switch _, err := os.Lstat(target.Path); {
	case err == nil:
		return fmt.Errorf("%s: the disk is there already: %w", j.subject, &fs.PathError{
			Op: "create", Path: target.Path, Err: fs.ErrExist,
		})
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// Unlike the disk's, this leftover would stay if the image is now a raw one.
	if err := os.Remove(target.Path + suffixQCOW2 + suffixPartial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return j.try(ctx, func(ctx context.Context) error { return j.writeDisk(ctx, target) })
}

func (j *job) writeDisk(ctx context.Context, target Target) error {
	from, err := j.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	disk, err := createPartial(target.Path, 0o600)
	if err != nil {
		return j.storage(err)
	}
	defer disk.discard()
	if err := j.fill(ctx, disk, target, from); err != nil {
		return err
	}
	if err := disk.commit(); err != nil {
		return j.storage(err)
	}
	return nil
}

// fill writes the whole disk.
func (j *job) fill(ctx context.Context, disk *partial, target Target, from *content) error {
	decoded, err := j.decode(from)
	if err != nil {
		return err
	}
	defer decoded.close()
	if decoded.qcow2 {
		return j.fillFromQCOW2(ctx, disk, target, decoded, from)
	}
	if decoded.plain && target.Bytes > 0 && from.total > target.Bytes {
		return j.tooLarge(from.total, target.Bytes)
	}
	size, err := j.writeSparse(disk.File, decoded, from, target.Bytes)
	if err != nil {
		return err
	}
	if err := disk.Truncate(diskSize(target, size)); err != nil {
		return j.storage(err)
	}
	return nil
}

// writeSparse writes everything that comes, at most limit bytes, and checks it. It
// returns how many bytes there were.
func (j *job) writeSparse(to *os.File, decoded *decoded, from *content, limit int64) (int64, error) {
	size, err := copySparse(to, decoded, limit)
	if err == nil {
		err = from.rest()
	}
	var readErr *readError
	switch {
	case from.failed() != nil:
		return 0, from.failed()
	case errors.Is(err, errLimit):
		return 0, j.rejected("it is larger than the disk of %d bytes", limit)
	case errors.As(err, &readErr):
		return 0, j.rejected("it cannot be decompressed: %v", readErr.err)
	case err != nil:
		return 0, j.storage(err)
	}
	return size, j.verify(from.hash)
}

func (j *job) tooLarge(size, disk int64) error {
	return j.rejected("it has %d bytes, more than the disk of %d bytes", size, disk)
}

// diskSize is what the user wants, or whole sectors for the image.
func diskSize(target Target, image int64) int64 {
	const sector = 512
	if target.Bytes > 0 {
		return target.Bytes
	}
	return (image + sector - 1) / sector * sector
}

// decoded is an image without its compression.
type decoded struct {
	*bufio.Reader
	close func()
	// plain is set if there was no compression.
	plain bool
	// qcow2 is set if the bytes are a QCOW2 file, else they are those of the disk.
	qcow2 bool
}

// decode finds out what the image is.
func (j *job) decode(from *content) (*decoded, error) {
	raw := bufio.NewReaderSize(from, blockSize)
	d := &decoded{Reader: raw, close: func() {}, plain: true}
	if j.format == vmpb.InitialImage_FORMAT_UNKNOWN {
		plain, closer, err := decompress(raw)
		if from.failed() != nil {
			return nil, from.failed()
		}
		if err != nil {
			return nil, j.rejected("it cannot be decompressed: %v", err)
		}
		if plain != nil {
			d = &decoded{Reader: bufio.NewReaderSize(plain, blockSize), close: closer}
		}
	}
	d.qcow2 = j.format != vmpb.InitialImage_FORMAT_RAW && beginsWith(d.Reader, magicQCOW2)
	if err := from.failed(); err != nil {
		d.close()
		return nil, err
	}
	if j.format == vmpb.InitialImage_FORMAT_QCOW2 && !d.qcow2 {
		return nil, j.rejected("it is not in the QCOW2 format")
	}
	return d, nil
}
