package manager

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// review returns an AdmissionReview with the given object.
func review(object string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":%s}}`, object)
}

// TestWebhooks_LimitDecodedReviews checks that a request of the maximum length does not take much memory, whatever it contains.
func TestWebhooks_LimitDecodedReviews(t *testing.T) {
	repeated := func(of string, bytes int) string { return strings.TrimSuffix(strings.Repeat(of, bytes/len(of)), ",") }
	for name, tc := range map[string]struct {
		body string
		want int
	}{
		"small":         {review(`{"kind":"Machine"}`), http.StatusOK},
		"a long string": {review(`{"a":"` + strings.Repeat("a", longestReview-1000) + `"}`), http.StatusOK},
		"empty objects": {review(`{"a":[` + repeated(`{},`, longestReview-1000) + `]}`), http.StatusBadRequest},
		"small objects": {review(`{"a":[` + repeated(`{"":0},`, longestReview-1000) + `]}`), http.StatusBadRequest},
		"empty groups":  {`{"request":{"userInfo":{"groups":[` + repeated(`"",`, longestReview-1000) + `]}}}`, http.StatusBadRequest},
		"nested arrays": {review(strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20)), http.StatusBadRequest},
		"YAML":          {repeated("- {}\n", longestReview-1000), http.StatusBadRequest},
		"protobuf":      {"k8s\x00" + repeated("\x0a\x00", longestReview-1000), http.StatusBadRequest},
	} {
		handler := limitDecoding(&admission.Webhook{Handler: admission.HandlerFunc(nil)})
		if tc.want == http.StatusOK {
			handler = limitDecoding(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, err := io.ReadAll(r.Body); err != nil || string(got) != tc.body {
					t.Errorf("%s: the handler reads %d bytes, %v", name, len(got), err)
				}
			}))
		}
		request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(tc.body))
		request.Header.Set("Content-Type", "application/json")
		response := httptest.NewRecorder()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		handler.ServeHTTP(response, request)
		runtime.ReadMemStats(&after)
		if got := (after.TotalAlloc - before.TotalAlloc) >> 20; response.Code != tc.want || got > 64 {
			t.Errorf("%s: status %d, want %d; %d MiB are allocated", name, response.Code, tc.want, got)
		}
	}
}

// TestWebhooks_LimitConcurrentDecoding checks that one address cannot have many large requests decoded concurrently, and
// that others can still send theirs.
func TestWebhooks_LimitConcurrentDecoding(t *testing.T) {
	came, free := make(chan struct{}), make(chan struct{})
	handler := limitDecoding(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		came <- struct{}{}
		<-free
	}))
	body := review(`{"a":[` + strings.TrimSuffix(strings.Repeat(`0,`, maxReviewValues-100), ",") + `]}`)
	ask := func(from, body string) int {
		request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		request.RemoteAddr = from
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		return response.Code
	}
	const attacker, server = "192.0.2.1:1", "192.0.2.2:1"
	statuses := make(chan int)
	for range maxDecodedPerAddress / (maxReviewValues*valueSize + len(body)) {
		go func() { statuses <- ask(attacker, body) }()
		<-came
	}
	if got := ask(attacker, body); got != http.StatusTooManyRequests {
		t.Errorf("another request of the address: status %d", got)
	}
	go func() { statuses <- ask(server, body) }()
	<-came
	close(free)
	for range maxDecodedPerAddress/(maxReviewValues*valueSize+len(body)) + 1 {
		if got := <-statuses; got != http.StatusOK {
			t.Errorf("status %d", got)
		}
	}
}
