package image

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"os"
	"syscall"
)

// content reads the bytes behind the URL once, from the first to the last, over as many
// connections as it takes. It hashes them and tells the progress.
type content struct {
	job    *job
	ctx    context.Context
	stream *stream
	total  int64 // -1: not known
	offset int64
	hash   hash.Hash
	// err is what ended the reading, also io.EOF. Whoever reads through a decoder
	// finds here whether it was the source that failed.
	err error
}

func (j *job) open(ctx context.Context) (*content, error) {
	var first *stream
	var err error
	if j.url.Scheme == "file" {
		first, err = j.openFile()
	} else {
		first, err = j.connect(ctx, 0, "")
	}
	if err != nil {
		return nil, err
	}
	c := &content{job: j, ctx: ctx, stream: first, total: first.total, hash: sha256.New()}
	c.tell()
	return c, nil
}

// openFile opens the file of a file URL, and nothing that only looks like one: a pipe
// or a device might never end.
func (j *job) openFile() (*stream, error) {
	file, err := os.OpenFile(j.url.Path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		e := j.unavailable("%v", err)
		e.Cause = err
		return nil, e
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = j.rejected("it is not a regular file")
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &stream{ReadCloser: file, total: info.Size()}, nil
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	for c.err == nil {
		n, err := c.stream.Read(p)
		c.advance(p[:n])
		switch {
		case err == io.EOF:
			c.err = io.EOF
		case err != nil:
			c.err = c.resume(err)
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, c.err
}

func (c *content) advance(p []byte) {
	if len(p) == 0 {
		return
	}
	_, _ = c.hash.Write(p) // never fails
	c.offset += int64(len(p))
	c.job.patience.reached(c.offset)
	c.tell()
}

func (c *content) tell() { c.job.progress(c.offset, max(c.total, 0)) }

// resume connects again after a failure, to go on at the same byte. An error that is
// passing leaves one way: to start over.
func (c *content) resume(failure error) error {
	if c.job.url.Scheme == "file" {
		return fmt.Errorf("%s: %w", c.job.subject, failure)
	}
	err := c.job.transport(failure)
	for c.stream.etag != "" && c.offset > 0 && isPassing(err) && !isLost(err) {
		if c.job.again(c.ctx, err) != nil {
			return err // the attempts end with the patience
		}
		var next *stream
		if next, err = c.job.connect(c.ctx, c.offset, c.stream.etag); err == nil {
			_ = c.stream.Close()
			c.stream = next
			return nil
		}
	}
	return err
}

// failed is the error that ended the reading, nil if none did so far.
func (c *content) failed() error {
	if c.err == io.EOF {
		return nil
	}
	return c.err
}

// rest reads what a decoder left, so that the hash is of everything.
func (c *content) rest() error {
	_, err := io.Copy(io.Discard, c)
	return err
}

// Close implements io.Closer.
func (c *content) Close() error { return c.stream.Close() }
