package manager

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/test/env"
)

// answer is what an API server says to the question for our kinds.
type answer struct {
	status int
	kinds  []string
}

func (a answer) write(w http.ResponseWriter) {
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
	_ = json.NewEncoder(w).Encode(body) // the client's loss
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

// TestControlClusterIsChecked: what a manager needs to see before it begins, and what it
// says, and how soon, if that is not there.
func TestControlClusterIsChecked(t *testing.T) {
	cases := map[string]struct {
		answers  []answer // the last one is repeated
		says     []string // nothing if all is well
		is       func(error) bool
		requests int32 // at least
	}{
		"all there":     {answers: []answer{{200, kinds}}, requests: 1},
		"more there":    {answers: []answer{{200, append([]string{"machines/status"}, kinds...)}}, requests: 1},
		"one missing":   {answers: []answer{{200, kinds[1:]}}, says: []string{kinds[0], "install the CRDs"}, requests: 1},
		"none":          {answers: []answer{{404, nil}}, says: append([]string{"install the CRDs"}, kinds...), requests: 1},
		"unauthorized":  {answers: []answer{{401, nil}}, says: []string{"refuses"}, is: apierrors.IsUnauthorized, requests: 1},
		"forbidden":     {answers: []answer{{403, nil}}, says: []string{"refuses"}, is: apierrors.IsForbidden, requests: 1},
		"not there yet": {answers: []answer{{503, nil}, {503, nil}, {200, kinds}}, requests: 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/apis/machine.sapcloud.io/v1alpha1" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				n := int(asked.Add(1))
				tc.answers[min(n, len(tc.answers))-1].write(w)
			}))
			defer server.Close()
			err := awaitControl(t.Context(), &rest.Config{Host: server.URL}, kinds...)
			if (err == nil) != (len(tc.says) == 0) {
				t.Fatalf("answers %v", err)
			}
			for _, words := range append(tc.says, server.URL) {
				if err != nil && !strings.Contains(err.Error(), words) {
					t.Errorf("%q does not say %q", err, words)
				}
			}
			if tc.is != nil && !tc.is(err) {
				t.Errorf("%v is of another kind", err)
			}
			if asked.Load() != tc.requests {
				t.Errorf("%d requests, want %d", asked.Load(), tc.requests)
			}
		})
	}
}

// TestWaitForControlClusterEnds: Ctrl-C ends the wait, which is no failure of the manager.
func TestWaitForControlClusterEnds(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := awaitControl(ctx, &rest.Config{Host: server.URL}); !errors.Is(err, context.Canceled) {
		t.Errorf("answers %v, want that it was cancelled", err)
	}
	if err := Run(ctx, Config{Control: &rest.Config{Host: server.URL}}); err != nil {
		t.Errorf("the manager ends with %v", err)
	}
}

// TestRealControlCluster: the check fits the CRDs that are shipped.
func TestRealControlCluster(t *testing.T) {
	if err := awaitControl(t.Context(), env.New(t).Admin, kinds...); err != nil {
		t.Error(err)
	}
}
