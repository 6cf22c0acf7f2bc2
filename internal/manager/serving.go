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

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
	"github.com/millwright-dev/millwright/internal/unixsocket"
)

// Profiling configures the profiles that a manager serves in addition to its metrics.
type Profiling struct {
	// Enabled serves profiles under /debug/pprof/, at the port of the metrics.
	Enabled bool
	// Contention also profiles blocked goroutines, which costs time.
	Contention bool
}

// Pages are the pages that a manager serves over HTTP.
type Pages struct {
	// Address and Port are where /healthz, /readyz, /livez, /configz and /metrics are served, without TLS. If
	// Port is 0, and Socket is empty, nothing is served.
	Address string
	Port    int
	// Socket is the path of a Unix socket at which the pages are served instead, only to the user of this process.
	Socket string
	// Flags are the values for /configz, by name.
	Flags map[string]string
	// Profiling configures profiles at the same port.
	Profiling Profiling
	// Gatherer gathers the metrics. If nil, they are those of controller-runtime's registry.
	Gatherer prometheus.Gatherer
}

// Serve serves the pages until stop is called. The process is not ready until ready is called, and not alive after ctx is
// canceled. Until ready is called, /readyz responds with missing, such as "waiting for the API server".
func Serve(ctx context.Context, cfg Pages, missing string) (ready, stop func(), err error) {
	s, stop, err := serve(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	s.missing.Store(missing)
	return func() { s.missing.Store("") }, stop, nil
}

// serving serves the pages of a manager. The servers of controller-runtime start too late: a kubelet that
// probes /healthz would restart a manager that waits for an API server.
type serving struct {
	cfg Pages
	// run is the context of Run.
	run context.Context
	// missing is what the manager waits for before it is ready. It is empty if it is ready.
	missing atomic.Value
	// progress is called when the state of the manager changes.
	progress func(State)
}

// The conditions that a manager may wait for.
const (
	missingControl = "waiting for the API server of the control cluster"
	missingLeases  = "reading the leases"
	missingCaches  = "filling the caches"
	missingPort    = "opening the port for hypervisors"
)

// maxClients limits the connections to the pages, which anyone who reaches the port can open. Without a limit, they
// could exhaust the file descriptors of this process.
const maxClients = 512

// serve serves until the returned function is called.
func serve(ctx context.Context, cfg Pages) (s *serving, stop func(), err error) {
	s = &serving{cfg: cfg, run: ctx, progress: func(State) {}}
	s.missing.Store(missingControl)
	if cfg.Port == 0 && cfg.Socket == "" {
		return s, func() {}, nil
	}
	listener, err := cfg.listen()
	if err != nil {
		return nil, nil, fmt.Errorf("serving: %w", err)
	}
	// The timeouts are those of controller-runtime.
	server := &http.Server{Handler: s.mux(), ConnState: connlimit.AnonymousHTTP, IdleTimeout: 90 * time.Second, ReadHeaderTimeout: 32 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(connlimit.Listen(listener, maxClients)) }()
	return s, func() {
		_ = server.Close() // the listener is closed in any case
		<-ended
	}, nil
}

func (p Pages) listen() (net.Listener, error) {
	if p.Socket != "" {
		return unixsocket.Listen(p.Socket)
	}
	return net.Listen("tcp", net.JoinHostPort(p.Address, strconv.Itoa(p.Port)))
}

// mux returns the handler of the pages.
func (s *serving) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", s.alive)
	mux.HandleFunc("/livez", s.alive)
	mux.HandleFunc("/readyz", s.ready)
	mux.HandleFunc("/configz", s.configuration)
	gatherer := s.cfg.Gatherer
	if gatherer == nil {
		gatherer = ctrlmetrics.Registry
	}
	mux.Handle("/metrics", scrapes(metrics.Handler(gatherer)))
	s.cfg.Profiling.add(mux)
	return mux
}

// maxScrapes and maxScrapesPerAddress limit concurrent requests for metrics. Each request holds a copy of all
// metrics until the client has read it, for which it has scrapeTime.
const (
	maxScrapes           = 16
	maxScrapesPerAddress = 8
	scrapeTime           = time.Minute
)

// scrapes limits the requests for metrics.
func scrapes(next http.Handler) http.Handler {
	return connlimit.Requests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapeTime)) // recorders in tests do not support it
		next.ServeHTTP(w, r)
	}), maxScrapes, maxScrapesPerAddress)
}

// alive serves the liveness probe, even before this process is the leader. The responses are the same as MCM's.
func (s *serving) alive(w http.ResponseWriter, _ *http.Request) {
	if s.run.Err() != nil {
		http.Error(w, "Unhealthy", http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK") // an error is the client's
}

// ready serves the readiness probe. This process is ready if it is working or could become the leader.
func (s *serving) ready(w http.ResponseWriter, r *http.Request) {
	if missing := s.missing.Load().(string); missing != "" {
		http.Error(w, missing, http.StatusServiceUnavailable)
		return
	}
	s.alive(w, r)
}

// configuration serves the values of the flags, under the same name as MCM's options.
func (s *serving) configuration(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"componentconfig": s.cfg.Flags}) // an error is the client's
}

// following returns a runnable that updates the readiness. A standby process is ready when it has read the
// leases, and a leader when its caches are filled and its ports are open.
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
			s.progress(StateStandby)
		}
		select {
		case <-leads:
		case <-ctx.Done():
			return nil
		}
		s.missing.Store(missingCaches)
		s.progress(StateStarting)
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
		s.progress(StateServing)
		return nil
	})
}

// standby is a runnable that also runs before this process becomes the leader.
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
	mux.HandleFunc(root, pprof.Index) // also serves profiles without their own handler
	mux.HandleFunc(root+"cmdline", pprof.Cmdline)
	mux.HandleFunc(root+"profile", pprof.Profile)
	mux.HandleFunc(root+"symbol", pprof.Symbol)
	mux.HandleFunc(root+"trace", pprof.Trace)
}
