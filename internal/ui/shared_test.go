package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/test/support/browser"
)

const sharedURL = "https://machines.example.com/page/"

// users are the users of a Shared by their tokens.
type users struct {
	mu sync.Mutex
	// names are those of users by token. A token without a name is not valid.
	names map[string]string
	// clients are the clients of users by token.
	clients map[string]client.WithWatch
	// namespaces are those with which pages were opened.
	namespaces []string
}

func (u *users) set(token, name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.names[token] = name
}

// newUsers returns the users a and b, who see one machine each.
func newUsers(t *testing.T) *users {
	t.Helper()
	u := &users{names: map[string]string{}, clients: map[string]client.WithWatch{}}
	for _, name := range []string{"a", "b"} {
		u.set("token-"+name, name)
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "machine-of-" + name}}
		u.clients["token-"+name] = newFakeClient(t, machine)
	}
	return u
}

func newShared(t *testing.T, u *users, change func(*SharedOptions)) *Shared {
	t.Helper()
	address, err := url.Parse(sharedURL)
	if err != nil {
		t.Fatal(err)
	}
	options := SharedOptions{
		Open: func(token, namespace string) (Options, error) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.namespaces = append(u.namespaces, namespace)
			return Options{Control: u.clients[token], Target: u.clients[token], Namespace: namespace}, nil
		},
		Identify: func(_ context.Context, token string) (string, error) {
			u.mu.Lock()
			defer u.mu.Unlock()
			if name := u.names[token]; name != "" {
				return name, nil
			}
			return "", apierrors.NewUnauthorized("invalid token")
		},
		URLs: []*url.URL{address}, MaxSessions: 10, MaxSessionsPerUser: 10, MaxSessionsPerAddress: 10, IdleTimeout: 15 * time.Minute,
	}
	if change != nil {
		change(&options)
	}
	s := NewShared(options)
	t.Cleanup(s.sessions.closeAll)
	return s
}

// visit is a request to a Shared.
type visit struct {
	method, path, body string
	headers            http.Header
	from               string
}

func (v visit) send(s *Shared) *httptest.ResponseRecorder {
	r := httptest.NewRequest(v.method, "https://machines.example.com"+v.path, strings.NewReader(v.body))
	if v.headers != nil {
		r.Header = v.headers
	}
	if v.from != "" {
		r.RemoteAddr = v.from
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// ownOrigin are the headers that the browser adds on the page.
func ownOrigin(more ...string) http.Header {
	headers := http.Header{"Origin": {"https://machines.example.com"}, "Sec-Fetch-Site": {"same-origin"}}
	for i := 0; i < len(more); i += 2 {
		headers.Set(more[i], more[i+1])
	}
	return headers
}

func tryLogIn(s *Shared, token, from string) *httptest.ResponseRecorder {
	body, _ := json.Marshal(credentials{Token: token})
	return visit{"POST", "/page/api/login", string(body), ownOrigin(), from}.send(s)
}

// logInShared returns the cookie of a session as the value of a header.
func logInShared(t *testing.T, s *Shared, token string) string {
	t.Helper()
	w := tryLogIn(s, token, "")
	cookies := w.Result().Cookies()
	if w.Code != http.StatusOK || len(cookies) != 1 {
		t.Fatalf("login: %d %s, cookies %v", w.Code, w.Body, cookies)
	}
	if c := cookies[0]; !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/page/" || c.Domain != "" {
		t.Errorf("cookie %+v", c)
	}
	if strings.Contains(w.Body.String()+cookies[0].Value, token) {
		t.Error("the response contains the token")
	}
	return cookies[0].Name + "=" + cookies[0].Value
}

// userOf returns the user of a request with these headers, or the error.
func userOf(t *testing.T, s *Shared, headers http.Header) string {
	t.Helper()
	w := visit{method: "GET", path: "/page/api/about", headers: headers}.send(s)
	var about struct{ User, Error string }
	if err := json.Unmarshal(w.Body.Bytes(), &about); err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if about.User != "" {
		return about.User
	}
	return fmt.Sprint(w.Code, " ", about.Error)
}

// TestShared_UsersSeeTheirOwnObjects checks that sessions of two users, by cookie and by a header of a proxy, never share
// objects, and that both ways with the same token share a session.
func TestShared_UsersSeeTheirOwnObjects(t *testing.T) {
	u := newUsers(t)
	s := newShared(t, u, nil)
	a, b := logInShared(t, s, "token-a"), logInShared(t, s, " Bearer token-b\n")
	if again := logInShared(t, s, "token-a"); again != a {
		t.Error("the same token got another session")
	}
	for want, headers := range map[string][]http.Header{
		"a": {ownOrigin("Cookie", a), ownOrigin("Authorization", "Bearer token-a"), ownOrigin("Authorization", "bearer token-a", "Cookie", b)},
		"b": {ownOrigin("Cookie", b), ownOrigin("Authorization", "Bearer token-b", "Cookie", a)},
	} {
		for _, headers := range headers {
			if got := userOf(t, s, headers); got != want {
				t.Errorf("%v: %s, want %s", headers, got, want)
			}
			for _, other := range []string{"a", "b"} {
				w := visit{method: "GET", path: "/page/api/yaml?kind=machine&namespace=n&name=machine-of-" + other, headers: headers}.send(s)
				if (w.Code == http.StatusOK) != (other == want) {
					t.Errorf("%s reads the machine of %s: %d", want, other, w.Code)
				}
			}
		}
	}
	if open := len(s.sessions.ofToken); open != 2 {
		t.Errorf("%d sessions, want 2", open)
	}
	for _, session := range s.sessions.ofToken {
		mine, other := "machine/n/machine-of-"+session.user, "machine/n/machine-of-"+map[string]string{"a": "b", "b": "a"}[session.user]
		awaitRow(t, session.model.hub, mine)
		if delta, _, _ := session.model.hub.since(0); strings.Contains(fmt.Sprintf("%s", delta.Rows), other) {
			t.Errorf("the rows of %s have %s", session.user, other)
		}
	}
}

// TestShared_IgnoresCookiesOfSiblings checks that another host of the same domain, which can set cookies for the domain,
// cannot make a user use the attacker's session. It cannot set cookies with the prefix __Host-.
func TestShared_IgnoresCookiesOfSiblings(t *testing.T) {
	own, err := url.Parse("https://machines.example.com/")
	if err != nil {
		t.Fatal(err)
	}
	s := newShared(t, newUsers(t), func(o *SharedOptions) { o.URLs = []*url.URL{own} })
	cookieOf := func(token string) *http.Cookie {
		w := visit{"POST", "/api/login", `{"token":"` + token + `"}`, ownOrigin(), ""}.send(s)
		cookies := w.Result().Cookies()
		if w.Code != http.StatusOK || len(cookies) != 1 {
			t.Fatalf("login: %d %s, cookies %v", w.Code, w.Body, cookies)
		}
		return cookies[0]
	}
	user, attacker := cookieOf("token-a"), cookieOf("token-b")
	// Browsers require these for the prefix.
	if !strings.HasPrefix(user.Name, "__Host-") || user.Path != "/" || !user.Secure || user.Domain != "" {
		t.Errorf("cookie %+v", user)
	}
	planted := strings.TrimPrefix(attacker.Name, "__Host-") + "=" + attacker.Value
	for sent, want := range map[string]int{
		planted + "; " + user.Name + "=" + user.Value: http.StatusOK,
		planted: http.StatusUnauthorized,
	} {
		w := visit{method: "GET", path: "/api/about", headers: ownOrigin("Cookie", sent)}.send(s)
		if w.Code != want || strings.Contains(w.Body.String(), `"user":"b"`) {
			t.Errorf("%d %s, want %d", w.Code, w.Body, want)
		}
	}
	w := visit{method: "POST", path: "/api/logout", headers: ownOrigin("Cookie", user.Name+"="+user.Value)}.send(s)
	if cookies := w.Result().Cookies(); w.Code != http.StatusOK || len(cookies) != 1 || cookies[0].Name != user.Name || cookies[0].MaxAge >= 0 {
		t.Errorf("logout: %d %s, cookies %v", w.Code, w.Body, cookies)
	}
}

// awaitRow waits until a hub has a row.
func awaitRow(t *testing.T, h *hub, id string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		delta, _, changed := h.since(0)
		if strings.Contains(fmt.Sprintf("%s", delta.Rows), `"`+id+`"`) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no row %s", id)
		}
	}
}

// TestShared_RejectsForeignRequests checks that a stolen cookie or a proxy's token cannot be used by other sites, and
// that nothing of the cluster is shown without a session.
func TestShared_RejectsForeignRequests(t *testing.T) {
	s := newShared(t, newUsers(t), nil)
	cookie := logInShared(t, s, "token-a")
	for name, tc := range map[string]struct {
		visit visit
		want  int
	}{
		"page without a session":      {visit{method: "GET", path: "/page/"}, 200},
		"page without the path":       {visit{method: "GET", path: "/"}, 200}, // a proxy removed it
		"page without the slash":      {visit{method: "GET", path: "/page"}, 308},
		"page after another login":    {visit{method: "GET", path: "/page/", headers: http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}}}, 200},
		"console after another login": {visit{method: "GET", path: "/page/console.html", headers: http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}}}, 200},
		"console in another page":     {visit{method: "GET", path: "/page/console.html", headers: http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"no-cors"}}}, 403},
		"probe":                       {visit{method: "GET", path: "/readyz"}, 200},
		"API":                         {visit{method: "GET", path: "/page/api/about", headers: http.Header{"Cookie": {cookie}}}, 200},
		"API without a session":       {visit{method: "GET", path: "/page/api/about", headers: ownOrigin()}, 401},
		"API with another cookie":     {visit{method: "GET", path: "/page/api/about", headers: ownOrigin("Cookie", sharedCookie+"=x")}, 401},
		"API with an empty cookie":    {visit{method: "GET", path: "/page/api/about", headers: ownOrigin("Cookie", sharedCookie+"=")}, 401},
		"API with another token":      {visit{method: "GET", path: "/page/api/about", headers: ownOrigin("Authorization", "Bearer x")}, 401},
		"API with a password":         {visit{method: "GET", path: "/page/api/about", headers: ownOrigin("Authorization", "Basic dG9rZW4tYTo=")}, 401},
		"cookie from another origin":  {visit{method: "GET", path: "/page/api/about", headers: ownOrigin("Cookie", cookie, "Origin", "https://attacker.example")}, 403},
		"cookie without TLS":          {visit{method: "GET", path: "/page/api/about", headers: ownOrigin("Cookie", cookie, "Origin", "http://machines.example.com")}, 403},
		"cookie from another site":    {visit{method: "GET", path: "/page/api/about", headers: http.Header{"Cookie": {cookie}, "Sec-Fetch-Site": {"cross-site"}}}, 403},
		"cookie from a sibling":       {visit{method: "GET", path: "/page/api/about", headers: http.Header{"Cookie": {cookie}, "Sec-Fetch-Site": {"same-site"}}}, 403},
		"change without an origin":    {visit{method: "POST", path: "/page/api/do", headers: http.Header{"Cookie": {cookie}}}, 403},
		"change of another origin":    {visit{method: "POST", path: "/page/api/do", headers: ownOrigin("Cookie", cookie, "Origin", "https://attacker.example")}, 403},
		"change with a proxy's token": {visit{method: "POST", path: "/page/api/do", headers: ownOrigin("Authorization", "Bearer token-a", "Origin", "https://attacker.example")}, 403},
		"login of another origin":     {visit{method: "POST", path: "/page/api/login", body: `{"token":"token-a"}`, headers: ownOrigin("Origin", "https://attacker.example")}, 403},
		"logout of another origin":    {visit{method: "POST", path: "/page/api/logout", headers: ownOrigin("Cookie", cookie, "Origin", "null")}, 403},
		"stream of another origin":    {visit{method: "GET", path: "/page/api/stream", headers: ownOrigin("Cookie", cookie, "Upgrade", "websocket", "Connection", "Upgrade", "Origin", "https://attacker.example")}, 403},
		"login with a wrong token":    {visit{method: "POST", path: "/page/api/login", body: `{"token":"x"}`, headers: ownOrigin()}, 401},
		"login without a token":       {visit{method: "POST", path: "/page/api/login", body: `{}`, headers: ownOrigin()}, 401},
		"login with another document": {visit{method: "POST", path: "/page/api/login", body: `[]`, headers: ownOrigin()}, 400},
		"login with a path":           {visit{method: "POST", path: "/page/api/login", body: `{"token":"token-a","namespace":"../secrets"}`, headers: ownOrigin()}, 400},
		"login with a long token":     {visit{method: "POST", path: "/page/api/login", body: `{"token":"` + strings.Repeat("x", 1<<20) + `"}`, headers: ownOrigin()}, 400},
		"logout by a proxy's token":   {visit{method: "POST", path: "/page/api/logout", headers: ownOrigin("Authorization", "Bearer token-a")}, 400},
		"unknown path":                {visit{method: "POST", path: "/page/api/other", headers: ownOrigin("Cookie", cookie)}, 404},
		"POST to a file":              {visit{method: "POST", path: "/page/main.js", headers: ownOrigin("Cookie", cookie)}, 405},
	} {
		t.Run(name, func(t *testing.T) {
			if w := tc.visit.send(s); w.Code != tc.want {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, tc.want)
			}
		})
	}
	policy := visit{method: "GET", path: "/page/"}.send(s).Header().Get("Content-Security-Policy")
	if !strings.Contains(policy, "connect-src 'self' wss://machines.example.com;") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("policy %q", policy)
	}
}

// TestShared_LimitsSessions checks the limits in total, for an address, and for the tabs of a session, and that another
// session can be opened when one was closed.
func TestShared_LimitsSessions(t *testing.T) {
	u := newUsers(t)
	for i := range 6 {
		u.set(fmt.Sprint("token-", i), fmt.Sprint("user-", i))
		u.clients[fmt.Sprint("token-", i)] = u.clients["token-a"]
	}
	s := newShared(t, u, func(o *SharedOptions) {
		o.MaxSessions, o.MaxSessionsPerAddress, o.TrustedProxies = 3, 2, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	})
	logIn := func(token, from, forwarded string) int {
		headers := ownOrigin()
		if forwarded != "" {
			headers.Set("X-Forwarded-For", forwarded)
		}
		return visit{"POST", "/page/api/login", `{"token":"` + token + `"}`, headers, from}.send(s).Code
	}
	for i, step := range []struct {
		token, from, forwarded string
		want                   int
	}{
		{"token-0", "192.0.2.1:1", "", 200},
		{"token-1", "192.0.2.1:2", "", 200},
		{"token-2", "192.0.2.1:3", "", 429},                       // of one address
		{"token-2", "192.0.2.1:3", "198.51.100.1", 429},           // not a trusted proxy
		{"token-2", "10.0.0.1:1", "192.0.2.1", 429},               // the address behind the proxy
		{"token-2", "10.0.0.1:1", "198.51.100.9, 192.0.2.1", 429}, // what a client claims in addition
		{"token-0", "192.0.2.1:3", "", 200},                       // an open session
		{"token-2", "10.0.0.1:1", "198.51.100.1, 10.1.1.1", 200},  // two proxies
		{"token-3", "198.51.100.2:1", "", 429},                    // in total
	} {
		if got := logIn(step.token, step.from, step.forwarded); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	session := s.sessions.ofToken[credentials{Token: "token-0"}.key()]
	for range maxTabs {
		if _, ok := session.use(true); !ok {
			t.Fatal("a tab is refused")
		}
	}
	if w := (visit{method: "GET", path: "/page/api/stream", headers: ownOrigin("Authorization", "Bearer token-0", "Upgrade", "websocket", "Connection", "Upgrade")}).send(s); w.Code != 429 {
		t.Errorf("one more tab: %d", w.Code)
	}
	s.sessions.end(session, "over")
	if got := logIn("token-3", "198.51.100.2:1", ""); got != 200 {
		t.Errorf("after a session ended: %d", got)
	}
}

// TestShared_UserCannotUseAllSessions checks that a user with many tokens and addresses, and with a token for many namespaces,
// gets a limited number of sessions, so that others can log in, and that a message explains why.
func TestShared_UserCannotUseAllSessions(t *testing.T) {
	u := newUsers(t)
	for i := range 3 {
		u.set(fmt.Sprint("token-", i), "a")
		u.clients[fmt.Sprint("token-", i)] = u.clients["token-a"]
	}
	s := newShared(t, u, func(o *SharedOptions) { o.MaxSessions, o.MaxSessionsPerUser = 3, 2 })
	logIn := func(token, namespace, from string) *httptest.ResponseRecorder {
		body := fmt.Sprintf(`{"token":%q,"namespace":%q}`, token, namespace)
		return visit{"POST", "/page/api/login", body, ownOrigin(), from + ":1"}.send(s)
	}
	const problem = "you already have 2 sessions, the maximum for a user; log out of one of them, or log in again in 15m, when those without open tabs have expired"
	for i, step := range []struct {
		token, namespace, from string
		want                   int
	}{
		{"token-0", "", "192.0.2.1", 200},
		{"token-0", "n", "192.0.2.2", 200}, // a session of its own
		{"token-0", "other", "192.0.2.3", 429},
		{"token-1", "", "192.0.2.4", 429},
		{"token-0", "", "192.0.2.5", 200}, // an open session
		{"token-b", "", "192.0.2.1", 200}, // another user
	} {
		w := logIn(step.token, step.namespace, step.from)
		if w.Code != step.want || (w.Code == http.StatusTooManyRequests) != strings.Contains(w.Body.String(), problem) {
			t.Fatalf("step %d: %d %s, want %d", i, w.Code, w.Body, step.want)
		}
	}
	u.set("token-c", "c")
	if w := logIn("token-c", "", "192.0.2.6"); w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), errTooManySessions.text) {
		t.Errorf("a user without a session, at the limit of all sessions: %d %s", w.Code, w.Body)
	}
	// What a limit refuses must not count for another one.
	s.sessions.end(s.sessions.ofToken[credentials{Token: "token-b"}.key()], "over")
	s.sessions.end(s.sessions.ofToken[credentials{Token: "token-0"}.key()], "over")
	if w := logIn("token-1", "", "192.0.2.4"); w.Code != http.StatusOK {
		t.Errorf("after a session ended: %d %s", w.Code, w.Body)
	}
	if w := logIn("token-b", "", "192.0.2.4"); w.Code != http.StatusOK {
		t.Errorf("the other user after a session ended: %d %s", w.Code, w.Body)
	}
}

// TestShared_LimitsChecks checks that 16 tokens are checked at the same time, however many clients send one, and that they
// do not prevent a session from being closed when its token is revoked.
func TestShared_LimitsChecks(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	u := newUsers(t)
	s := newShared(t, u, func(o *SharedOptions) {
		identify := o.Identify
		o.Identify = func(ctx context.Context, token string) (string, error) {
			if token != "wrong" {
				return identify(ctx, token)
			}
			entered <- struct{}{}
			<-leave
			return "", apierrors.NewUnauthorized("invalid token")
		}
	})
	logInShared(t, s, "token-a")
	session := s.sessions.ofToken[credentials{Token: "token-a"}.key()]
	var checks sync.WaitGroup
	for range 16 {
		checks.Go(func() { tryLogIn(s, "wrong", "") })
		<-entered
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.sessions.identify(ctx, "wrong"); !errors.Is(err, context.Canceled) {
		t.Errorf("one more check: %v", err)
	}
	u.set("token-a", "")
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got := s.sessions.over(ctx, session, session.began); got != "The token has expired or was revoked. Log in again." {
		t.Errorf("the session of a revoked token: %q", got)
	}
	close(leave)
	checks.Wait()
}

// TestSession_IsOver checks when a session is closed.
func TestSession_IsOver(t *testing.T) {
	u := newUsers(t)
	s := newShared(t, u, nil)
	logInShared(t, s, "token-a")
	session := s.sessions.ofToken[credentials{Token: "token-a"}.key()]
	over := func(after time.Duration) string {
		return s.sessions.over(t.Context(), session, session.began.Add(after))
	}
	if got := over(14 * time.Minute); got != "" {
		t.Errorf("a session in use is closed: %s", got)
	}
	if got := over(16 * time.Minute); got != "The session was not used. Log in again." {
		t.Errorf("an idle session: %q", got)
	}
	done, _ := session.use(true)
	if got := over(11 * time.Hour); got != "" {
		t.Errorf("a session with a tab is closed: %s", got)
	}
	if got := over(12 * time.Hour); !strings.Contains(got, "maximum age") {
		t.Errorf("an old session: %q", got)
	}
	done()
	for _, name := range []string{"", "another user"} {
		u.set("token-a", name)
		if got := over(time.Minute); got != "The token has expired or was revoked. Log in again." {
			t.Errorf("the token is that of %q: %q", name, got)
		}
	}
}

// serveShared serves a Shared on the loopback address, as a browser reaches it, and returns its address. If proxy is not
// nil, it changes each request before, or responds to it and returns false.
func serveShared(t *testing.T, u *users, proxy func(http.ResponseWriter, *http.Request) bool) (*Shared, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := &url.URL{Scheme: "http", Host: strings.Replace(listener.Addr().String(), "127.0.0.1", "localhost", 1), Path: "/page/"}
	s := newShared(t, u, func(o *SharedOptions) { o.URLs = []*url.URL{address} })
	page := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if proxy == nil || proxy(w, r) {
			s.ServeHTTP(w, r)
		}
	}))
	page.Listener.Close()
	page.Listener = listener
	page.Start()
	t.Cleanup(func() {
		page.CloseClientConnections()
		page.Close()
	})
	return s, address.String()
}

// TestStream_ReportsWhyItsSessionEnded checks that a tab gets the reason, and that one without a session must log in.
func TestStream_ReportsWhyItsSessionEnded(t *testing.T) {
	s, address := serveShared(t, newUsers(t), nil)
	stream := strings.Replace(address, "http", "ws", 1) + "api/stream"
	dial := func(token string) *websocket.Conn {
		headers := http.Header{"Origin": {strings.TrimSuffix(address, "/page/")}}
		if token != "" {
			headers.Set("Authorization", "Bearer "+token)
		}
		conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), stream, headers)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	closedWith := func(conn *websocket.Conn) string {
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				return err.Error()
			}
		}
	}
	conn := dial("token-a")
	if _, _, err := conn.ReadMessage(); err != nil {
		t.Fatal(err)
	}
	s.sessions.end(s.sessions.ofToken[credentials{Token: "token-a"}.key()], "The token has expired or was revoked. Log in again.")
	if got := closedWith(conn); got != "websocket: close 4001: The token has expired or was revoked. Log in again." {
		t.Error(got)
	}
	if got := closedWith(dial("")); got != "websocket: close 4001: Log in to see the cluster." {
		t.Error(got)
	}
	if got := closedWith(dial("x")); !strings.HasPrefix(got, "websocket: close 4001: The API server rejects the token") {
		t.Error(got)
	}
}

// TestPage_LogsIn checks the login view with axe-core, that a user logs in, out, and in again as another one in a browser,
// and that the page shows why the session ended.
func TestPage_LogsIn(t *testing.T) {
	p := browser.Open(t)
	u := newUsers(t)
	s, address := serveShared(t, u, nil)
	p.Navigate(address)
	p.Await(`document.querySelector(".login").innerText.includes("Log in to see the cluster.")`)
	p.WantAccessible("../../ui/vendor/axe-core/axe.min.js", "login")
	p.Resize(1440, 1000, false)
	p.Screenshot(t, "login")
	p.Fill(".login input[type=password]", "wrong")
	p.Click(".login button", "Log in")
	p.Await(`document.querySelector(".login .problem")?.innerText.includes("rejects the token")`)

	p.Fill(".login input[type=password]", "token-a")
	p.Fill(".login input[type=text]", "n")
	p.Click(".login button", "Log in")
	p.Await(`document.querySelector(".tile")?.dataset.id === "machine/n/machine-of-a" && document.querySelector(".link").innerText === "n · a"`)
	if got := browser.Evaluate[string](p, `document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)`); got != "{}{}" {
		t.Errorf("scripts can read %s", got)
	}
	u.mu.Lock()
	if len(u.namespaces) != 1 || u.namespaces[0] != "n" {
		t.Errorf("namespaces %q", u.namespaces)
	}
	u.mu.Unlock()
	p.Click("header button", "Log out")
	p.Await(`document.querySelector(".login").innerText.includes("You have logged out.") && !document.querySelector(".tile")`)

	p.Fill(".login input[type=password]", "token-b")
	p.Click(".login button", "Log in")
	p.Await(`document.querySelectorAll(".tile").length === 1 && document.querySelector(".tile").dataset.id === "machine/n/machine-of-b"`)
	p.WantAccessible("../../ui/vendor/axe-core/axe.min.js", "after the login")
	u.set("token-b", "")
	session := s.sessions.ofToken[credentials{Token: "token-b"}.key()]
	s.sessions.end(session, s.sessions.over(t.Context(), session, time.Now()))
	p.Await(`document.querySelector(".login").innerText.includes("The token has expired or was revoked.") && !document.querySelector(".tile")`)
	for _, problem := range p.Problems() {
		if !strings.Contains(problem, "401 (Unauthorized)") { // until the login
			t.Errorf("the page reports: %s", problem)
		}
	}
}

// TestPage_ShowsWhyProxyUserIsRefused checks that a user whom a proxy logs in, who sees no form, learns of a limit.
func TestPage_ShowsWhyProxyUserIsRefused(t *testing.T) {
	p := browser.Open(t)
	s, address := serveShared(t, newUsers(t), func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Set("Authorization", "Bearer token-a")
		return true
	})
	s.sessions.users = connlimit.NewCounter(1, 0)
	p.Navigate(address)
	p.Await(`document.querySelector(".banner").innerText.includes("the maximum for a user")`)
}

// TestPage_ContinuesWithNewTokenOfProxy checks that a page whose proxy logs users in shows no form when the token expires,
// but continues with the next token.
func TestPage_ContinuesWithNewTokenOfProxy(t *testing.T) {
	p := browser.Open(t)
	u := newUsers(t)
	var token atomic.Value
	token.Store("token-a")
	s, address := serveShared(t, u, func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Set("Authorization", "Bearer "+token.Load().(string))
		return true
	})
	p.Navigate(address)
	p.Await(`document.querySelector(".tile")?.dataset.id === "machine/n/machine-of-a" && !document.querySelector(".login")`)
	token.Store("token-b")
	s.sessions.end(s.sessions.ofToken[credentials{Token: "token-a"}.key()], "The token has expired or was revoked. Log in again.")
	p.Await(`document.querySelectorAll(".tile").length === 1 && document.querySelector(".tile").dataset.id === "machine/n/machine-of-b" && !document.querySelector(".login")`)
	token.Store("invalid")
	s.sessions.end(s.sessions.ofToken[credentials{Token: "token-b"}.key()], "The token has expired or was revoked. Log in again.")
	p.Await(`document.querySelector(".login")?.innerText.includes("rejects the token of the proxy") && !document.querySelector(".tile, .login input")`)
}

// TestPage_LogsInAgainAtProxy checks that the page asks users to log in again when their session at a proxy has expired, whether
// the proxy responds with status 401 or with a redirect. After the login, the page must be loaded again, with the same namespace.
func TestPage_LogsInAgainAtProxy(t *testing.T) {
	for name, login := range map[string]http.HandlerFunc{
		"status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://login.example/", http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := browser.Open(t)
			u := newUsers(t)
			var expired atomic.Bool
			s, address := serveShared(t, u, func(w http.ResponseWriter, r *http.Request) bool {
				if expired.Load() && strings.HasPrefix(r.URL.Path, "/page/api/") {
					login(w, r)
					return false
				}
				r.Header.Set("Authorization", "Bearer token-a")
				return true
			})
			p.Navigate(address + "?namespace=n")
			p.Await(`document.querySelector(".tile")?.dataset.id === "machine/n/machine-of-a"`)
			expired.Store(true)
			s.sessions.end(s.sessions.ofToken[credentials{Token: "token-a", Namespace: "n"}.key()], "The token has expired or was revoked. Log in again.")
			p.Await(`document.querySelector(".login")?.innerText.includes("your session has expired") && !document.querySelector(".tile, .login input")`)
			p.WantAccessible("../../ui/vendor/axe-core/axe.min.js", "the session of the proxy has expired")
			expired.Store(false)
			p.Click(".login button", "Log in again")
			p.Await(`document.querySelector(".tile")?.dataset.id === "machine/n/machine-of-a"`)
			for _, problem := range p.Problems() {
				if !strings.Contains(problem, "401 (Unauthorized)") {
					t.Errorf("the page reports: %s", problem)
				}
			}
		})
	}
}

// TestPage_ReportsProxyWithoutWebSockets checks that the page reports the reason if a proxy does not pass WebSockets through.
func TestPage_ReportsProxyWithoutWebSockets(t *testing.T) {
	p := browser.Open(t)
	_, address := serveShared(t, newUsers(t), func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Set("Authorization", "Bearer token-a")
		r.Header.Del("Upgrade")
		return true
	})
	p.Navigate(address)
	p.Await(`document.querySelector(".banner").innerText.includes("does not pass WebSockets")`)
}

// TestShared_ShowsNamespaceToUserOfProxy checks that a user behind a proxy gets a session for the namespace in the address, and
// that invalid namespaces are rejected.
func TestShared_ShowsNamespaceToUserOfProxy(t *testing.T) {
	u := newUsers(t)
	s := newShared(t, u, nil)
	for _, tc := range []struct {
		query string
		want  int
	}{{"", 200}, {"?in=n", 200}, {"?in=n", 200}, {"?in=../secrets", 400}} {
		w := visit{method: "GET", path: "/page/api/about" + tc.query, headers: ownOrigin("Authorization", "Bearer token-a")}.send(s)
		if w.Code != tc.want {
			t.Errorf("%q: %d %s", tc.query, w.Code, w.Body)
		}
	}
	if fmt.Sprintf("%q", u.namespaces) != `["" "n"]` {
		t.Errorf("sessions of the namespaces %q", u.namespaces)
	}
}
