package identity

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"
)

// trust verifies the certificates of others.
type trust struct {
	roots *x509.CertPool
	now   func() time.Time
}

func newTrust(authorities []*x509.Certificate, now func() time.Time) trust {
	roots := x509.NewCertPool()
	for _, authority := range authorities {
		roots.AddCert(authority)
	}
	return trust{roots: roots, now: now}
}

// verify returns the identity in a certificate that the authority signed for that usage
// and that is valid now.
func (t trust) verify(cert *x509.Certificate, usage x509.ExtKeyUsage) (Peer, error) {
	_, err := cert.Verify(x509.VerifyOptions{
		Roots:       t.roots,
		CurrentTime: t.now(),
		KeyUsages:   []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return Peer{}, err
	}
	return peerOf(cert)
}

// client is the TLS configuration by which the server must be want.
func (t trust) client(want Peer) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Go can only check host names, which mean nothing here. VerifyConnection does
		// all that is left out by this.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			got, err := t.verify(state.PeerCertificates[0], x509.ExtKeyUsageServerAuth)
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

// server is the TLS configuration by which a client's certificate must be of the
// authority, and for a peer.
func (t trust) server(auth tls.ClientAuthType) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: auth,
		ClientCAs:  t.roots,
		Time:       t.now,
		// A resumed session would outlive the certificate it began with.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil // ClientAuth has let it pass
			}
			_, err := peerOf(state.PeerCertificates[0])
			return err
		},
	}
}
