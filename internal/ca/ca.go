// Package ca signs X.509 certificates as a certificate authority. Keys are ECDSA on P-256.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

const (
	// Lifetime is how long an authority is valid.
	Lifetime = 10 * 365 * 24 * time.Hour
	// Backdate is how long before its creation a certificate becomes valid, for clocks that are behind.
	Backdate = 5 * time.Minute
)

// ErrUnusable means that the PEM texts are not a certificate and its private key.
var ErrUnusable = errors.New("no usable certificate")

// Pair is a certificate with its private key.
type Pair struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// NewKey generates a private key.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// New creates an authority: a self-signed certificate with the template's subject and key
// usage, valid for Lifetime.
func New(template x509.Certificate, now time.Time) (Pair, error) {
	key, err := NewKey()
	if err != nil {
		return Pair{}, err
	}
	return ForKey(key, template, now)
}

// ForKey is like New, but uses an existing key. Certificates signed by an authority with the same key and
// subject are valid under the new one.
func ForKey(key *ecdsa.PrivateKey, template x509.Certificate, now time.Time) (Pair, error) {
	template.NotBefore, template.NotAfter = now.Add(-Backdate), now.Add(Lifetime)
	template.BasicConstraintsValid, template.IsCA = true, true
	var err error
	authority := Pair{Cert: &template, Key: key}
	authority.Cert, err = authority.Sign(template, key.Public())
	return authority, err
}

// Sign issues a certificate for a public key. It sets the serial number and the issuer.
func (p Pair) Sign(template x509.Certificate, public crypto.PublicKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, &template, p.Cert, public, p.Key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// CertPEM returns the certificate in PEM form.
func (p Pair) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Cert.Raw})
}

// KeyPEM returns the private key as PKCS #8 in PEM form.
func (p Pair) KeyPEM() []byte { return EncodeKey(p.Key) }

// EncodeKey returns a private key as PKCS #8 in PEM form.
func EncodeKey(key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(fmt.Sprintf("encoding a key: %v", err)) // fails only for unsupported types of keys
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Parse is the inverse of CertPEM and KeyPEM. It returns ErrUnusable, which does not contain any part of the
// key.
func Parse(certPEM, keyPEM []byte) (Pair, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return Pair{}, fmt.Errorf("%w: the certificate is not PEM", ErrUnusable)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return Pair{}, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	key, err := ParseKey(keyPEM)
	if err != nil {
		return Pair{}, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return Pair{}, fmt.Errorf("%w: the private key belongs to another certificate", ErrUnusable)
	}
	return Pair{Cert: cert, Key: key}, nil
}

// ParseKey is the inverse of EncodeKey. It returns ErrUnusable, which does not contain any part of the key.
func ParseKey(keyPEM []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, fmt.Errorf("%w: the private key is not PEM", ErrUnusable)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%w: the private key cannot be parsed or is not an ECDSA key", ErrUnusable)
	}
	return key, nil
}
