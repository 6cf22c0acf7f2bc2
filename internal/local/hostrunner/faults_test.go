package hostrunner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// apiFault is a fault of an API server, or of the network, that affects requests of a host.
type apiFault struct {
	name string
	// every is the frequency: one in so many requests is affected.
	every int64
	// watches selects whether watches are affected, or all other requests.
	watches bool
	// answer responds instead of the API server.
	answer func(request *http.Request, next http.RoundTripper) (*http.Response, error)

	asked, struck atomic.Int64
}

var apiFaults = []*apiFault{
	{name: "answers half a second late", every: 2, answer: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		select {
		case <-time.After(500 * time.Millisecond):
		case <-r.Context().Done():
		}
		return response, err
	}},
	{name: "answers 409 Conflict", every: 3, answer: refused(http.StatusConflict, metav1.StatusReasonConflict)},
	{name: "answers 429 Too Many Requests", every: 3, answer: refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)},
	{name: "answers 500, and does nothing", every: 3, answer: refused(http.StatusInternalServerError, metav1.StatusReasonInternalError)},
	{name: "answers 500 to what it does", every: 3, answer: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if response, err := next.RoundTrip(r); err == nil {
			response.Body.Close()
		}
		return refused(http.StatusInternalServerError, metav1.StatusReasonInternalError)(r, next)
	}},
	{name: "breaks connections", every: 3, answer: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if response, err := next.RoundTrip(r); err == nil {
			response.Body.Close()
		}
		return nil, errors.New("connection reset by peer")
	}},
	{name: "answers with half a body", every: 3, answer: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return nil, err
		}
		response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), brokenReader{}))
		return response, nil
	}},
	{name: "ends watches with 410 Gone", every: 2, watches: true, answer: refused(http.StatusGone, metav1.StatusReasonExpired)},
	{name: "ends watches amid an event", every: 2, watches: true, answer: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil {
			body := response.Body
			response.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(body, 300), brokenReader{}), body}
		}
		return response, err
	}},
}

// brokenReader is a connection that breaks.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// refused responds with an error without forwarding the request.
func refused(code int, reason metav1.StatusReason) func(*http.Request, http.RoundTripper) (*http.Response, error) {
	return func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
		text := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"simulated","reason":%q,"code":%d}`, reason, code)
		return &http.Response{
			Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
		}, nil
	}
}

// before adds the fault to a handler that forwards to an API server.
func (f *apiFault) before(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if watches := r.URL.Query().Get("watch") != ""; watches != f.watches || f.asked.Add(1)%f.every != 0 {
			return next.RoundTrip(r)
		}
		f.struck.Add(1)
		return f.answer(r, next)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// TestHost_ToleratesAPIFaults checks that, despite a faulty API server, a host registers itself, runs each Pod in one process,
// reports its status, and removes it after deletion.
func TestHost_ToleratesAPIFaults(t *testing.T) {
	tier.All(t)
	for _, fault := range apiFaults {
		t.Run(fault.name, func(t *testing.T) {
			b := newTestHost(t)
			t.Attr("fault", "a host's API server "+fault.name)
			b.config.REST.Wrap(fault.before)
			b.start()
			b.eventually("the Node", b.nodeReady)
			pod := b.pod("vm", "run", func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/test"} })
			b.awaitReady("vm")
			b.delete("vm", metav1.DeleteOptions{})
			last := b.await("vm", corev1.PodSucceeded)
			if n := last.Status.ContainerStatuses[0].RestartCount; n != 0 {
				t.Errorf("the process was started again: %d times", n)
			}
			if _, err := b.client.CoreV1().Pods(b.Namespace).Patch(t.Context(), "vm", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			b.awaitGone(pod)
			if fault.struck.Load() == 0 {
				t.Error("no request was concerned")
			}
			t.Attr("outcome", fmt.Sprintf("a Pod ran in one process, ended and went; %d requests of %d struck", fault.struck.Load(), fault.asked.Load()))
		})
	}
}
