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
	// name completes the sentence "The host's API server ...".
	name string
	// every is the frequency: one in so many requests is affected.
	every int64
	// watches selects whether watches are affected, or all other requests.
	watches bool
	// respond responds instead of the API server.
	respond func(request *http.Request, next http.RoundTripper) (*http.Response, error)

	// eligible and affected count requests.
	eligible, affected atomic.Int64
}

var apiFaults = []*apiFault{
	{name: "delays responses by half a second", every: 2, respond: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		select {
		case <-time.After(500 * time.Millisecond):
		case <-r.Context().Done():
		}
		return response, err
	}},
	{name: "returns 409 Conflict", every: 3, respond: refused(http.StatusConflict, metav1.StatusReasonConflict)},
	{name: "returns 429 Too Many Requests", every: 3, respond: refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)},
	{name: "returns 500 without processing the request", every: 3, respond: refused(http.StatusInternalServerError, metav1.StatusReasonInternalError)},
	{name: "returns 500 after processing the request", every: 3, respond: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if response, err := next.RoundTrip(r); err == nil {
			response.Body.Close()
		}
		return refused(http.StatusInternalServerError, metav1.StatusReasonInternalError)(r, next)
	}},
	{name: "resets connections", every: 3, respond: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if response, err := next.RoundTrip(r); err == nil {
			response.Body.Close()
		}
		return nil, errors.New("connection reset by peer")
	}},
	{name: "truncates response bodies", every: 3, respond: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
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
	{name: "rejects watches with 410 Gone", every: 2, watches: true, respond: refused(http.StatusGone, metav1.StatusReasonExpired)},
	{name: "closes watches in the middle of an event", every: 2, watches: true, respond: func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
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
		if watches := r.URL.Query().Get("watch") != ""; watches != f.watches || f.eligible.Add(1)%f.every != 0 {
			return next.RoundTrip(r)
		}
		f.affected.Add(1)
		return f.respond(r, next)
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
			t.Attr("fault", "The host's API server "+fault.name)
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
			if fault.affected.Load() == 0 {
				t.Error("no request was affected")
			}
			t.Attr("outcome", fmt.Sprintf("A Pod runs in exactly one process, completes, and is deleted (affected requests: %d of %d)", fault.affected.Load(), fault.eligible.Load()))
		})
	}
}
