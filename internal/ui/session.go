package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"sync"
)

// session admits one browser: the first request with the token gets a cookie, and all others need that cookie.
type session struct {
	mu sync.Mutex
	// token is empty once it was used.
	token string
	// secret is the value of the cookie.
	secret string
}

func newSession() *session { return &session{token: rand.Text(), secret: rand.Text()} }

// cookieName is the name of the cookie. Other ports of the same host name would share it, so the host name contains
// random letters; see NewHostName.
const cookieName = "millwright-ui"

// redeem reports whether the token is the valid one, which then becomes invalid.
func (s *session) redeem(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
		return false
	}
	s.token = ""
	return true
}

// cookie returns the cookie of the session. It lasts until the browser is closed.
func (s *session) cookie() *http.Cookie {
	return &http.Cookie{Name: cookieName, Value: s.secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}
}

// admits reports whether a request has the cookie of the session.
func (s *session) admits(r *http.Request) bool {
	cookie, err := r.Cookie(cookieName)
	return err == nil && subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(s.secret)) == 1
}
