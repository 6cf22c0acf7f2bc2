package rollout

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"testing"
)

func TestLink(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	type answer struct {
		status int
		err    error
	}
	ok := answer{status: 200}
	for name, tc := range map[string]struct {
		answers []answer
		problem string
		calls   int
	}{
		"answers":                 {[]answer{ok, ok}, "", 0},
		"refuses":                 {[]answer{ok, {err: refused}}, "server: dial: connection refused", 1},
		"comes back":              {[]answer{{err: refused}, ok}, "", 2},
		"first problem is kept":   {[]answer{{err: refused}, {err: errors.New("other")}, {status: 503}}, "server: dial: connection refused", 1},
		"overloaded":              {[]answer{{status: 503}}, "server: 503 Service Unavailable", 1},
		"forbids":                 {[]answer{{status: 403}}, "server: 403 Forbidden", 1},
		"credentials ran out":     {[]answer{{status: 401}}, "server: 401 Unauthorized", 1},
		"too old a version":       {[]answer{{status: 410}}, "", 0},
		"conflict is an answer":   {[]answer{{err: refused}, {status: 409}}, "", 2},
		"we have had enough":      {[]answer{{err: context.Canceled}}, "", 0},
		"we have, but it was bad": {[]answer{{err: refused}, {err: context.Canceled}}, "server: dial: connection refused", 1},
	} {
		t.Run(name, func(t *testing.T) {
			link, calls := &Link{}, 0
			link.onChange(func() { calls++ })
			for _, a := range tc.answers {
				ctx, cancel := context.WithCancel(t.Context())
				if errors.Is(a.err, context.Canceled) {
					cancel()
				}
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server/api", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				response := &http.Response{StatusCode: a.status, Body: http.NoBody}
				response.Status = map[int]string{503: "503 Service Unavailable", 403: "403 Forbidden", 401: "401 Unauthorized"}[a.status]
				got, err := link.Wrap(roundTripper(func(*http.Request) (*http.Response, error) { return response, a.err })).RoundTrip(request)
				if got != response || !errors.Is(err, a.err) {
					t.Errorf("passes on %v, %v", got, err)
				}
				_ = got.Body.Close() // empty
				cancel()
			}
			if link.Problem() != tc.problem || calls != tc.calls {
				t.Errorf("problem %q, %d calls; want %q, %d", link.Problem(), calls, tc.problem, tc.calls)
			}
		})
	}
}
