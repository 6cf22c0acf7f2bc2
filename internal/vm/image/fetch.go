package image

import (
	"context"
	"io"
	"os"
)

// maxFile is more than any boot file has, and little enough for a folder in memory.
const maxFile = 2 << 30

// Fetch writes the bytes behind the URL to the file at path, and replaces the one that
// is there. The folder must exist. At most 2 GiB are taken.
//
// Errors: *Error; the context's cause; and those of the file system, but for the lack of
// space, which is an *Error.
func Fetch(ctx context.Context, source Source, path string, options Options) error {
	j, err := newJob("file", source, options)
	if err != nil {
		return err
	}
	return j.try(ctx, func(ctx context.Context) error { return j.fetch(ctx, path) })
}

func (j *job) fetch(ctx context.Context, path string) error {
	from, err := j.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if from.total > maxFile {
		return j.rejected("it has %d bytes, and at most %d are taken", from.total, int64(maxFile))
	}
	to, err := createPartial(path, 0o644)
	if err != nil {
		return j.storage(err)
	}
	defer to.discard()
	if err := j.copyBytes(to.File, from); err != nil {
		return err
	}
	if err := to.commit(); err != nil {
		return j.storage(err)
	}
	return nil
}

func (j *job) copyBytes(to *os.File, from *content) error {
	if file, ok := from.stream.ReadCloser.(*os.File); ok && j.checksum == nil {
		// From file to file the kernel copies, or shares the blocks.
		if _, err := io.Copy(to, file); err != nil {
			return j.storage(err)
		}
		return nil
	}
	written, err := io.Copy(to, io.LimitReader(from, maxFile+1))
	switch {
	case from.failed() != nil:
		return from.failed()
	case err != nil:
		return j.storage(err)
	case written > maxFile:
		return j.rejected("it has more than the %d bytes that are taken", int64(maxFile))
	}
	return j.verify(from.hash)
}
