package ui

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

const (
	// checkInterval is how often the token of a session is checked, so that it is closed soon after its token expires.
	checkInterval = 30 * time.Second
	// maxSessionAge is how long a session lasts, however long its token is valid.
	maxSessionAge = 12 * time.Hour
	// maxTabs limits the tabs and consoles of a session.
	maxTabs = 64
	// maxChecks limits the tokens of clients without a session that are checked at the same time. The checks of sessions are
	// limited by their number.
	maxChecks = 16
)

// hashed is a token or the value of a cookie, hashed so that the time of a lookup reveals nothing.
type hashed [sha256.Size]byte

func hash(text string) hashed { return sha256.Sum256([]byte(text)) }

// key identifies the session of a token and a namespace, which contains no zero byte.
func (c credentials) key() hashed { return hash(c.Token + "\x00" + c.Namespace) }

// sessions are those of all users. There is one for each token and namespace, so that the caches of a user are never used
// with another token.
type sessions struct {
	options SharedOptions
	// taken counts sessions by address, and users by user.
	taken, users *connlimit.Counter
	checks       chan struct{}
	ctx          context.Context
	cancel       context.CancelFunc
	running      sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	ofToken  map[hashed]*userSession
	ofSecret map[hashed]*userSession
}

// userSession is a session of a user.
type userSession struct {
	*view
	credentials
	user string
	// secret is the value of the cookie.
	secret string
	began  time.Time
	// release permits another session instead of this one.
	release func()

	mu sync.Mutex
	// requests are those in progress, with tabs, and last is when the latest one was complete.
	requests, tabs int
	last           time.Time
}

func newSessions(options SharedOptions) *sessions {
	s := &sessions{
		options: options, checks: make(chan struct{}, maxChecks),
		taken:   connlimit.NewCounter(options.MaxSessions, options.MaxSessionsPerAddress),
		users:   connlimit.NewCounter(options.MaxSessions, options.MaxSessionsPerUser),
		ofToken: map[hashed]*userSession{}, ofSecret: map[hashed]*userSession{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// bySecret returns the session of a cookie, or nil.
func (s *sessions) bySecret(secret string) *userSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofSecret[hash(secret)]
}

// open returns the session of a token. If there is none, it checks the token and begins one.
func (s *sessions) open(ctx context.Context, of credentials, from connlimit.Origin) (*userSession, error) {
	s.mu.Lock()
	existing := s.ofToken[of.key()]
	s.mu.Unlock()
	if existing != nil {
		return existing, nil
	}
	if of.Token == "" {
		return nil, &endedError{reason: "Enter a token."}
	}
	user, err := s.identify(ctx, of.Token)
	if err != nil {
		return nil, rejected(err)
	}
	options, err := s.options.Open(of.Token, of.Namespace)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if existing := s.ofToken[of.key()]; existing != nil { // a request at the same time began it
		return existing, nil
	}
	if s.closed {
		return nil, errClosing
	}
	release, err := s.take(user, from)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	session := &userSession{view: newView(options), credentials: of, user: user, secret: rand.Text(), began: now, last: now, release: release}
	s.ofToken[of.key()], s.ofSecret[hash(session.secret)] = session, session
	s.running.Go(func() { s.run(session) })
	return session, nil
}

// take permits a session for a user at an address until release is called.
func (s *sessions) take(user string, from connlimit.Origin) (release func(), err error) {
	// The limit of the address is checked first: otherwise, the limit of all sessions would be reported as that of the user.
	ofAddress, ok := s.taken.Take(from)
	if !ok {
		return nil, errTooManySessions
	}
	ofUser, ok := s.users.Take(user)
	if !ok {
		ofAddress()
		return nil, &limitError{fmt.Sprintf("you already have %d sessions, the maximum for a user; log out of one of them, or log in again in %s, when those without open tabs have expired",
			s.options.MaxSessionsPerUser, duration.HumanDuration(s.options.IdleTimeout))}
	}
	return func() { ofUser(); ofAddress() }, nil
}

// identify returns the user of a token that has no session.
func (s *sessions) identify(ctx context.Context, token string) (string, error) {
	select {
	case s.checks <- struct{}{}:
		defer func() { <-s.checks }()
		return s.options.Identify(ctx, token)
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// run watches the cluster for a session until it is closed.
func (s *sessions) run(session *userSession) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	context.AfterFunc(session.stopping, cancel)
	s.running.Go(func() { s.check(ctx, session) })
	session.view.run(ctx)
}

// check closes a session when its token is no longer valid, or when it is idle or old.
func (s *sessions) check(ctx context.Context, session *userSession) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if reason := s.over(ctx, session, now); reason != "" {
				s.end(session, reason)
				return
			}
		}
	}
}

// over returns why a session has to be closed, or "".
func (s *sessions) over(ctx context.Context, session *userSession, now time.Time) string {
	switch {
	case now.Sub(session.began) >= maxSessionAge:
		return "The session has reached its maximum age. Log in again."
	case session.idle(now) >= s.options.IdleTimeout:
		return "The session was not used. Log in again."
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The limit of identify does not apply: clients that send many wrong tokens could otherwise delay this check, and so use a
	// revoked token longer. Without a response of the API server, the rows report that they may be out of date.
	if user, err := s.options.Identify(ctx, session.Token); apierrors.IsUnauthorized(err) || err == nil && user != session.user {
		return "The token has expired or was revoked. Log in again."
	}
	return ""
}

// end closes a session. Its tabs show the reason.
func (s *sessions) end(session *userSession, reason string) {
	s.mu.Lock()
	if s.ofToken[session.key()] == session { // and not a later one
		delete(s.ofToken, session.key())
	}
	delete(s.ofSecret, hash(session.secret))
	s.mu.Unlock()
	session.stop(&endedError{reason: reason})
	session.release()
}

// closeAll closes all sessions, and waits for them. Tabs connect to the next process.
func (s *sessions) closeAll() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
}

// use records a request until done is called. It returns false if the request opens a tab or a console, of which there
// are too many.
func (s *userSession) use(tab bool) (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tabs := 0
	if tab {
		tabs = 1
	}
	if s.tabs+tabs > maxTabs {
		return nil, false
	}
	s.requests++
	s.tabs += tabs
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests--
		s.tabs -= tabs
		s.last = time.Now()
	}, true
}

// idle returns since when a session has no requests and tabs.
func (s *userSession) idle(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests > 0 {
		return 0
	}
	return now.Sub(s.last)
}
