package ui

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/gather"
)

// Options configure a Server.
type Options struct {
	// Control is a client of the cluster of the Machines. Its requests must not have a timeout, because they include
	// watches.
	Control client.WithWatch
	// Target reads the cluster of the nodes. If nil, there is none.
	Target client.Reader
	// LastOutput reads the last output of a VirtualMachine's console. If nil, consoles are not read.
	LastOutput func(ctx context.Context, vm types.NamespacedName) ([]byte, error)
	// Console opens the console of a VirtualMachine. The caller closes it. If nil, there are no consoles.
	Console func(ctx context.Context, vm types.NamespacedName) (*websocket.Conn, error)
	// Metrics reads the metrics of the manager. Its error explains what to do. It is called at most every ten seconds while
	// a tab is open. If nil, there are no plots.
	Metrics func(ctx context.Context) (Metrics, error)
	// Actions are the changes that users can request.
	Actions []Action
	// Namespace limits the page to a namespace. If empty, it shows all namespaces, or only Fallback if the user may not
	// list the objects of all.
	Namespace, Fallback string
	// Flags are the flags of the manager, for explanations.
	Flags explain.Flags
	// Cluster is the address of the API server, and Context the context of the kubeconfig. They are only shown.
	Cluster, Context string
	// Host is the host and port that the browser uses. Requests with another one are rejected.
	Host string
	// Version is the version of this program.
	Version string
}

// Server serves the page. Run must be called for the rows to be current.
type Server struct {
	options Options
	model   *model
	history *history
	session *session
	static  http.Handler
	// stopping is done when Run returns, and closes all streams.
	stopping context.Context
	stop     context.CancelFunc
}

//go:embed web
var web embed.FS

// requestTimeout limits how long explanations and actions take.
const requestTimeout = 30 * time.Second

// NewHostName returns a host name with random letters below localhost, which browsers resolve to the loopback address.
// Browsers send cookies to all ports of a host name, so a server on another port, with a known name such as localhost,
// would get the cookie of the session when the user visits it.
func NewHostName() string { return "millwright-" + strings.ToLower(rand.Text()[:10]) + ".localhost" }

// New returns a Server.
func New(options Options) (*Server, error) {
	if _, _, err := net.SplitHostPort(options.Host); err != nil {
		return nil, fmt.Errorf("host %q: %w", options.Host, err)
	}
	files, err := fs.Sub(web, "web")
	if err != nil {
		return nil, err
	}
	s := &Server{
		options: options, model: newModel(options.Control, options.Namespace, options.Fallback), history: newHistory(options.Metrics), session: newSession(),
		static: http.FileServerFS(files),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// URL returns the address for the browser. It is valid once.
func (s *Server) URL() string { return "http://" + s.options.Host + "/?token=" + s.session.token }

// Run keeps the rows and plots current until ctx is done, and then closes all streams.
func (s *Server) Run(ctx context.Context) {
	defer s.stop()
	var running sync.WaitGroup
	running.Go(func() { s.history.run(ctx) })
	s.model.run(ctx)
	running.Wait()
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.protect(w.Header())
	if problem := s.foreign(r); problem != "" {
		http.Error(w, problem, http.StatusForbidden)
		return
	}
	if r.Method == http.MethodGet && r.URL.Path == "/" && r.URL.Query().Has("token") {
		s.logIn(w, r)
		return
	}
	if !s.session.admits(r) {
		page(w, http.StatusForbidden, "Open the link that the command printed", `This browser has no session. Run "millwright ui" again, and open the link that it prints.`, "")
		return
	}
	if strings.HasPrefix(r.URL.Path, "/api/") {
		s.api(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "only GET is allowed", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == "/console.html" { // xterm.js sets the styles of its rows in style elements
		w.Header().Set("Content-Security-Policy", s.policy("style-src 'self' 'unsafe-inline'"))
	}
	s.static.ServeHTTP(w, r)
}

// protect sets the headers that limit what the page can do.
func (s *Server) protect(header http.Header) {
	header.Set("Content-Security-Policy", s.policy("style-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"))
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}

func (s *Server) policy(styles string) string {
	return "default-src 'none'; script-src 'self'; img-src 'self'; connect-src 'self' ws://" + s.options.Host +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " + styles
}

// foreign returns why a request does not come from the page, or "" if it does. The host name is checked because of DNS
// rebinding: another site could let its own name resolve to the loopback address.
func (s *Server) foreign(r *http.Request) string {
	if r.Host != s.options.Host {
		return "unknown host name; open the link that millwright ui printed"
	}
	origin := r.Header.Get("Origin")
	if origin != "" && origin != "http://"+s.options.Host {
		return "requests of other sites are rejected"
	}
	changes := r.Method != http.MethodGet && r.Method != http.MethodHead
	if (changes || isUpgrade(r)) && origin == "" {
		return "the header Origin is required"
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case site == "", site == "same-origin", site == "none":
	case r.URL.Path == "/" && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate":
		// A link in another page or in a file leads here. It needs a token, because the browser does not send the cookie.
	default:
		return "requests of other sites are rejected"
	}
	return ""
}

func isUpgrade(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

// logIn exchanges the token for the cookie.
func (s *Server) logIn(w http.ResponseWriter, r *http.Request) {
	if !s.session.redeem(r.URL.Query().Get("token")) {
		page(w, http.StatusForbidden, "This link was already used", `A link works once. If you did not use it, someone else did: stop "millwright ui". Otherwise, run it again and open the new link.`, "")
		return
	}
	http.SetCookie(w, s.session.cookie())
	// Not a redirect: if another page or a file led here, the browser would follow it without the cookie.
	page(w, http.StatusOK, "Millwright", "", "/")
}

// page writes a small page. The texts must not contain special characters of HTML.
func page(w http.ResponseWriter, status int, title, text, next string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	refresh := ""
	if next != "" {
		refresh = `<meta http-equiv="refresh" content="0;url=` + next + `">`
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><link rel="icon" href="/icon.svg">%s<title>%s</title></head><body><h1>%s</h1><p>%s</p></body></html>`,
		refresh, title, title, strings.ReplaceAll(text, `"`, "&quot;"))
}

// api serves the requests of the page.
func (s *Server) api(w http.ResponseWriter, r *http.Request) {
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
		reply(w, statusOf(err), map[string]string{"error": err.Error()})
		return
	}
	reply(w, http.StatusOK, result)
}

var errNoSuchPath = errors.New("no such path")

func (s *Server) call(ctx context.Context, r *http.Request) (any, error) {
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
	Version string        `json:"version"`
	Cluster string        `json:"cluster"`
	Context string        `json:"context,omitempty"`
	Console bool          `json:"console"`
	Actions []ActionAbout `json:"actions"`
}

func (s *Server) about() About {
	about := About{Version: s.options.Version, Cluster: s.options.Cluster, Context: s.options.Context, Console: s.options.Console != nil}
	for _, action := range s.options.Actions {
		about.Actions = append(about.Actions, action.about())
	}
	return about
}

func (s *Server) gather() gather.Reader {
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
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code != 0 {
		return int(status.Status().Code)
	}
	return http.StatusBadGateway
}

func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the browser has gone
}
