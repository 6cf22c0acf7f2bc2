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
	"math/big"
	"net/url"
	"time"
)

const (
	// Lifetime is how long certificates of controller and hypervisors are good for.
	Lifetime = 24 * time.Hour

	authorityLifetime = 10 * 365 * 24 * time.Hour
	// backdate allows for clocks of others that are a little late.
	backdate = 5 * time.Minute

	blockCertificate = "CERTIFICATE"
	blockKey         = "PRIVATE KEY"
)

var (
	// ErrBadRequest says that a certificate request is garbled, was not signed by the
	// key it asks for, or that the key is of a kind that is not taken.
	ErrBadRequest = errors.New("unusable certificate request")

	// ErrBadAuthority says that stored certificates and keys make no authority.
	ErrBadAuthority = errors.New("unusable certificate authority")
)

// Authority signs the certificates of controller and hypervisors. It may be used from
// any goroutine.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes a new one that is good for ten years.
func NewAuthority(now time.Time) (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "millwright-vm-authority"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := signed(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key}, nil
}

// ParseAuthority is the inverse of Authority.PEM. An error is ErrBadAuthority, and holds
// nothing of the key.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	certs, err := parseCertificates(certPEM)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil || block.Type != blockKey {
		return nil, fmt.Errorf("%w: no private key in PEM form", ErrBadAuthority)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: the private key cannot be parsed", ErrBadAuthority)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(certs[0].PublicKey) {
		return nil, fmt.Errorf("%w: the private key belongs to another certificate", ErrBadAuthority)
	}
	return &Authority{cert: certs[0], key: key}, nil
}

// PEM is the authority as it is stored: its certificate, which everybody may know, and
// its key as PKCS #8, which nobody else may.
func (a *Authority) PEM() (cert, key []byte) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		// Only keys of an unknown kind fail, and both constructors refuse these.
		panic(fmt.Sprintf("identity: encoding the authority's key: %v", err))
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: a.cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der})
}

// Sign answers a PKCS #10 request in DER form with a certificate in DER form, by which
// peer may both call and be called. Of the request only the public key counts. The
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
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	template := &x509.Certificate{
		NotBefore:             now.Add(-backdate),
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{name},
	}
	return signed(template, a.cert, public, a.key)
}

// requestedKey gives the public key of a request whose sender holds the private one.
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

func signed(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	return der, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// newRequest makes a key and the certificate request for it.
func newRequest() (key *ecdsa.PrivateKey, csrDER []byte, err error) {
	if key, err = newKey(); err != nil {
		return nil, nil, err
	}
	csrDER, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return key, csrDER, err
}
