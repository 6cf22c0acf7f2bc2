package follow

import (
	"cmp"
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
		// of is the resource; empty is machines.
		of string
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
		"one is not all":          {[]answer{{err: refused}, {err: refused, of: "machinesets"}, ok}, "server: dial: connection refused", 1},
		"all are back":            {[]answer{{err: refused}, {err: refused, of: "machinesets"}, ok, {status: 200, of: "machinesets"}}, "", 2},
		"another does not help":   {[]answer{{err: refused}, {status: 200, of: "machinesets"}}, "server: dial: connection refused", 1},
		"we have had enough":      {[]answer{{err: context.Canceled}}, "", 0},
		"we have, but it was bad": {[]answer{{err: refused}, {err: context.Canceled}}, "server: dial: connection refused", 1},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			link := newLink(func() { calls++ })
			for _, a := range tc.answers {
				ctx, cancel := context.WithCancel(t.Context())
				if errors.Is(a.err, context.Canceled) {
					cancel()
				}
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server/below/apis/machine.sapcloud.io/v1alpha1/namespaces/default/"+cmp.Or(a.of, "machines"), http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				response := &http.Response{StatusCode: a.status, Body: http.NoBody}
				response.Status = map[int]string{503: "503 Service Unavailable", 403: "403 Forbidden", 401: "401 Unauthorized"}[a.status]
				got, err := link.wrap(roundTripper(func(*http.Request) (*http.Response, error) { return response, a.err })).RoundTrip(request)
				if got != response || !errors.Is(err, a.err) {
					t.Errorf("passes on %v, %v", got, err)
				}
				_ = got.Body.Close() // empty
				cancel()
			}
			if link.problem() != tc.problem || calls != tc.calls {
				t.Errorf("problem %q, %d calls; want %q, %d", link.problem(), calls, tc.problem, tc.calls)
			}
		})
	}
}
