package ui

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/observe/explain/gather"
)

// requestTimeout limits how long explanations and actions take.
const requestTimeout = 30 * time.Second

// view serves the requests of the page with the permissions of one client configuration.
type view struct {
	options Options
	model   *model
	history *history
	// stopping is done when run returns, and closes all streams. Its cause is shown to the user if it is errEnded.
	stopping context.Context
	stop     context.CancelCauseFunc
}

func newView(options Options) *view {
	s := &view{options: options, model: newModel(options.Control, options.Namespace, options.Fallback), history: newHistory(options.Metrics)}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	return s
}

// run keeps the rows and plots current until ctx is done, and then closes all streams.
func (s *view) run(ctx context.Context) {
	defer s.stop(nil)
	var running sync.WaitGroup
	running.Go(func() { s.history.run(ctx) })
	s.model.run(ctx)
	running.Wait()
}

// api serves the requests of the page.
func (s *view) api(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + path.Base(r.URL.Path) {
	case "GET stream":
		s.stream(w, r)
		return
	case "GET console":
		s.console(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	result, err := s.call(ctx, r)
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, http.StatusOK, result)
}

var errNoSuchPath = errors.New("no such path")

func (s *view) call(ctx context.Context, r *http.Request) (any, error) {
	query := r.URL.Query()
	key := types.NamespacedName{Namespace: query.Get("namespace"), Name: query.Get("name")}
	switch r.Method + " " + strings.TrimPrefix(r.URL.Path, "/api/") {
	case "GET about":
		return s.about(), nil
	case "GET machine":
		return s.machineDetail(ctx, key)
	case "GET pool":
		return s.poolDetail(ctx, key)
	case "GET capi-machine":
		return s.capiMachineDetail(ctx, key)
	case "GET capi-pool":
		return s.capiPoolDetail(ctx, key)
	case "GET plots":
		return s.history.plots(time.Now()), nil
	case "GET events":
		return s.events(key.Namespace, query.Get("pool"), query.Get("machine")), nil
	case "GET yaml":
		text, err := s.yamlOf(ctx, query.Get("kind"), key)
		return map[string]string{"yaml": text}, err
	case "POST plan":
		return s.plan(r)
	case "POST do":
		return s.do(ctx, r)
	}
	return nil, errNoSuchPath
}

// About describes the program and the cluster.
type About struct {
	Version string `json:"version"`
	Cluster string `json:"cluster"`
	Context string `json:"context,omitempty"`
	// User is the name of the user who logged in with a token, and LogOut reports whether they can log out.
	User    string        `json:"user,omitempty"`
	LogOut  bool          `json:"logOut,omitempty"`
	Console bool          `json:"console"`
	Actions []ActionAbout `json:"actions"`
}

func (s *view) about() About {
	about := About{Version: s.options.Version, Cluster: s.options.Cluster, Context: s.options.Context, Console: s.options.Console != nil}
	for _, action := range s.options.Actions {
		about.Actions = append(about.Actions, action.about())
	}
	return about
}

func (s *view) gather() gather.Reader {
	return gather.Reader{
		Control: reader{s.options.Control, s.model.sources}, Target: s.options.Target, Console: s.options.LastOutput, Flags: s.options.Flags,
	}
}

// statusOf returns the HTTP status for an error.
func statusOf(err error) int {
	switch {
	case errors.Is(err, errNoSuchPath):
		return http.StatusNotFound
	case errors.Is(err, errInvalid):
		return http.StatusBadRequest
	case errors.As(err, new(*limitError)):
		return http.StatusTooManyRequests
	case errors.As(err, new(*endedError)):
		return http.StatusUnauthorized
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code != 0 {
		return int(status.Status().Code)
	}
	return http.StatusBadGateway
}

// failure is the response to a failed request.
type failure struct {
	Error string `json:"error"`
	// Form means that the user must log in with the form of the page. Responses of proxies do not contain it.
	Form bool `json:"form,omitempty"`
}

func fail(w http.ResponseWriter, err error) {
	ended := (*endedError)(nil)
	reply(w, statusOf(err), failure{Error: err.Error(), Form: errors.As(err, &ended) && !ended.byProxy})
}

func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the browser has gone
}
