package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// obtainTimeout bounds one attempt to get a certificate.
	obtainTimeout = 10 * time.Second
	// renewPause is how long a certificate that could not be renewed, and is still
	// good, is used before the next attempt.
	renewPause = time.Minute
)

// Credentials are the key and the certificate of one process. They are got when first
// needed, and again when two thirds of their life are over or a server refused them.
// All methods may be called from any goroutine; who needs a certificate at the same
// time shares one attempt to get it.
type Credentials struct {
	trust  trust
	log    *slog.Logger
	self   string // the name in logs and errors
	obtain func(context.Context) (*tls.Certificate, error)
	flight singleflight.Group

	mu      sync.Mutex
	current *tls.Certificate // nil: none yet
	renewAt time.Time
}

// ForController returns the credentials of the controller itself. A nil now stands for
// time.Now.
func ForController(authority *Authority, now func() time.Time) *Credentials {
	if now == nil {
		now = time.Now
	}
	c := &Credentials{
		trust: newTrust([]*x509.Certificate{authority.pair.Cert}, now),
		log:   slog.New(slog.DiscardHandler),
		self:  uriController,
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

// Peer returns the identity in the certificate, and requests one if there is none. An error keeps
// the status with which the controller refused.
func (c *Credentials) Peer(ctx context.Context) (Peer, error) {
	cert, err := c.certificate(ctx)
	if err != nil {
		return Peer{}, err
	}
	return peerOf(cert.Leaf)
}

// certificate returns one that is good now.
func (c *Credentials) certificate(ctx context.Context) (*tls.Certificate, error) {
	cert, due := c.have()
	if !due {
		return cert, nil
	}
	renewed, err := c.renew(ctx)
	if err == nil || cert == nil {
		return renewed, err
	}
	c.log.Warn("certificate not renewed, the old one is still good",
		"until", cert.Leaf.NotAfter, "error", err)
	c.postpone(cert)
	return cert, nil
}

// have returns the certificate if there is one that is good, and whether it is time to
// get another.
func (c *Credentials) have() (cert *tls.Certificate, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.trust.now()
	if c.current == nil || now.After(c.current.Leaf.NotAfter) {
		return nil, true
	}
	return c.current, !now.Before(c.renewAt)
}

// renew gets a certificate, or waits for the one that somebody else is getting. The
// attempt is everybody's, so it goes on when one of them no longer waits.
func (c *Credentials) renew(ctx context.Context) (*tls.Certificate, error) {
	shared := context.WithoutCancel(ctx)
	result := c.flight.DoChan("", func() (any, error) {
		if cert, due := c.have(); !due {
			return cert, nil // somebody else's attempt ended since ours was found to be needed
		}
		ctx, cancel := context.WithTimeout(shared, obtainTimeout)
		defer cancel()
		cert, err := c.obtain(ctx)
		if err != nil {
			return nil, err
		}
		c.keep(cert)
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

func (c *Credentials) keep(cert *tls.Certificate) {
	life := cert.Leaf.NotAfter.Sub(cert.Leaf.NotBefore)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.renewAt = cert, cert.Leaf.NotAfter.Add(-life/3)
}

func (c *Credentials) postpone(cert *tls.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == cert {
		c.renewAt = c.trust.now().Add(renewPause)
	}
}

// refused notes that a server did not take a certificate, so that another is got for the
// next connection. Should that fail the old one is still used: who refuses it may not be
// whom we think, and others may take it.
func (c *Credentials) refused(cert *tls.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == cert {
		c.renewAt = time.Time{}
	}
}

// withLeaf joins certificate and key, and makes sure that they belong together.
func withLeaf(der []byte, key privateKey) (*tls.Certificate, error) {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate: %w", err)
	}
	public, ok := leaf.PublicKey.(publicKey)
	if !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("the certificate is for another key")
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
