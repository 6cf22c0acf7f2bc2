package manager

import (
	"net/http"
	"net/http/pprof"
	"runtime"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millwright-dev/millwright/internal/observe/metrics"
)

// Profiling configures the profiles that a manager serves beside its metrics.
type Profiling struct {
	// Enabled serves profiles under /debug/pprof/, where the metrics are served.
	Enabled bool
	// Contention also records goroutines that block, which costs time.
	Contention bool
}

// handlers returns what is served beside the metrics, by path.
func (p Profiling) handlers() map[string]http.Handler {
	served := map[string]http.Handler{"/healthz": http.HandlerFunc(healthz)}
	if !p.Enabled {
		return served
	}
	if p.Contention {
		runtime.SetBlockProfileRate(1)
	}
	const root = "/debug/pprof/"
	served[root] = http.HandlerFunc(pprof.Index) // and all that have no handler of their own
	served[root+"cmdline"] = http.HandlerFunc(pprof.Cmdline)
	served[root+"profile"] = http.HandlerFunc(pprof.Profile)
	served[root+"symbol"] = http.HandlerFunc(pprof.Symbol)
	served[root+"trace"] = http.HandlerFunc(pprof.Trace)
	return served
}

// healthz answers as soon as anything is served, also before this process is the leader: it
// reports that the process is alive.
func healthz(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("OK")) // an error is the client's
}

// metricsAsMCM serves /metrics itself. controller-runtime calls it for everything that is served
// there.
func metricsAsMCM(*rest.Config, *http.Client) (metricsserver.Filter, error) {
	served := metrics.Handler(ctrlmetrics.Registry)
	return func(_ logr.Logger, others http.Handler) (http.Handler, error) {
		mux := http.NewServeMux()
		mux.Handle("/metrics", served)
		mux.Handle("/", others)
		return mux, nil
	}, nil
}
