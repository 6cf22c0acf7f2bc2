package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
)

const (
	// Lifetime is how long certificates of controller and hypervisors are good for.
	Lifetime = 24 * time.Hour

	blockCertificate = "CERTIFICATE"
)

var (
	// ErrBadRequest means that a certificate request cannot be parsed, is not signed by
	// the key that it holds, or that the key is of a kind that is not accepted.
	ErrBadRequest = errors.New("unusable certificate request")

	// ErrBadAuthority means that a stored certificate and key are no authority.
	ErrBadAuthority = errors.New("unusable certificate authority")
)

// Authority is the certificate authority of controller and hypervisors. It may be used
// from any goroutine.
type Authority struct{ pair ca.Pair }

// NewAuthority makes a new one that is good for ten years.
func NewAuthority(now time.Time) (*Authority, error) {
	pair, err := ca.New(x509.Certificate{
		Subject:        pkix.Name{CommonName: "millwright-vm-authority"},
		KeyUsage:       x509.KeyUsageCertSign,
		MaxPathLenZero: true,
	}, now)
	return &Authority{pair}, err
}

// ParseAuthority is the inverse of Authority.PEM. An error is ErrBadAuthority, and holds
// nothing of the key.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	if _, err := parseCertificates(certPEM); err != nil {
		return nil, err
	}
	pair, err := ca.Parse(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadAuthority, err)
	}
	return &Authority{pair}, nil
}

// PEM returns the authority as it is stored: its certificate, which is public, and its key
// as PKCS #8, which is secret.
func (a *Authority) PEM() (cert, key []byte) { return a.pair.CertPEM(), a.pair.KeyPEM() }

// Sign answers a PKCS #10 request in DER form with a certificate in DER form, with which
// peer may be a client and a server. Of the request only the public key is used. The
// certificate ends after lifetime, or with the authority.
//
// Errors: ErrBadRequest, ErrNotAPeer.
func (a *Authority) Sign(csrDER []byte, peer Peer, lifetime time.Duration, now time.Time) ([]byte, error) {
	public, err := requestedKey(csrDER)
	if err != nil {
		return nil, err
	}
	if err := peer.validate(); err != nil {
		return nil, err
	}
	name, err := url.Parse(peer.URI())
	if err != nil {
		return nil, err
	}
	end := now.Add(lifetime)
	if end.After(a.pair.Cert.NotAfter) {
		end = a.pair.Cert.NotAfter
	}
	signed, err := a.pair.Sign(x509.Certificate{
		NotBefore:             now.Add(-ca.Backdate),
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{name},
	}, public)
	if err != nil {
		return nil, err
	}
	return signed.Raw, nil
}

// requestedKey returns the public key of a request whose sender has the private one.
func requestedKey(csrDER []byte) (crypto.PublicKey, error) {
	request, err := x509.ParseCertificateRequest(csrDER)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	switch public := request.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if public.Curve == elliptic.P256() || public.Curve == elliptic.P384() {
			return public, nil
		}
	case ed25519.PublicKey:
		return public, nil
	}
	return nil, fmt.Errorf("%w: the key must be ECDSA on P-256 or P-384, or Ed25519", ErrBadRequest)
}

// parseCertificates reads at least one certificate of authorities.
func parseCertificates(certPEM []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(certPEM); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != blockCertificate {
			return nil, fmt.Errorf("%w: a PEM block that is no certificate", ErrBadAuthority)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBadAuthority, err)
		}
		if !cert.BasicConstraintsValid || !cert.IsCA {
			return nil, fmt.Errorf("%w: its certificate is not that of an authority", ErrBadAuthority)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%w: no certificate in PEM form", ErrBadAuthority)
	}
	return certs, nil
}

// newRequest makes a key and the certificate request for it.
func newRequest() (key *ecdsa.PrivateKey, csrDER []byte, err error) {
	if key, err = ca.NewKey(); err != nil {
		return nil, nil, err
	}
	csrDER, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return key, csrDER, err
}
