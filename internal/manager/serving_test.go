package manager

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/flood"
	"github.com/millwright-dev/millwright/test/support/freeport"
)

// TestProfiles_AreOffByDefault checks that profiles are off by default, because anyone can reach the
// metrics port.
func TestProfiles_AreOffByDefault(t *testing.T) {
	pages := map[string]string{
		"/debug/pprof/":                  "full goroutine stack dump",
		"/debug/pprof/goroutine?debug=1": "TestProfiles_AreOffByDefault",
		"/debug/pprof/cmdline":           filepath.Base(os.Args[0]),
		"/debug/pprof/symbol":            "num_symbols",
	}
	for name, profiling := range map[string]Profiling{"off": {}, "on": {Enabled: true}} {
		mux := (&serving{run: t.Context(), cfg: Pages{Profiling: profiling}}).mux()
		ask := func(page string) *httptest.ResponseRecorder {
			response := httptest.NewRecorder()
			mux.ServeHTTP(response, httptest.NewRequest(http.MethodGet, page, nil))
			return response
		}
		if got := ask("/healthz").Body.String(); got != "OK" {
			t.Errorf("%s: /healthz returns %q", name, got)
		}
		for page, content := range pages {
			response := ask(page)
			if served := response.Code == http.StatusOK && strings.Contains(response.Body.String(), content); served != profiling.Enabled {
				t.Errorf("%s: %s returns %d %q", name, page, response.Code, response.Body)
			}
		}
	}
}

// TestPages_LimitConnections checks that a client that keeps opening connections does not exhaust the file descriptors of
// the process.
func TestPages_LimitConnections(t *testing.T) {
	address := freeport.Address(t)
	_, stop, err := serve(t.Context(), Pages{Address: "127.0.0.1", Port: int(address.Port())})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	flood.Past(t, address.String(), maxClients)
	response, err := http.Get("http://" + address.String() + "/healthz")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("for another address: %v, %v", response, err)
	}
	if err == nil {
		_ = response.Body.Close()
	}
}

// TestMetrics_LimitRequests checks that a client that keeps requesting metrics without reading them uses memory for a
// few responses only.
func TestMetrics_LimitRequests(t *testing.T) {
	came, free := make(chan struct{}), make(chan struct{})
	pages := scrapes(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		came <- struct{}{}
		<-free
	}))
	ask := func(from string) int {
		request, response := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
		request.RemoteAddr = from
		pages.ServeHTTP(response, request)
		return response.Code
	}
	for range maxScrapesPerAddress {
		go ask("192.0.2.1:1")
		<-came
	}
	if got := ask("192.0.2.1:2"); got != http.StatusTooManyRequests {
		t.Errorf("one more request returns %d", got)
	}
	other := make(chan int, 1)
	go func() { other <- ask("192.0.2.2:1") }()
	<-came
	close(free)
	if got := <-other; got != http.StatusOK {
		t.Errorf("a request from another address returns %d", got)
	}
}

// TestPages_DuringLifeOfManager checks what is served while the control cluster does not respond, while a manager works,
// and while it shuts down.
func TestPages_DuringLifeOfManager(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	pages := &serving{run: ctx, cfg: Pages{Flags: map[string]string{"safety-up": "2"}}}
	pages.missing.Store(missingControl)
	mux := pages.mux()
	want := func(page string, status int, body string) {
		t.Helper()
		response := httptest.NewRecorder()
		mux.ServeHTTP(response, httptest.NewRequest(http.MethodGet, page, nil))
		if response.Code != status || strings.TrimSpace(response.Body.String()) != body {
			t.Errorf("%s returns %d %q, want %d %q", page, response.Code, response.Body, status, body)
		}
	}
	want("/healthz", http.StatusOK, "OK")
	want("/livez", http.StatusOK, "OK")
	want("/readyz", http.StatusServiceUnavailable, missingControl)
	want("/configz", http.StatusOK, `{"componentconfig":{"safety-up":"2"}}`)
	pages.missing.Store("")
	want("/readyz", http.StatusOK, "OK")
	stop()
	want("/healthz", http.StatusInternalServerError, "Unhealthy")
	want("/livez", http.StatusInternalServerError, "Unhealthy")
	want("/readyz", http.StatusInternalServerError, "Unhealthy")
}

// TestManager_StartsBeforeAPIServer checks that a manager that starts before its API server waits and stays alive.
func TestManager_StartsBeforeAPIServer(t *testing.T) {
	e := env.New(t)
	var there atomic.Bool
	access := rest.CopyConfig(e.Admin)
	access.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if !there.Load() {
				return nil, syscall.ECONNREFUSED
			}
			return next.RoundTrip(request)
		})
	})
	page, stop := runWith(t, e, Config{Control: access})
	g := gomega.NewWithT(t)
	g.Eventually(page("healthz")).WithTimeout(env.WaitTimeout).Should(gomega.Equal("OK"))
	g.Expect(page("readyz")()).To(gomega.Equal(missingControl))
	there.Store(true)
	g.Eventually(page("readyz")).WithTimeout(env.WaitTimeout).Should(gomega.Equal("OK"))
	if !strings.Contains(page("metrics")(), `rest_client_request_latency_seconds_bucket{url="`+e.Admin.Host+`/apis`) {
		t.Error("/metrics lacks the latency of requests")
	}
	stop()
}

// runWith runs a manager of sets until stop is called. A page returns what the manager serves under a name.
func runWith(t *testing.T, e *env.Env, cfg Config) (page func(name string) func() string, stop func()) {
	t.Helper()
	port, err := e.ControlPlane.PortFor(t.Name(), 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Namespace, cfg.Half, cfg.ConcurrentSyncs = e.Namespace, HalfSets, 1
	cfg.Address, cfg.Port, cfg.Log = "127.0.0.1", port, testr.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	page = func(name string) func() string {
		return func() string {
			_, body := get(fmt.Sprintf("http://127.0.0.1:%d/%s", port, name))
			return strings.TrimSpace(body)
		}
	}
	return page, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager returned %v", err)
		}
	}
}

// TestManager_NotReadyWithoutPermissionForLeases checks that a manager that could never become the leader is not ready.
func TestManager_NotReadyWithoutPermissionForLeases(t *testing.T) {
	e := env.New(t)
	var may atomic.Bool
	asked := make(chan struct{}, 1)
	access := rest.CopyConfig(e.Admin)
	access.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if may.Load() || !strings.Contains(request.URL.Path, "/leases/") {
				return next.RoundTrip(request)
			}
			select {
			case asked <- struct{}{}:
			default:
			}
			refused := httptest.NewRecorder()
			refused.WriteHeader(http.StatusForbidden)
			return refused.Result(), nil
		})
	})
	page, stop := runWith(t, e, Config{
		Control: access,
		Settings: Settings{
			Election: Election{Enabled: true, LeaseDuration: time.Hour, RenewDeadline: 50 * time.Minute, RetryPeriod: 400 * time.Millisecond},
		},
	})
	g := gomega.NewWithT(t)
	for range 3 {
		<-asked // which is rejected
		g.Eventually(page("readyz")).WithTimeout(env.WaitTimeout).Should(gomega.Equal(missingLeases))
	}
	may.Store(true)
	g.Eventually(page("readyz")).WithTimeout(env.WaitTimeout).Should(gomega.Equal("OK"))
	stop()
}

// TestMetrics_LatencyOmitsObjectNames checks that object names are not part of the URL label, which would create a series per
// object.
func TestMetrics_LatencyOmitsObjectNames(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	defer server.Close()
	clients := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	for _, name := range []string{"one", "two"} {
		_, _ = clients.CoreV1().Secrets("shoot").Get(t.Context(), name, metav1.GetOptions{}) // it does not exist
	}
	labels := prometheus.Labels{"verb": "GET", "url": server.URL + "/api/v1/namespaces/%7Bnamespace%7D/secrets/%7Bname%7D"}
	metric := &dto.Metric{}
	if err := requestLatency.With(labels).(prometheus.Histogram).Write(metric); err != nil {
		t.Fatal(err)
	}
	if count := metric.GetHistogram().GetSampleCount(); count != 2 {
		t.Errorf("%d requests, want 2", count)
	}
}
