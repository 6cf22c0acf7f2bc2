package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// asked is a request that the server received.
type asked struct{ Range, IfMatch string }

// flaky cuts off each of the first responses after some bytes, and records all requests.
type flaky struct {
	content []byte
	cuts    int
	etag    func(request int) string
	got     []asked
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.got = append(f.got, asked{r.Header.Get("Range"), r.Header.Get("If-Match")})
	w.Header().Set("ETag", f.etag(len(f.got)))
	if len(f.got) > f.cuts {
		http.ServeContent(w, r, "", modified, bytes.NewReader(f.content))
		return
	}
	from := 0
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(f.content)-1, len(f.content)))
		w.Header().Set("Content-Length", strconv.Itoa(len(f.content)-from))
		w.WriteHeader(http.StatusPartialContent)
	}
	cut(w, f.content[from:from+mib], strconv.Itoa(len(f.content)-from))
}

func TestDownload_IsResumed(t *testing.T) {
	tests := map[string]struct {
		reason string
		etag   func(request int) string
		want   []asked
	}{
		"strong ETag": {
			"the download resumes where it stopped", func(int) string { return `"1"` },
			[]asked{{}, {"bytes=1048576-", `"1"`}, {"bytes=2097152-", `"1"`}},
		},
		"weak ETag": {
			"a weak ETag does not guarantee the same bytes", func(int) string { return `W/"1"` },
			[]asked{{}, {}, {}},
		},
		"other content": {
			"the server responds with 412, and the download starts over",
			func(request int) string { return fmt.Sprintf("%q", fmt.Sprint(max(request, 2))) },
			[]asked{{}, {"bytes=1048576-", `"2"`}, {"bytes=2097152-", `"2"`}, {}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := &flaky{content: diskContent(), cuts: 2, etag: test.etag}
			path := filepath.Join(t.TempDir(), "disk.img")
			source := Source{URL: serveBy(t, server.ServeHTTP), Checksum: sum(server.content)}
			must(t, WriteDisk(t.Context(), source, Target{Path: path, Bytes: 4 * mib}, Options{Access: local}))
			wantContent(t, path, padded(server.content, 4*mib))
			if diff := cmp.Diff(test.want, server.got); diff != "" {
				t.Errorf("%s; requests (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

// roundTrip is a transport without a network, so that a test can control the time.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(code int, body io.Reader) *http.Response {
	return &http.Response{
		StatusCode: code, Status: fmt.Sprint(code, " ", http.StatusText(code)),
		Header: http.Header{}, Body: io.NopCloser(body), ContentLength: -1,
	}
}

// fetchFrom downloads over the transport and returns how long that took.
func fetchFrom(t *testing.T, transport roundTrip, timeout time.Duration) (time.Duration, error) {
	begin := time.Now()
	err := Fetch(t.Context(), Source{URL: "http://host/kernel"}, filepath.Join(t.TempDir(), "kernel"),
		Options{Client: &http.Client{Transport: transport}, RetryTimeout: timeout})
	return time.Since(begin), err
}

func TestDownload_RetryTimeout(t *testing.T) {
	const forEver = 1 << 30
	refused := errors.New("connection refused")
	tests := map[string]struct {
		code      int // 0 means no response
		failures  int
		timeout   time.Duration
		want      error
		attempts  int
		atMost    time.Duration
		asLongAs  time.Duration
		wantCause error
	}{
		"temporarily no response": {code: 0, failures: 3, attempts: 4, asLongAs: time.Second, atMost: 5 * time.Second},
		"temporary server error":  {code: 503, failures: 3, attempts: 4, asLongAs: time.Second, atMost: 5 * time.Second},
		"no response":             {code: 0, failures: forEver, want: Unavailable, wantCause: refused, attempts: 10, asLongAs: 20 * time.Second, atMost: 30 * time.Second},
		"server error":            {code: 500, failures: forEver, want: Unavailable, attempts: 10, asLongAs: 20 * time.Second, atMost: 30 * time.Second},
		"a longer timeout":        {code: 429, failures: forEver, timeout: time.Minute, want: Unavailable, attempts: 16, asLongAs: 50 * time.Second, atMost: time.Minute},
		"no retries":              {code: 500, failures: forEver, timeout: -1, want: Unavailable, attempts: 1},
		"permanent error":         {code: 403, failures: forEver, want: Unavailable, attempts: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				took, err := fetchFrom(t, func(*http.Request) (*http.Response, error) {
					attempts++
					switch {
					case attempts > test.failures:
						return respond(http.StatusOK, bytes.NewReader(diskContent())), nil
					case test.code == 0:
						return nil, refused
					}
					return respond(test.code, http.NoBody), nil
				}, test.timeout)
				if !errors.Is(err, test.want) || !errors.Is(err, test.wantCause) && test.wantCause != nil {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if attempts != test.attempts || took < test.asLongAs || took > test.atMost {
					t.Errorf("%d attempts in %v, want %d in %v to %v", attempts, took, test.attempts, test.asLongAs, test.atMost)
				}
			})
		})
	}
}

// Retried failures are reported. The final failure is only returned.
func TestDownload_OnRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("connection refused")
		var reported []error
		attempts := 0
		client := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			switch attempts++; attempts {
			case 1:
				return nil, refused
			case 2:
				return respond(http.StatusBadGateway, http.NoBody), nil
			case 3:
				return respond(http.StatusOK, io.MultiReader(bytes.NewReader(diskContent()), iotest.ErrReader(io.ErrUnexpectedEOF))), nil
			}
			return respond(http.StatusForbidden, http.NoBody), nil
		})}
		err := Fetch(t.Context(), Source{URL: "http://host/kernel"}, filepath.Join(t.TempDir(), "kernel"),
			Options{Client: client, OnRetry: func(err error) { reported = append(reported, err) }})
		if len(reported) != 3 || !errors.Is(reported[0], refused) || !errors.Is(reported[1], Unavailable) || !errors.Is(reported[2], io.ErrUnexpectedEOF) {
			t.Errorf("reported %v", reported)
		}
		if !errors.Is(err, Unavailable) || attempts != 4 {
			t.Errorf("got %v after %d attempts", err, attempts)
		}
	})
}

// silent never sends any bytes.
type silent struct{ request *http.Request }

func (s silent) Read([]byte) (int, error) {
	<-s.request.Context().Done()
	return 0, s.request.Context().Err()
}

func TestDownload_SilentServerFails(t *testing.T) {
	tests := map[string]roundTrip{
		"no response": func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"no content": func(r *http.Request) (*http.Response, error) { return respond(http.StatusOK, silent{r}), nil },
		"no more content": func(r *http.Request) (*http.Response, error) {
			return respond(http.StatusOK, io.MultiReader(bytes.NewReader(diskContent()), silent{r})), nil
		},
	}
	for name, transport := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, err := fetchFrom(t, transport, -1)
				if !errors.Is(err, Unavailable) || !errors.Is(err, errStalled) || took != stallLimit {
					t.Errorf("got %v after %v, want no data for %v", err, took, stallLimit)
				}
			})
		})
	}
}

// slow sends single bytes at intervals.
type slow struct{ left int }

func (s *slow) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(stallLimit - time.Second)
	s.left--
	return copy(p, "x"), nil
}

func TestDownload_SlowServerSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took, err := fetchFrom(t, func(*http.Request) (*http.Response, error) {
			return respond(http.StatusOK, &slow{left: 10}), nil
		}, -1)
		if want := 10 * (stallLimit - time.Second); err != nil || took != want {
			t.Errorf("got %v after %v, want success after %v", err, took, want)
		}
	})
}
