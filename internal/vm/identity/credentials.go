package identity

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// obtainTimeout limits one attempt to get a certificate.
	obtainTimeout = 10 * time.Second
	// renewPause is the time until the next attempt to renew a certificate that is still valid.
	renewPause = time.Minute
)

// Credentials are the key and the certificate of one process. A certificate is requested when it is first needed,
// when two thirds of its lifetime have passed, when another authority issues certificates, and after a server has
// rejected it. Credentials are safe for concurrent use; concurrent callers share one request.
type Credentials struct {
	trust  trust
	log    *slog.Logger
	self   string // the name in logs and errors
	obtain func(context.Context) (*tls.Certificate, error)
	// signer returns the certificate of the authority that issues certificates. If nil, this process learns of another
	// one in FollowAuthorities, if at all.
	signer func() *x509.Certificate
	// follows reports whether the controller can change the trusted authorities.
	follows bool
	// every is the interval at which obtain is called again, even if it failed. If 0, see Credentials.
	every  time.Duration
	flight singleflight.Group

	mu      sync.Mutex
	current *tls.Certificate // nil before the first certificate
	// issuer is what signer returned before current was requested.
	issuer  *x509.Certificate
	renewAt time.Time
	err     error // the error of the last attempt, if it was ErrNoIssuer or ErrBadFiles
}

// Err returns why the last attempt to get a certificate failed, if this process does not have a certificate. The error
// wraps ErrNoIssuer or ErrBadFiles. Err returns nil if there is a certificate, or if the controller was unreachable.
func (c *Credentials) Err() error {
	if cert, _ := c.have(); cert != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// ForController returns the credentials of the controller. When the authority is replaced, the next connection uses a
// certificate of the new one. If now is nil, time.Now is used.
func ForController(authority *Authority, now func() time.Time) *Credentials {
	if now == nil {
		now = time.Now
	}
	c := &Credentials{
		trust: trust{authority.anchors, now},
		log:   slog.New(slog.DiscardHandler),
		self:  uriController,

		signer: authority.Certificate,
	}
	c.obtain = func(context.Context) (*tls.Certificate, error) {
		key, request, err := newRequest()
		if err != nil {
			return nil, err
		}
		der, err := authority.Sign(request, Controller(), Lifetime, now())
		if err != nil {
			return nil, err
		}
		return withLeaf(der, key)
	}
	return c
}

// ForServer returns the credentials of a server for clients that verify a host name, such as kube-apiserver. Peers
// do not accept them; use them with Certificate only. If now is nil, time.Now is used.
func ForServer(authority *Authority, host string, now func() time.Time) *Credentials {
	c := ForController(authority, now)
	c.self = host
	c.obtain = func(context.Context) (*tls.Certificate, error) {
		return authority.ServerCertificate(host, Lifetime, c.trust.now())
	}
	return c
}

// Certificate returns a valid certificate. It implements tls.Config.GetCertificate.
func (c *Credentials) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.certificate(hello.Context())
}

func (c *Credentials) certificate(ctx context.Context) (*tls.Certificate, error) {
	cert, due := c.have()
	if !due {
		return cert, nil
	}
	renewed, err := c.renew(ctx)
	if err == nil || cert == nil {
		return renewed, err
	}
	c.log.Warn("cannot renew the certificate; the current one is still valid",
		"until", cert.Leaf.NotAfter, "error", err)
	c.postpone(cert)
	return cert, nil
}

// have returns the current certificate if it is valid, and whether a new one must be requested.
func (c *Credentials) have() (cert *tls.Certificate, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.trust.now()
	if c.current == nil || now.After(c.current.Leaf.NotAfter) {
		return nil, true
	}
	return c.current, !now.Before(c.renewAt) || !c.issuer.Equal(c.authority())
}

// authority returns the certificate of the authority that issues certificates, or nil if it is unknown.
func (c *Credentials) authority() *x509.Certificate {
	if c.signer == nil {
		return nil
	}
	return c.signer()
}

// renew requests a certificate. Concurrent callers share the request, which continues when one of them gives up.
func (c *Credentials) renew(ctx context.Context) (*tls.Certificate, error) {
	shared := context.WithoutCancel(ctx)
	result := c.flight.DoChan("", func() (any, error) {
		if cert, due := c.have(); !due {
			return cert, nil // another request has succeeded in the meantime
		}
		ctx, cancel := context.WithTimeout(shared, obtainTimeout)
		defer cancel()
		issuer := c.authority() // before the request: if the authority is replaced meanwhile, another one follows
		cert, err := c.obtain(ctx)
		if err != nil {
			c.fail(err)
			return nil, err
		}
		c.keep(cert, issuer)
		return cert, nil
	})
	select {
	case got := <-result:
		if got.Err != nil {
			return nil, fmt.Errorf("getting the certificate of %s: %w", c.self, got.Err)
		}
		return got.Val.(*tls.Certificate), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("getting the certificate of %s: %w", c.self, context.Cause(ctx))
	}
}

func (c *Credentials) keep(cert *tls.Certificate, issuer *x509.Certificate) {
	life := cert.Leaf.NotAfter.Sub(cert.Leaf.NotBefore)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.issuer, c.renewAt, c.err = cert, issuer, cert.Leaf.NotAfter.Add(-life/3), nil
	if c.every > 0 {
		c.renewAt = c.trust.now().Add(c.every)
	}
}

func (c *Credentials) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = nil
	if errors.Is(err, ErrNoIssuer) || errors.Is(err, ErrBadFiles) {
		c.err = err
	}
}

func (c *Credentials) postpone(cert *tls.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == cert {
		c.renewAt = c.trust.now().Add(cmp.Or(c.every, renewPause))
	}
}

// refused records that a server rejected this certificate, so that the next connection requests a new one. If that
// fails, the old certificate is used: it may have been the wrong server.
func (c *Credentials) refused(cert *tls.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == cert {
		c.renewAt = time.Time{}
	}
}

// withLeaf returns the certificate with its key. It fails if they do not belong together.
func withLeaf(der []byte, key privateKey) (*tls.Certificate, error) {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate: %w", err)
	}
	public, ok := leaf.PublicKey.(publicKey)
	if !ok || !public.Equal(key.Public()) {
		return nil, errors.New("the certificate does not match the key")
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// The methods of all private keys in the standard library.
type (
	privateKey = crypto.Signer
	publicKey  interface{ Equal(crypto.PublicKey) bool }
)
