package identity

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync/atomic"
	"time"
)

// trust verifies the certificates of peers. Copies share the trusted authorities, which can change.
type trust struct {
	anchors *atomic.Pointer[anchors]
	now     func() time.Time
}

// anchors are the trusted authorities and the prefix of the names that they may certify.
type anchors struct {
	authorities []*x509.Certificate
	digests     []digest // of the authorities
	roots       *x509.CertPool
	realm       string
}

// digest is the SHA-256 digest of a certificate.
type digest [sha256.Size]byte

func digestOf(cert *x509.Certificate) digest { return sha256.Sum256(cert.Raw) }

func newTrust(authorities []*x509.Certificate, now func() time.Time) trust {
	t := trust{anchors: &atomic.Pointer[anchors]{}, now: now}
	t.anchors.Store(anchorsOf(authorities, uriOwn))
	return t
}

func anchorsOf(authorities []*x509.Certificate, realm string) *anchors {
	a := &anchors{authorities: authorities, roots: x509.NewCertPool(), realm: realm}
	for _, authority := range authorities {
		a.roots.AddCert(authority)
		a.digests = append(a.digests, digestOf(authority))
	}
	return a
}

// verify returns the identity in the first certificate of a chain if an authority signed it for that usage and it
// is valid now.
func (t trust) verify(chain []*x509.Certificate, usage x509.ExtKeyUsage) (Peer, error) {
	return t.anchors.Load().verify(chain, usage, t.now())
}

func (a *anchors) verify(chain []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) (Peer, error) {
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: a.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return Peer{}, err
	}
	return a.peerOf(chain[0])
}

// peerOf returns the identity in a verified certificate, which must be in the same realm.
func (t trust) peerOf(cert *x509.Certificate) (Peer, error) { return t.anchors.Load().peerOf(cert) }

func (a *anchors) peerOf(cert *x509.Certificate) (Peer, error) {
	p, realm, err := nameOf(cert)
	if err == nil && realm != a.realm {
		err = fmt.Errorf("%w: %.300q does not begin with %s", ErrNotAPeer, cert.URIs[0], a.realm)
	}
	return p, err
}

// client returns a TLS configuration that accepts only the given server.
func (t trust) client(want Peer) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Go verifies host names, which have no meaning here. VerifyConnection verifies everything else.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			got, err := t.verify(state.PeerCertificates, x509.ExtKeyUsageServerAuth)
			if err != nil {
				return fmt.Errorf("the server is not %s: %w", want, err)
			}
			if got != want {
				return fmt.Errorf("the server is %s, not %s", got, want)
			}
			return nil
		},
	}
}

// server returns a TLS configuration that accepts only client certificates that the authority has signed for a
// peer.
func (t trust) server(auth tls.ClientAuthType) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: auth,
		ClientCAs:  t.anchors.Load().roots,
		Time:       t.now,
		// A resumed session could outlive its certificate.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil // ClientAuth permits it
			}
			_, err := t.peerOf(state.PeerCertificates[0])
			return err
		},
	}
}
