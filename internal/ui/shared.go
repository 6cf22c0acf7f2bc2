package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// SharedOptions configure a Shared.
type SharedOptions struct {
	// Open returns the options of the page for the user of a token. namespace is what the user entered: if empty, the
	// page shows all. It must not contact the cluster. Host is not used.
	Open func(token, namespace string) (Options, error)
	// Identify returns the name of the user of a token, as the API server knows it. If the token is not valid, it returns
	// an error for which IsUnauthorized of the API machinery is true.
	Identify func(ctx context.Context, token string) (user string, err error)
	// URLs are the addresses of the page in browsers. Each has a different origin, and a path that ends with a slash.
	// Requests of other origins are rejected.
	URLs []*url.URL
	// TrustedProxies are the addresses of proxies whose header X-Forwarded-For is trusted. If empty, the limit for an
	// address counts each proxy as one client.
	TrustedProxies []netip.Prefix
	// MaxSessions limits the sessions of all users, MaxSessionsPerUser those of one user, and MaxSessionsPerAddress those that
	// were opened from the same address. Each session watches the cluster.
	MaxSessions, MaxSessionsPerUser, MaxSessionsPerAddress int
	// IdleTimeout is how long a session remains without requests and open tabs.
	IdleTimeout time.Duration
}

// Shared serves the page to many users. Each acts with their own bearer token, and has caches of their own. Run must be
// called for sessions to be closed when the process exits.
type Shared struct {
	options  SharedOptions
	sessions *sessions
	static   http.Handler
	sockets  []string
}

// NewShared returns a Shared.
func NewShared(options SharedOptions) *Shared {
	s := &Shared{options: options, sessions: newSessions(options), static: newStatic()}
	for _, of := range options.URLs {
		s.sockets = append(s.sockets, strings.Replace(originOf(of), "http", "ws", 1))
	}
	return s
}

// Run closes all sessions when ctx is done, and waits for them.
func (s *Shared) Run(ctx context.Context) {
	<-ctx.Done()
	s.sessions.closeAll()
}

// ServeHTTP implements http.Handler.
func (s *Shared) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/livez" || r.URL.Path == "/readyz" {
		_, _ = w.Write([]byte("ok\n")) // the kubelet has gone
		return
	}
	if location := s.withSlash(r.URL.Path); location != "" {
		http.Redirect(w, r, location, http.StatusPermanentRedirect)
		return
	}
	r = s.belowURL(r)
	protect(w.Header(), r.URL.Path, s.sockets...)
	if problem := crossSite(r, r.URL.Path, func(origin string) bool { return s.urlOf(origin) != nil }); problem != "" {
		http.Error(w, problem, http.StatusForbidden)
		return
	}
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/api/login":
		s.logIn(w, r)
	case strings.HasPrefix(r.URL.Path, "/api/"):
		s.api(w, r)
	default:
		file(s.static, w, r) // the same for all users, so that it can show the form
	}
}

type connKey struct{}

// ConnContext is that of an HTTP server whose listener is one of connlimit. Connections of users who have logged in do not
// count as anonymous.
func ConnContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

func originOf(of *url.URL) string { return of.Scheme + "://" + of.Host }

// urlOf returns the address of the page with an origin, or nil.
func (s *Shared) urlOf(origin string) *url.URL {
	i := slices.IndexFunc(s.options.URLs, func(of *url.URL) bool { return originOf(of) == origin })
	if i < 0 {
		return nil
	}
	return s.options.URLs[i]
}

// withSlash returns the path of the page if only the slash at its end is missing, without which relative links fail.
func (s *Shared) withSlash(path string) string {
	if path != "" && slices.ContainsFunc(s.options.URLs, func(of *url.URL) bool { return path+"/" == of.Path }) {
		return path + "/"
	}
	return ""
}

// belowURL returns the request without the path of the page's address, which some proxies remove.
func (s *Shared) belowURL(r *http.Request) *http.Request {
	longest := "/"
	for _, of := range s.options.URLs {
		if strings.HasPrefix(r.URL.Path, of.Path) && len(of.Path) > len(longest) {
			longest = of.Path
		}
	}
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = "/"+strings.TrimPrefix(r.URL.Path, longest), ""
	return r
}

// clientOf returns the client of a request, for limits.
func (s *Shared) clientOf(r *http.Request) connlimit.Origin {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return connlimit.Origin{}
	}
	address := peer.Addr().Unmap()
	forwarded := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, text := range slices.Backward(forwarded) {
		next, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || !slices.ContainsFunc(s.options.TrustedProxies, func(of netip.Prefix) bool { return of.Contains(address) }) {
			break
		}
		address = next.Unmap()
	}
	return connlimit.OriginOf(net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
}

// sharedCookie is the name of the cookie of a session, with a prefix for some addresses.
const sharedCookie = "millwright-ui-session"

// sharedCookieFor returns the name of the cookie for an address of the page. Browsers do not accept one with the prefix __Host-
// from another host of the same domain, which could otherwise make users use a session of the attacker. It requires TLS and
// the path /.
func sharedCookieFor(of *url.URL) string {
	if of.Scheme == "https" && of.Path == "/" {
		return "__Host-" + sharedCookie
	}
	return sharedCookie
}

// cookie returns the cookie of a session. It lasts until the browser is closed. Browsers accept secure cookies from
// localhost without TLS.
func (s *Shared) cookie(r *http.Request, secret string) *http.Cookie {
	of := s.urlOf(r.Header.Get("Origin"))
	return &http.Cookie{
		Name: sharedCookieFor(of), Value: secret, Path: of.Path,
		Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
}

// credentials are what a user enters.
type credentials struct {
	Token string `json:"token"`
	// Namespace is the only namespace to show. If empty, all are shown.
	Namespace string `json:"namespace,omitempty"`
}

func (c credentials) validate() error {
	if problems := validation.IsDNS1123Label(c.Namespace); c.Namespace != "" && len(problems) > 0 {
		return fmt.Errorf("%w: namespace %q: %s", errInvalid, c.Namespace, strings.Join(problems, "; "))
	}
	return nil
}

// logIn exchanges a token for the cookie of a session.
func (s *Shared) logIn(w http.ResponseWriter, r *http.Request) {
	var entered credentials
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&entered); err != nil {
		fail(w, fmt.Errorf("%w: %w", errInvalid, err))
		return
	}
	if err := entered.validate(); err != nil {
		fail(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	// Users copy tokens with white space around, and with the name of the scheme.
	entered.Token = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(entered.Token), "Bearer "))
	session, err := s.sessions.open(ctx, entered, s.clientOf(r))
	if err != nil {
		fail(w, err)
		return
	}
	http.SetCookie(w, s.cookie(r, session.secret))
	reply(w, http.StatusOK, struct{}{})
}

// bearer returns the token that a proxy added to a request, or "".
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// sessionOf returns the session of a request.
func (s *Shared) sessionOf(r *http.Request) (*userSession, error) {
	if token := bearer(r); token != "" {
		return s.sessionOfProxy(r, credentials{Token: token, Namespace: r.URL.Query().Get("in")})
	}
	for _, of := range s.options.URLs {
		if cookie, err := r.Cookie(sharedCookieFor(of)); err == nil {
			if session := s.sessions.bySecret(cookie.Value); session != nil {
				return session, nil
			}
		}
	}
	return nil, &endedError{reason: "Log in to see the cluster."}
}

// sessionOfProxy returns the session of a request with the token of a proxy.
func (s *Shared) sessionOfProxy(r *http.Request, of credentials) (*userSession, error) {
	if err := of.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	session, err := s.sessions.open(ctx, of, s.clientOf(r))
	if errors.As(err, new(*endedError)) {
		return nil, &endedError{"The API server rejects the token of the proxy: it has expired, or its issuer or client is not accepted.", true}
	}
	return session, err
}

// api serves the requests of the page with the permissions of their user.
func (s *Shared) api(w http.ResponseWriter, r *http.Request) {
	session, err := s.sessionOf(r)
	if err != nil {
		rejectRequest(w, r, err)
		return
	}
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		connlimit.Known(conn)
	}
	done, ok := session.use(isUpgrade(r))
	if !ok {
		fail(w, errTooManyTabs)
		return
	}
	defer done()
	switch r.Method + " " + r.URL.Path {
	case "GET /api/about":
		about := session.about()
		about.User, about.LogOut = session.user, bearer(r) == ""
		reply(w, http.StatusOK, about)
	case "POST /api/logout":
		s.logOut(w, r, session)
	default:
		session.api(w, r)
	}
}

func (s *Shared) logOut(w http.ResponseWriter, r *http.Request, session *userSession) {
	if bearer(r) != "" {
		fail(w, fmt.Errorf("%w: a proxy in front of this page logs you in; log out there", errInvalid))
		return
	}
	s.sessions.end(session, "You have logged out.")
	cookie := s.cookie(r, "")
	cookie.MaxAge = -1
	http.SetCookie(w, cookie)
	reply(w, http.StatusOK, struct{}{})
}

// rejectRequest reports why a request has no session. Browsers do not show pages the response to a WebSocket, so it is
// accepted and closed.
func rejectRequest(w http.ResponseWriter, r *http.Request, err error) {
	if ended := (*endedError)(nil); !isUpgrade(r) || !errors.As(err, &ended) {
		fail(w, err)
		return
	}
	tab, upgradeErr := upgrader.Upgrade(w, r, nil)
	if upgradeErr != nil {
		return // the upgrader has responded
	}
	defer tab.Close()
	closeWith(tab, closeLogIn, err.Error())
}

// endedError is the reason for which a user must log in. It is shown to them.
type endedError struct {
	reason string
	// byProxy means that the user logs in at a proxy, and cannot log in with the form.
	byProxy bool
}

func (e *endedError) Error() string { return e.reason }

// limitError reports that a limit is reached, and what to do. It is shown to the user.
type limitError struct{ text string }

func (e *limitError) Error() string { return e.text }

var (
	errTooManySessions = &limitError{"too many sessions are open; log in again later, or close sessions that you no longer use"}
	errTooManyTabs     = &limitError{"too many tabs and consoles are open; close some of them"}
	errClosing         = errors.New("the page is being stopped; log in again")
)

// rejected converts an error of Identify for the user.
func rejected(err error) error {
	if apierrors.IsUnauthorized(err) {
		return &endedError{reason: "The API server rejects the token: it has expired, was revoked, or belongs to another cluster."}
	}
	return fmt.Errorf("cannot check the token: %w; log in again later", err)
}
