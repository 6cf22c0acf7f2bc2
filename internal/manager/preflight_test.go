package manager

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"

	"github.com/millwright-dev/millwright/test/support/env"
)

// reply is an API server's response to the request for our kinds.
type reply struct {
	status int
	kinds  []string
}

func (a reply) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	var body any = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(a.status), Reason: reasonFor(a.status)}
	if a.status == http.StatusOK {
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
		for _, kind := range a.kinds {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: kind})
		}
		body = list
	}
	w.WriteHeader(a.status)
	_ = json.NewEncoder(w).Encode(body) // the client sees the failure
}

func reasonFor(status int) metav1.StatusReason {
	switch status {
	case http.StatusNotFound:
		return metav1.StatusReasonNotFound
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusUnauthorized:
		return metav1.StatusReasonUnauthorized
	default:
		return metav1.StatusReasonServiceUnavailable
	}
}

// TestControlCluster_IsChecked checks what a manager requires before it starts, and the error, and how soon it
// is returned, if something is missing.
func TestControlCluster_IsChecked(t *testing.T) {
	cases := map[string]struct {
		replies  []reply  // the last one is repeated
		contains []string // empty without an error
		is       func(error) bool
		requests int32 // 0 for any number
	}{
		"all kinds":            {replies: []reply{{200, kinds}}, requests: 1},
		"more kinds":           {replies: []reply{{200, append([]string{"machines/status"}, kinds...)}}, requests: 1},
		"one kind missing":     {replies: []reply{{200, kinds[1:]}}, contains: []string{kinds[0], "install the CRDs"}, requests: 1},
		"no kinds":             {replies: []reply{{404, nil}}, contains: append([]string{"install the CRDs"}, kinds...), requests: 1},
		"unauthorized":         {replies: []reply{{401, nil}}, contains: []string{"denies access"}, is: apierrors.IsUnauthorized, requests: 1},
		"forbidden":            {replies: []reply{{403, nil}}, contains: []string{"denies access"}, is: apierrors.IsForbidden},
		"no roles at first":    {replies: []reply{{403, nil}, {403, nil}, {200, kinds}}, requests: 3},
		"unavailable at first": {replies: []reply{{503, nil}, {503, nil}, {200, kinds}}, requests: 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/apis/machine.sapcloud.io/v1alpha1" {
					t.Errorf("unexpected request for %s", r.URL.Path)
				}
				n := int(asked.Add(1))
				tc.replies[min(n, len(tc.replies))-1].write(w)
			}))
			defer server.Close()
			err := awaitControl(t.Context(), testr.New(t), &rest.Config{Host: server.URL}, kinds...)
			if (err == nil) != (len(tc.contains) == 0) {
				t.Fatalf("returned %v", err)
			}
			for _, text := range append(tc.contains, server.URL) {
				if err != nil && !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not contain %q", err, text)
				}
			}
			if tc.is != nil && !tc.is(err) {
				t.Errorf("%v is another kind of error", err)
			}
			if tc.requests > 0 && asked.Load() != tc.requests {
				t.Errorf("%d requests, want %d", asked.Load(), tc.requests)
			}
		})
	}
}

// TestControlCluster_RolesAreAwaited checks how long a manager waits while an API server rejects all requests. The time
// begins with the first rejection, because the server may start long after the manager.
func TestControlCluster_RolesAreAwaited(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	unavailable := apierrors.NewServiceUnavailable("starting")
	for name, test := range map[string]struct {
		until map[time.Duration]error // the response of the server up to a time
		want  error
		after time.Duration
	}{
		"a server that starts later":    {map[time.Duration]error{time.Minute: unavailable, time.Minute + 3*time.Second: forbidden}, nil, time.Minute + 3*time.Second},
		"a server that starts again":    {map[time.Duration]error{4 * time.Second: forbidden, 8 * time.Second: unavailable, 12 * time.Second: forbidden}, nil, 12 * time.Second},
		"a user without the permission": {map[time.Duration]error{time.Minute: unavailable, time.Hour: forbidden}, forbidden, time.Minute + rolesTimeout + pollInterval},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				err := waiting{log: testr.New(t)}.until(t.Context(), func() error {
					for _, end := range slices.Sorted(maps.Keys(test.until)) {
						if time.Since(begun) < end {
							return test.until[end]
						}
					}
					return nil
				})
				if !errors.Is(err, test.want) || time.Since(begun) != test.after {
					t.Errorf("returned %v after %s, want %v after %s", err, time.Since(begun), test.want, test.after)
				}
			})
		})
	}
}

// TestControlCluster_WaitIsCanceled checks that Ctrl-C stops the wait, and that this is not an error of the manager.
func TestControlCluster_WaitIsCanceled(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := awaitControl(ctx, testr.New(t), &rest.Config{Host: server.URL}); !errors.Is(err, context.Canceled) {
		t.Errorf("returned %v, want context.Canceled", err)
	}
	if err := Run(ctx, Config{Control: &rest.Config{Host: server.URL}}); err != nil {
		t.Errorf("the manager returned %v", err)
	}
}

// TestControlCluster_WaitIsCanceledDuringRequest checks the same during a request without a response.
func TestControlCluster_WaitIsCanceledDuringRequest(t *testing.T) {
	asked, reply := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-reply
	}))
	defer server.Close()
	defer close(reply)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, Config{Control: &rest.Config{Host: server.URL}, Log: testr.New(t)}) }()
	<-asked
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the manager returned %v", err)
		}
	case <-time.After(controlTimeout - time.Second):
		t.Error("the manager waits for the response")
	}
}

// TestControlCluster_WaitIsLogged checks that the wait is logged immediately and then every few seconds, with the server and
// the error, and that it has no time limit.
func TestControlCluster_WaitIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
		begin := time.Now()
		refused := errors.New("connection refused")
		err := waiting{log: log, server: "https://control"}.until(t.Context(), func() error {
			if time.Since(begin) < 10*time.Minute {
				return refused
			}
			return nil
		})
		if err != nil {
			t.Errorf("returned %v", err)
		}
		if took := time.Since(begin); took < 10*time.Minute || took > 10*time.Minute+pollInterval {
			t.Errorf("took %v", took)
		}
		if got, want := len(lines), int(10*time.Minute/logInterval); got != want {
			t.Errorf("%d lines, want %d", got, want)
		}
		for _, line := range lines {
			if !strings.Contains(line, "https://control") || !strings.Contains(line, refused.Error()) {
				t.Errorf("%s lacks the server or the error", line)
			}
		}
	})
}

// TestControlCluster_ShippedCRDsPass checks that the shipped CRDs pass the check.
func TestControlCluster_ShippedCRDsPass(t *testing.T) {
	if err := awaitControl(t.Context(), testr.New(t), env.New(t).Admin, kinds...); err != nil {
		t.Error(err)
	}
}
