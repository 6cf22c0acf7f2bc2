package manager

import (
	"net/http"
	"net/http/pprof"
	"runtime"
)

// Profiling says which profiles a manager serves beside its metrics.
type Profiling struct {
	// Enabled serves profiles under /debug/pprof/, where the metrics are served.
	Enabled bool
	// Contention has goroutines that block be recorded too, which costs time.
	Contention bool
}

// handlers of what is served beside the metrics, by path.
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
