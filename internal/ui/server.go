package ui

import (
	"context"
	"crypto/rand"
	"embed"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/observe/explain"
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

// Server serves the page to one user. Run must be called for the rows to be current.
type Server struct {
	*view
	session *session
	static  http.Handler
}

//go:embed web
var web embed.FS

// newStatic serves the files of the page.
func newStatic() http.Handler {
	files, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // the name is valid
	}
	return http.FileServerFS(files)
}

// NewHostName returns a host name with random letters below localhost, which browsers resolve to the loopback address.
// Browsers send cookies to all ports of a host name, so a server on another port, with a known name such as localhost,
// would get the cookie of the session when the user visits it.
func NewHostName() string { return "millwright-" + strings.ToLower(rand.Text()[:10]) + ".localhost" }

// New returns a Server.
func New(options Options) (*Server, error) {
	if _, _, err := net.SplitHostPort(options.Host); err != nil {
		return nil, fmt.Errorf("host %q: %w", options.Host, err)
	}
	return &Server{view: newView(options), session: newSession(), static: newStatic()}, nil
}

// URL returns the address for the browser. It is valid once.
func (s *Server) URL() string { return "http://" + s.options.Host + "/?token=" + s.session.token }

// Run keeps the rows and plots current until ctx is done, and then closes all streams.
func (s *Server) Run(ctx context.Context) { s.run(ctx) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protect(w.Header(), r.URL.Path, "ws://"+s.options.Host)
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
	file(s.static, w, r)
}

// file serves a file of the page.
func file(static http.Handler, w http.ResponseWriter, r *http.Request) {
	if !isRead(r) {
		http.Error(w, "only GET is allowed", http.StatusMethodNotAllowed)
		return
	}
	static.ServeHTTP(w, r)
}

// consolePath is the path of the page of a console.
const consolePath = "/console.html"

// protect sets the headers that limit what the page can do. sockets are the origins of its WebSockets.
func protect(header http.Header, path string, sockets ...string) {
	styles := "style-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
	if path == consolePath { // xterm.js sets the styles of its rows in style elements
		styles = "style-src 'self' 'unsafe-inline'"
	}
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; img-src 'self'; connect-src 'self' "+strings.Join(sockets, " ")+
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "+styles)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}

// foreign returns why a request does not come from the page, or "" if it does. The host name is checked because of DNS
// rebinding: another site could let its own name resolve to the loopback address.
func (s *Server) foreign(r *http.Request) string {
	if r.Host != s.options.Host {
		return "unknown host name; open the link that millwright ui printed"
	}
	return crossSite(r, r.URL.Path, func(origin string) bool { return origin == "http://"+s.options.Host })
}

// crossSite returns why a request does not come from the page, or "" if it does. path is that of the request, and isOwn
// reports whether an origin is that of the page.
func crossSite(r *http.Request, path string, isOwn func(origin string) bool) string {
	origin := r.Header.Get("Origin")
	if origin != "" && !isOwn(origin) {
		return "requests of other sites are rejected"
	}
	if (!isRead(r) || isUpgrade(r)) && origin == "" {
		return "the header Origin is required"
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case site == "", site == "same-origin", site == "none":
	case (path == "/" || path == consolePath) && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate":
		// The user followed a link in another page or in a file, or logged in at a proxy. The browser does not send the cookie.
	default:
		return "requests of other sites are rejected"
	}
	return ""
}

// isRead reports whether the method of a request changes nothing.
func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

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
