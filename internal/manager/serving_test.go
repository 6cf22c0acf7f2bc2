package manager

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProfilesAreServedOnDemandOnly: on the port of the metrics anybody may ask.
func TestProfilesAreServedOnDemandOnly(t *testing.T) {
	pages := map[string]string{
		"/debug/pprof/":                  "full goroutine stack dump",
		"/debug/pprof/goroutine?debug=1": "TestProfilesAreServedOnDemandOnly",
		"/debug/pprof/cmdline":           filepath.Base(os.Args[0]),
		"/debug/pprof/symbol":            "num_symbols",
	}
	for name, profiling := range map[string]Profiling{"off": {}, "on": {Enabled: true}} {
		mux := http.NewServeMux()
		for path, handler := range profiling.handlers() {
			mux.Handle(path, handler)
		}
		ask := func(page string) *httptest.ResponseRecorder {
			answer := httptest.NewRecorder()
			mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, page, nil))
			return answer
		}
		if got := ask("/healthz").Body.String(); got != "OK" {
			t.Errorf("%s: /healthz says %q", name, got)
		}
		for page, says := range pages {
			answer := ask(page)
			if served := answer.Code == http.StatusOK && strings.Contains(answer.Body.String(), says); served != profiling.Enabled {
				t.Errorf("%s: %s answers %d %q", name, page, answer.Code, answer.Body)
			}
		}
	}
}
