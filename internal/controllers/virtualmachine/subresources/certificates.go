package subresources

import (
	"crypto/tls"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// Certificates gives a server its certificate, and another one when two thirds of its lifetime are over.
type Certificates struct {
	// Authority signs them.
	Authority *identity.Authority
	// Name of the server; see ServerName.
	Name string
	// Now is the time.
	Now func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	renewAt time.Time
}

// Get implements tls.Config.GetCertificate.
func (c *Certificates) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Now()
	if c.current != nil && now.Before(c.renewAt) {
		return c.current, nil
	}
	next, err := c.Authority.ServerCertificate(c.Name, identity.Lifetime, now)
	if err != nil {
		return nil, err
	}
	c.current, c.renewAt = next, now.Add(2*identity.Lifetime/3)
	return next, nil
}
