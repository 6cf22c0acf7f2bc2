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
	type result struct {
		status int
		err    error
		// of is the resource. The default is machines.
		of string
	}
	ok := result{status: 200}
	for name, tc := range map[string]struct {
		results []result
		problem string
		calls   int
	}{
		"responds":                  {[]result{ok, ok}, "", 0},
		"refuses connections":       {[]result{ok, {err: refused}}, "server: dial: connection refused", 1},
		"recovers":                  {[]result{{err: refused}, ok}, "", 2},
		"first problem is kept":     {[]result{{err: refused}, {err: errors.New("other")}, {status: 503}}, "server: dial: connection refused", 1},
		"overloaded":                {[]result{{status: 503}}, "server: 503 Service Unavailable", 1},
		"forbidden":                 {[]result{{status: 403}}, "server: 403 Forbidden", 1},
		"expired credentials":       {[]result{{status: 401}}, "server: 401 Unauthorized", 1},
		"expired resource version":  {[]result{{status: 410}}, "", 0},
		"conflict is a response":    {[]result{{err: refused}, {status: 409}}, "", 2},
		"only one of two recovers":  {[]result{{err: refused}, {err: refused, of: "machinesets"}, ok}, "server: dial: connection refused", 1},
		"both recover":              {[]result{{err: refused}, {err: refused, of: "machinesets"}, ok, {status: 200, of: "machinesets"}}, "", 2},
		"another resource responds": {[]result{{err: refused}, {status: 200, of: "machinesets"}}, "server: dial: connection refused", 1},
		"canceled":                  {[]result{{err: context.Canceled}}, "", 0},
		"canceled after a failure":  {[]result{{err: refused}, {err: context.Canceled}}, "server: dial: connection refused", 1},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			link := newLink(func() { calls++ })
			for _, a := range tc.results {
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
					t.Errorf("returned %v, %v", got, err)
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
