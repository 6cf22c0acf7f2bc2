package env

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

type respond struct{}

func (respond) RoundTrip(*http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	_, err := recorder.WriteString("an event")
	return recorder.Result(), err
}

// TestDelay_Limits checks that requests and parts of watches are delayed, and at most as long as configured.
func TestDelay_Limits(t *testing.T) {
	for name, test := range map[string]struct {
		request *http.Request
		want    time.Duration
	}{
		"a write":         {httptest.NewRequest(http.MethodPatch, "/nodes/a", strings.NewReader("{}")), time.Second},
		"a read":          {httptest.NewRequest(http.MethodGet, "/nodes/a", http.NoBody), time.Second / 4},
		"a watch's event": {httptest.NewRequest(http.MethodGet, "/nodes?watch=true", http.NoBody), time.Second/4 + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var longest time.Duration
				for range 1000 {
					began := time.Now()
					response, err := delayed{respond{}, time.Second}.RoundTrip(test.request)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := response.Body.Read(make([]byte, 100)); err != nil {
						t.Fatal(err)
					}
					longest = max(longest, time.Since(began))
				}
				if longest > test.want || longest < test.want/2 {
					t.Errorf("the longest of 1,000 delays is %s, want almost %s", longest, test.want)
				}
			})
		})
	}
}
