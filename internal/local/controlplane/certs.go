package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/millwright-dev/millwright/internal/local/folder"
)

const (
	authorityLifetime = 10 * 365 * 24 * time.Hour
	leafLifetime      = 365 * 24 * time.Hour
	// renewBefore is how long a certificate must still be good for at Start; a
	// control plane that runs for longer than that needs a restart.
	renewBefore = 90 * 24 * time.Hour
	// backdate allows for clocks of guests that are a little late.
	backdate = 5 * time.Minute
)

// pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// certRequest says what a leaf certificate is for.
type certRequest struct {
	commonName    string
	organizations []string
	hosts         []string // names and addresses; none for a client
	usages        []x509.ExtKeyUsage
}

var (
	serverUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	clientUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	peerUsage   = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
)

func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// newAuthority makes a self-signed certificate authority.
func newAuthority(commonName string, now time.Time) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	return sign(template, pair{cert: template, key: key}, key)
}

// issue makes a key and has p, an authority, sign a certificate for it.
func (p pair) issue(request certRequest, now time.Time) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: request.commonName, Organization: request.organizations},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(leafLifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: request.usages,
	}
	for _, host := range request.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return sign(template, p, key)
}

func sign(template *x509.Certificate, authority pair, key crypto.Signer) (pair, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return pair{}, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, authority.cert, key.Public(), authority.key)
	if err != nil {
		return pair{}, fmt.Errorf("signing the certificate of %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	return pair{cert: cert, key: key}, err
}

// usable reports whether a stored certificate of p, its authority, still serves the
// request, so that a
// restart changes only what has to change.
func (p pair) usable(leaf pair, request certRequest, now time.Time) bool {
	cert := leaf.cert
	if cert.CheckSignatureFrom(p.cert) != nil || now.Before(cert.NotBefore) || now.Add(renewBefore).After(cert.NotAfter) {
		return false
	}
	for _, host := range request.hosts {
		if cert.VerifyHostname(host) != nil {
			return false
		}
	}
	return cert.Subject.CommonName == request.commonName
}

func (p pair) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw})
}

func (p pair) keyPEM() ([]byte, error) { return encodeKey(p.key) }

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// store writes base.crt and base.key. The key goes first: a certificate without
// its key is taken for unusable by load, and both are made again.
func (p pair) store(base string) error {
	key, err := p.keyPEM()
	if err != nil {
		return err
	}
	if err := folder.WriteFile(base+".key", key); err != nil {
		return err
	}
	return folder.WriteFile(base+".crt", p.certPEM())
}

// errNoPair means that no certificate is stored, or that it and its key do not belong together.
var errNoPair = errors.New("no usable certificate")

func load(base string) (pair, error) {
	certDER, err := readPEM(base + ".crt")
	if err != nil {
		return pair{}, err
	}
	keyDER, err := readPEM(base + ".key")
	if err != nil {
		return pair{}, err
	}
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return pair{}, fmt.Errorf("%w in %s.crt: %w", errNoPair, base, err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return pair{}, fmt.Errorf("%w: key %s.key: %w", errNoPair, base, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return pair{}, fmt.Errorf("%w: %s.key belongs to another certificate", errNoPair, base)
	}
	return pair{cert: cert, key: key}, nil
}

func readPEM(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errNoPair, err)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("%w: %s is not PEM", errNoPair, path)
	}
	return block.Bytes, nil
}
