package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/confine"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
)

const (
	// maxFile is the maximum size of a boot file, in bytes.
	maxFile = 2 << 30

	maxRedirects        = 10
	defaultRetryTimeout = 30 * time.Second
	// stallLimit is how long a server may send no data.
	stallLimit = 30 * time.Second
	// The delay between attempts doubles from firstDelay to maxDelay.
	firstDelay = 250 * time.Millisecond
	maxDelay   = 5 * time.Second
)

var errStalled = fmt.Errorf("no data received for %v", stallLimit)

func (j *job) fetch(ctx context.Context, path string) error {
	from, err := j.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if from.total > maxFile {
		return j.rejected("it has %d bytes; the maximum is %d", from.total, int64(maxFile))
	}
	to, err := disk.CreatePartial(path, 0o644)
	if err != nil {
		return j.storage(err)
	}
	defer to.Discard()
	if err := j.copyBytes(to.File, from); err != nil {
		return err
	}
	start := make([]byte, formatStart)
	n, err := to.ReadAt(start, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if problem := documentProblem(start[:n]); problem != "" {
		return j.rejected("%s", problem)
	}
	return j.commit(to)
}

func (j *job) copyBytes(to *os.File, from *content) error {
	if file, ok := from.stream.ReadCloser.(*os.File); ok && !j.checksum.set() {
		// The kernel can copy or share blocks between two files.
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
		return j.rejected("it is larger than the maximum of %d bytes", int64(maxFile))
	}
	return j.verify(from.hash)
}

// content reads the bytes behind the URL once from beginning to end, over as many connections as needed. It hashes
// the bytes and reports the progress.
type content struct {
	job    *job
	ctx    context.Context
	stream *stream
	total  int64 // -1 if unknown
	offset int64
	hash   hash.Hash
	// err is the error that stopped reading, including io.EOF. Callers that read through a decoder use it to find
	// out whether the source failed.
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
	c := &content{job: j, ctx: ctx, stream: first, total: first.total, hash: j.checksum.hash()}
	c.reportProgress()
	return c, nil
}

// openFile opens the file of a file URL, below the directory in Access. It must be a regular file: reading a pipe
// or a device might never complete.
func (j *job) openFile() (*stream, error) {
	if j.access.Files == "" {
		return nil, j.rejected("file URLs are not allowed on this host")
	}
	name, err := confine.Below(j.access.Files, j.url.Path)
	if err != nil {
		return nil, j.rejected("it is not in the image directory of this host")
	}
	file, err := openBelow(j.access.Files, name)
	if failure, ok := errors.AsType[*fs.PathError](err); ok {
		err = &fs.PathError{Op: "open", Path: j.url.Path, Err: failure.Err} // with the full path
	}
	if err != nil {
		return nil, j.unavailable(err, err.Error())
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

// openBelow opens a file below the directory and follows links that stay in it.
func openBelow(directory, name string) (*os.File, error) {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	for c.err == nil {
		n, err := c.stream.Read(p)
		if n > 0 {
			_, _ = c.hash.Write(p[:n]) // never fails
			c.offset += int64(n)
			c.job.retries.reached(c.offset)
			c.reportProgress()
		}
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

func (c *content) reportProgress() { c.job.progress(c.offset, max(c.total, 0)) }

// resume reconnects after a failure and continues at the same byte. If that fails, the download must start over.
func (c *content) resume(failure error) error {
	if c.job.url.Scheme == "file" {
		return fmt.Errorf("%s: %w", c.job.subject, failure)
	}
	err := c.job.transport(failure)
	for c.stream.etag != "" && c.offset > 0 && err.retry && !err.restart {
		if !c.job.again(c.ctx, err) {
			return err
		}
		next, again := c.job.connect(c.ctx, c.offset, c.stream.etag)
		if again == nil {
			_ = c.stream.Close()
			c.stream = next
			return nil
		}
		if !errors.As(again, &err) {
			return again
		}
	}
	return err
}

// failed returns the error that stopped reading, or nil if there is none so far.
func (c *content) failed() error {
	if c.err == io.EOF {
		return nil
	}
	return c.err
}

// drain reads the data that a decoder did not read, so that everything is hashed.
func (c *content) drain() error {
	_, err := io.Copy(io.Discard, c)
	return err
}

// Close implements io.Closer.
func (c *content) Close() error { return c.stream.Close() }

// stream is the content from some offset to its end.
type stream struct {
	io.ReadCloser
	total int64  // size of the whole content, or -1 if unknown
	etag  string // version of the content; empty if the server cannot resume it
}

// connect requests the whole content or, if etag is set, the content from offset on.
func (j *job) connect(ctx context.Context, offset int64, etag string) (*stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	watch := &watchedBody{ctx: ctx, cancel: cancel}
	watch.timer = time.AfterFunc(stallLimit, func() { cancel(errStalled) })
	response, err := j.request(ctx, offset, etag)
	watch.timer.Stop()
	if err != nil {
		err = j.transport(watch.explain(err))
		cancel(nil)
		return nil, err
	}
	watch.body = response.Body
	content := &stream{ReadCloser: watch, total: -1, etag: response.Header.Get("ETag")}
	if !strings.HasPrefix(content.etag, `"`) {
		content.etag = "" // a weak ETag does not guarantee the same bytes
	}
	if err := j.accept(response, content, offset); err != nil {
		_ = watch.Close()
		return nil, err
	}
	return content, nil
}

func (j *job) request(ctx context.Context, offset int64, etag string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url.String(), nil)
	if err != nil {
		return nil, err
	}
	// Otherwise the client would request compression and undo it, and the length, checksum and ranges would apply
	// to different bytes.
	request.Header.Set("Accept-Encoding", "identity")
	if offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		request.Header.Set("If-Match", etag)
	}
	return j.client.Do(request)
}

// accept checks the response and sets the size of the content.
func (j *job) accept(response *http.Response, content *stream, offset int64) error {
	continues := strings.HasPrefix(response.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset))
	switch code := response.StatusCode; {
	case code == http.StatusOK && offset == 0:
		content.total = response.ContentLength
		return nil
	case code == http.StatusPartialContent && offset > 0 && continues:
		if response.ContentLength >= 0 {
			content.total = offset + response.ContentLength
		}
		return nil
	case offset > 0 && code < http.StatusInternalServerError:
		e := j.temporary(nil, fmt.Sprintf("the server cannot resume the download (%s)", response.Status))
		e.restart = true
		return e
	case code >= http.StatusInternalServerError, code == http.StatusRequestTimeout,
		code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return j.temporary(nil, "the server returned "+response.Status)
	default:
		return j.unavailable(nil, "the server returned "+response.Status)
	}
}

// transport converts the error of a request that got no response, or whose response was cut off.
func (j *job) transport(err error) *Error {
	var ours *Error
	if errors.As(err, &ours) {
		return ours // from a redirect
	}
	// The client's error contains the URL, which may contain secrets.
	var client *url.Error
	if errors.As(err, &client) {
		err = client.Err
	}
	if strings.Contains(err.Error(), "Location header") {
		return j.unavailable(nil, "the server redirects to an invalid URL")
	}
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		return j.unavailable(err, err.Error())
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return j.temporary(err, "the server closed the connection before the end of the content")
	}
	return j.temporary(err, err.Error())
}

// withRedirects returns a client that follows redirects to HTTP and HTTPS URLs only.
func (j *job) withRedirects(base *http.Client) *http.Client {
	client := *base
	client.CheckRedirect = func(next *http.Request, before []*http.Request) error {
		if scheme := next.URL.Scheme; scheme != "http" && scheme != "https" {
			return j.rejected("the server redirects to a URL with the scheme %.20q; only http and https are allowed", scheme)
		}
		if len(before) > maxRedirects {
			return j.unavailable(nil, fmt.Sprintf("the server redirected more than %d times", maxRedirects))
		}
		return nil
	}
	return &client
}

// watchedBody is the body of a response. It fails if the server sends nothing for stallLimit.
type watchedBody struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	body   io.ReadCloser
}

// Read implements io.Reader.
func (w *watchedBody) Read(p []byte) (int, error) {
	w.timer.Reset(stallLimit)
	n, err := w.body.Read(p)
	w.timer.Stop()
	return n, w.explain(err)
}

// explain replaces the error of a cancellation by its cause.
func (w *watchedBody) explain(err error) error {
	if err != nil && err != io.EOF && context.Cause(w.ctx) == errStalled {
		return errStalled
	}
	return err
}

// Close implements io.Closer. The connection is reused if the whole body was read.
func (w *watchedBody) Close() error {
	w.timer.Stop()
	err := w.body.Close()
	w.cancel(nil)
	return err
}

// retries spaces out the attempts of a download. It starts over whenever an attempt gets further than all earlier
// ones; since the content is finite, so is the number of attempts.
type retries struct {
	limit time.Duration
	best  int64
	since time.Time // time of the first failure since the last progress, or zero
	delay time.Duration
}

func (p *retries) reached(offset int64) {
	if offset > p.best {
		p.best, p.since, p.delay = offset, time.Time{}, 0
	}
}

// wait waits until the next attempt is due and returns true, or returns false if there are no more attempts.
func (p *retries) wait(ctx context.Context) bool {
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	p.delay = min(max(2*p.delay, firstDelay), maxDelay)
	if now.Add(p.delay).Sub(p.since) > p.limit {
		return false
	}
	select {
	case <-time.After(p.delay):
		return true
	case <-ctx.Done():
		return false
	}
}
