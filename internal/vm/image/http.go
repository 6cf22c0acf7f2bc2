package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const maxRedirects = 10

// stream is content from some offset on.
type stream struct {
	io.ReadCloser
	// total is the size of all content; -1 if that is not known.
	total int64
	// etag names this version of the content, if the server can continue it; else "".
	etag string
}

var errStalled = fmt.Errorf("no byte came for %v", stallLimit)

// connect asks for all content, or with an etag for what comes from offset on.
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
	content := &stream{ReadCloser: watch, total: -1, etag: strongETag(response)}
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
	// Without it the client would undo a compression of its own asking, and the
	// length, the checksum and the ranges would be those of something else.
	request.Header.Set("Accept-Encoding", "identity")
	if offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		request.Header.Set("If-Match", etag)
	}
	return j.client.Do(request)
}

// accept looks at the answer's head, and reads from it how large the content is.
func (j *job) accept(response *http.Response, content *stream, offset int64) error {
	switch code := response.StatusCode; {
	case code == http.StatusOK && offset == 0:
		content.total = response.ContentLength
		return nil
	case code == http.StatusPartialContent && offset > 0 && continues(response, offset):
		if response.ContentLength >= 0 {
			content.total = offset + response.ContentLength
		}
		return nil
	case offset > 0 && code < http.StatusInternalServerError:
		e := j.passing(nil, "the server cannot continue the content that it began (%s)", response.Status)
		e.lost = true
		return e
	case code >= http.StatusInternalServerError, code == http.StatusRequestTimeout,
		code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return j.passing(nil, "the server answered %s", response.Status)
	default:
		return j.unavailable("the server answered %s", response.Status)
	}
}

// continues reports whether the part begins where it should.
func continues(response *http.Response, offset int64) bool {
	return strings.HasPrefix(response.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset))
}

// strongETag is "" where the content cannot be continued: a weak ETag does not promise
// the same bytes.
func strongETag(response *http.Response) string {
	etag := response.Header.Get("ETag")
	if !strings.HasPrefix(etag, `"`) {
		return ""
	}
	return etag
}

// transport explains why there is no answer, or no more of it.
func (j *job) transport(err error) error {
	var ours *Error
	if errors.As(err, &ours) {
		return ours // of a redirect
	}
	// The client's error repeats the URL, and with it what may be secret.
	var client *url.Error
	if errors.As(err, &client) {
		err = client.Err
	}
	text := err.Error()
	if strings.Contains(text, "Location header") {
		return j.unavailable("the server redirects to something that is no URL")
	}
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		e := j.unavailable("%s", text)
		e.Cause = err
		return e
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		text = "the server ended the connection before the end of the content"
	}
	return j.passing(err, "%s", text)
}

// withRedirects returns a client that follows some redirects, within HTTP.
func (j *job) withRedirects(base *http.Client) *http.Client {
	if base == nil {
		base = http.DefaultClient
	}
	client := *base
	client.CheckRedirect = func(next *http.Request, before []*http.Request) error {
		if scheme := next.URL.Scheme; scheme != "http" && scheme != "https" {
			return j.rejected("the server redirects out of HTTP, to %.20q", scheme)
		}
		if len(before) > maxRedirects {
			return j.unavailable("the server redirected more than %d times", maxRedirects)
		}
		return nil
	}
	return &client
}

// watchedBody is an answer's content whose sender may not be silent for too long.
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

// explain puts the stall in the place of the cancellation that it led to.
func (w *watchedBody) explain(err error) error {
	if err != nil && err != io.EOF && context.Cause(w.ctx) == errStalled {
		return errStalled
	}
	return err
}

// Close implements io.Closer. The connection is used again if all was read.
func (w *watchedBody) Close() error {
	w.timer.Stop()
	err := w.body.Close()
	w.cancel(nil)
	return err
}
