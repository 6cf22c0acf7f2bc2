package ui

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
)

// certificate is a self-signed certificate for names and addresses of this host.
type certificate struct {
	certFile, keyFile string
	pair              tls.Certificate
}

func newCertificate(t *testing.T, names ...string) certificate {
	t.Helper()
	template := x509.Certificate{DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	pair, err := ca.New(template, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := certificate{certFile: filepath.Join(dir, "tls.crt"), keyFile: filepath.Join(dir, "tls.key")}
	for file, content := range map[string][]byte{c.certFile: pair.CertPEM(), c.keyFile: pair.KeyPEM()} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.pair = tls.Certificate{Certificate: [][]byte{pair.Cert.Raw}, PrivateKey: pair.Key}
	return c
}

// tokenLifetime is how long the tokens of a provider are valid.
const tokenLifetime = time.Minute

// provider is a provider of OpenID Connect. Its login page has a link for each user, without passwords.
type provider struct {
	t      *testing.T
	issuer string
	key    *rsa.PrivateKey
	users  []string

	mu sync.Mutex
	// grants are the logins by authorization code and by refresh token.
	grants map[string]grant
}

type grant struct{ user, nonce, client string }

// startProvider starts a provider until the test is complete.
func startProvider(t *testing.T, own certificate, users ...string) *provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{t: t, key: key, users: users, grants: map[string]grant{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.configuration)
	mux.HandleFunc("GET /keys", p.keys)
	mux.HandleFunc("GET /login", p.login)
	mux.HandleFunc("POST /token", p.token)
	server := httptest.NewUnstartedServer(mux)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{own.pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	p.issuer = server.URL
	return p
}

func respond(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client has gone
}

func (p *provider) configuration(w http.ResponseWriter, _ *http.Request) {
	respond(w, map[string]any{
		"issuer": p.issuer, "authorization_endpoint": p.issuer + "/login", "token_endpoint": p.issuer + "/token", "jwks_uri": p.issuer + "/keys",
		"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"}, "code_challenge_methods_supported": []string{"S256"},
	})
}

func (p *provider) keys(w http.ResponseWriter, _ *http.Request) {
	respond(w, map[string]any{"keys": []any{map[string]any{
		"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "key",
		"n": encode(p.key.N.Bytes()), "e": encode(big.NewInt(int64(p.key.E)).Bytes()),
	}}})
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// login shows the users. When one was chosen, it redirects the browser back.
func (p *provider) login(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if user := query.Get("user"); user != "" {
		back, err := url.Parse(query.Get("redirect_uri"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		code := p.grant(grant{user, query.Get("nonce"), query.Get("client_id")})
		back.RawQuery = url.Values{"code": {code}, "state": {query.Get("state")}}.Encode()
		http.Redirect(w, r, back.String(), http.StatusFound)
		return
	}
	w.Header().Set("Content-Type", "text/html")
	for _, user := range p.users {
		query.Set("user", user)
		fmt.Fprintf(w, `<p><a href="/login?%s">%s</a></p>`, html.EscapeString(query.Encode()), html.EscapeString(user))
	}
}

func (p *provider) grant(to grant) (name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name = rand.Text()
	p.grants[name] = to
	return name
}

// token exchanges a code or a refresh token for tokens.
func (p *provider) token(w http.ResponseWriter, r *http.Request) {
	name := r.FormValue("code") + r.FormValue("refresh_token")
	p.mu.Lock()
	of, ok := p.grants[name]
	p.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusBadRequest)
		respond(w, map[string]string{"error": "invalid_grant"})
		return
	}
	// As with common providers, tokens are so large that the cookies exceed nginx's default buffers.
	access := make([]byte, 2500)
	_, _ = rand.Read(access) // it never fails
	respond(w, map[string]any{
		"access_token": encode(access), "token_type": "Bearer", "expires_in": int(tokenLifetime.Seconds()),
		"refresh_token": p.grant(of), "id_token": p.idToken(of),
	})
}

// idToken returns a signed token for a user.
func (p *provider) idToken(of grant) string {
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": p.issuer, "aud": of.client, "sub": of.user, "email": of.user, "email_verified": true, "nonce": of.nonce,
		"jti": rand.Text(), "iat": now.Unix(), "exp": now.Add(tokenLifetime).Unix(),
	})
	if err != nil {
		p.t.Error(err)
	}
	signed := encode([]byte(`{"alg":"RS256","kid":"key","typ":"JWT"}`)) + "." + encode(claims)
	digest := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, p.key, crypto.SHA256, digest[:])
	if err != nil {
		p.t.Error(err)
	}
	return signed + "." + encode(signature)
}
