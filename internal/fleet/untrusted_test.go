package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// endless is a body that repeats a text.
type endless struct{ text []byte }

func (e endless) Read(p []byte) (n int, _ error) {
	for n+len(e.text) <= len(p) {
		n += copy(p[n:], e.text)
	}
	return n, nil
}

func responding(status int, contentType string, body io.Reader) http.RoundTripper {
	return untrusted(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {contentType}, "Location": {"http://10.0.0.1/"}}, Body: io.NopCloser(body)}, nil
	}))
}

// TestUntrusted_ResponsesAreLimited checks that no response of a target takes unlimited memory or leads to another server, and
// that others pass.
func TestUntrusted_ResponsesAreLimited(t *testing.T) {
	object := `{"a":[{"b":1},{}]}`
	large := `{"a":"` + strings.Repeat("x", 8<<20) + `"}`
	many := endless{[]byte(`{"a":1}`)}
	tests := map[string]struct {
		path, contentType string
		status            int
		body              io.Reader
		want              string // error; empty if the response passes
	}{
		"an object":               {"/api", "application/json", 200, strings.NewReader(object), ""},
		"a large list":            {"/api", "application/json", 200, strings.NewReader(large), ""},
		"protobuf":                {"/api", "application/vnd.kubernetes.protobuf", 200, bytes.NewReader(make([]byte, 8<<20)), ""},
		"events":                  {"/api?watch=true", "application/json", 200, strings.NewReader(object + "\n" + large), ""},
		"more events than memory": {"/api?watch=true", "application/json", 200, io.LimitReader(many, 2*maxEvent/7*7), ""},
		"endless JSON":            {"/api", "application/json", 200, io.MultiReader(strings.NewReader(`{"a":"`), endless{[]byte("x")}), "bytes"},
		"endless empty objects":   {"/api", "application/json", 200, io.MultiReader(strings.NewReader(`{"a":[`), endless{[]byte("{},")}), "values"},
		"endless event":           {"/api?watch=1", "application/json", 200, io.MultiReader(strings.NewReader(`{"a":"`), endless{[]byte("x")}), "bytes"},
		"endless protobuf":        {"/api", "application/vnd.kubernetes.protobuf", 200, endless{[]byte("x")}, "more than 64 MiB"},
		"endless error":           {"/api?watch=true", "text/html", 500, endless{[]byte("x")}, "more than 64 MiB"},
		"another format":          {"/api", "application/yaml", 200, strings.NewReader("a: 1"), "application/yaml"},
		"a redirect":              {"/api", "text/html", 307, strings.NewReader(""), "redirect"},
	}
	for name, test := range tests {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://target"+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := responding(test.status, test.contentType, test.body).RoundTrip(request)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestUntrusted_RequestsExpire checks that a request without a deadline, such as for discovery, does not wait forever for a
// target that accepts it and never responds, and that watches may last longer.
func TestUntrusted_RequestsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := untrusted(roundTripper(func(request *http.Request) (*http.Response, error) {
			<-request.Context().Done()
			return nil, request.Context().Err()
		}))
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://target/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := never.RoundTrip(request); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		watch, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://target/api?watch=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := never.RoundTrip(watch); err == nil || time.Since(began) < time.Hour {
			t.Errorf("a watch: %v after %v", err, time.Since(began))
		}
	})
}

// TestIdentity_InvalidUID checks that a target cannot have an identity that matches every cluster, or one that does not fit
// into the annotation of a Lease.
func TestIdentity_InvalidUID(t *testing.T) {
	for uid, valid := range map[string]bool{"": false, strings.Repeat("x", 1<<10): false, "4c7f0c4e-3f3c-4e0b-9d61-7a0f7a7f8b11": true} {
		system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(uid)}}
		if _, err := uidOf(t.Context(), fake.NewClientset(system)); (err == nil) != valid {
			t.Errorf("UID of %d characters: %v", len(uid), err)
		}
	}
}
