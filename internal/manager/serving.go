package manager

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
)

// Profiling configures the profiles that a manager serves beside its metrics.
type Profiling struct {
	// Enabled serves profiles under /debug/pprof/, where the metrics are served.
	Enabled bool
	// Contention also records goroutines that block, which costs time.
	Contention bool
}

// Pages are what a manager serves over HTTP.
type Pages struct {
	// Address and Port of /healthz, /readyz, /livez, /configz and /metrics, over plain HTTP. Port 0
	// serves nothing.
	Address string
	Port    int
	// Flags are the values that /configz serves, by name.
	Flags map[string]string
	// Profiling configures profiles at the same port.
	Profiling Profiling
}

// serving is what a manager serves over HTTP. controller-runtime's servers start too late: a kubelet
// that asks for /healthz would restart a manager that waits for an API server.
type serving struct {
	cfg Pages
	// run is the context of Run.
	run context.Context
	// missing is what the manager waits for before it is ready; empty if it is.
	missing atomic.Value
}

// What a manager may wait for.
const (
	missingControl = "waiting for the API server of the control cluster"
	missingLeases  = "reading the leases"
	missingCaches  = "filling the caches"
	missingPort    = "opening the port for hypervisors"
)

// maxClients and maxClientsPerAddress bound the connections to the pages, which anybody may open who reaches the
// port: without bounds they take the files with which this process does its work.
const (
	maxClients           = 1024
	maxClientsPerAddress = 128
)

// serve serves until the returned function is called.
func serve(ctx context.Context, cfg Pages) (s *serving, stop func(), err error) {
	s = &serving{cfg: cfg, run: ctx}
	s.missing.Store(missingControl)
	if cfg.Port == 0 {
		return s, func() {}, nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cfg.Address, strconv.Itoa(cfg.Port)))
	if err != nil {
		return nil, nil, fmt.Errorf("serving: %w", err)
	}
	// The times are those of controller-runtime.
	server := &http.Server{Handler: s.mux(), IdleTimeout: 90 * time.Second, ReadHeaderTimeout: 32 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(connlimit.Listen(listener, maxClients, maxClientsPerAddress)) }()
	return s, func() {
		_ = server.Close() // the listener is closed in any case
		<-ended
	}, nil
}

// mux has the pages.
func (s *serving) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", s.alive)
	mux.HandleFunc("/livez", s.alive)
	mux.HandleFunc("/readyz", s.ready)
	mux.HandleFunc("/configz", s.configuration)
	mux.Handle("/metrics", scrapes(metrics.Handler(ctrlmetrics.Registry)))
	s.cfg.Profiling.add(mux)
	return mux
}

// maxScrapes and maxScrapesPerAddress bound the requests for metrics at a time: each has a copy of all of them,
// until who asked has read it, for which there is scrapeTime.
const (
	maxScrapes           = 16
	maxScrapesPerAddress = 8
	scrapeTime           = time.Minute
)

// scrapes bounds the requests for metrics.
func scrapes(next http.Handler) http.Handler {
	return connlimit.Requests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapeTime)) // not of a test's recorder
		next.ServeHTTP(w, r)
	}), maxScrapes, maxScrapesPerAddress)
}

// alive answers as soon as anything is served, also before this process is the leader: it
// reports that the process is alive. The answers are MCM's.
func (s *serving) alive(w http.ResponseWriter, _ *http.Request) {
	if s.run.Err() != nil {
		http.Error(w, "Unhealthy", http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK") // an error is the client's
}

// ready reports whether this process works, or could at any moment become the leader.
func (s *serving) ready(w http.ResponseWriter, r *http.Request) {
	if missing := s.missing.Load().(string); missing != "" {
		http.Error(w, missing, http.StatusServiceUnavailable)
		return
	}
	s.alive(w, r)
}

// configuration answers with the values of the flags, under the name that MCM's options have there.
func (s *serving) configuration(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"componentconfig": s.cfg.Flags}) // an error is the client's
}

// following returns what keeps up with the manager: one that stands by is ready when it has read the
// leases, and a leader when its caches are filled and its ports open.
func (s *serving) following(mgr ctrl.Manager, read, leads <-chan struct{}, open ...<-chan struct{}) ctrlmanager.Runnable {
	return standby(func(ctx context.Context) error {
		s.missing.Store(missingLeases)
		select {
		case <-read:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-leads:
		default:
			s.missing.Store("")
		}
		select {
		case <-leads:
		case <-ctx.Done():
			return nil
		}
		s.missing.Store(missingCaches)
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return nil
		}
		s.missing.Store(missingPort)
		for _, port := range open {
			select {
			case <-port:
			case <-ctx.Done():
				return nil
			}
		}
		s.missing.Store("")
		return nil
	})
}

// standby is a runnable that also runs before this process is the leader.
type standby func(context.Context) error

func (s standby) Start(ctx context.Context) error { return s(ctx) }

func (s standby) NeedLeaderElection() bool { return false }

// add adds the pages of the profiles.
func (p Profiling) add(mux *http.ServeMux) {
	if !p.Enabled {
		return
	}
	if p.Contention {
		runtime.SetBlockProfileRate(1)
	}
	const root = "/debug/pprof/"
	mux.HandleFunc(root, pprof.Index) // and all that have no handler of their own
	mux.HandleFunc(root+"cmdline", pprof.Cmdline)
	mux.HandleFunc(root+"profile", pprof.Profile)
	mux.HandleFunc(root+"symbol", pprof.Symbol)
	mux.HandleFunc(root+"trace", pprof.Trace)
}
