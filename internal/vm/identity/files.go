package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// maxFileAge is the maximum age of the files' content when a connection is made.
const maxFileAge = time.Second

// ErrBadFiles means that the files of an identity are missing, cannot be read, do not belong together, or are not
// valid at present for the process that uses them.
var ErrBadFiles = errors.New("unusable identity files")

// Files are the PEM files of an identity that another system issues. cert-manager writes tls.crt, tls.key and
// ca.crt; SPIFFE's helper writes svid.pem, svid_key.pem and svid_bundle.pem.
type Files struct {
	// Certificate is the file with the certificate, followed by intermediate certificates, if any. The identity is
	// the only URI of the certificate. If the certificate has extended key usages, they must allow clients and
	// servers.
	Certificate string
	// Key is the file with its private key.
	Key string
	// Authority is the file with the certificates of the trusted authorities.
	Authority string
}

// None reports whether no file is set.
func (f Files) None() bool { return f == Files{} }

// Complete reports whether all files are set.
func (f Files) Complete() bool { return f.Certificate != "" && f.Key != "" && f.Authority != "" }

// FromFiles returns the credentials of a hypervisor or controller whose identity another system issues. The files
// are read when a connection is made, so a new certificate, key or authority applies to the next connection. If
// the files become invalid, the previous content is used for as long as it is valid. The files need not exist yet.
// If now is nil, time.Now is used; if log is nil, nothing is logged.
func FromFiles(files Files, self Peer, now func() time.Time, log *slog.Logger) *Credentials {
	if now == nil {
		now = time.Now
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Credentials{trust: newTrust(nil, now), log: log, self: self.String() + ", from files", every: maxFileAge}
	c.obtain = func(context.Context) (*tls.Certificate, error) {
		cert, trusted, err := files.load(self, now())
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBadFiles, err)
		}
		c.trust.anchors.Store(trusted)
		return cert, nil
	}
	return c
}

// Check reads the files. It returns an error that wraps ErrBadFiles if they cannot be used.
func (f Files) Check(self Peer, now time.Time) error {
	if _, _, err := f.load(self, now); err != nil {
		return fmt.Errorf("%w: %w", ErrBadFiles, err)
	}
	return nil
}

// load reads the files. Its errors contain no part of the key.
func (f Files) load(self Peer, now time.Time) (*tls.Certificate, *anchors, error) {
	authority, err := os.ReadFile(f.Authority)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the authority: %w", err)
	}
	authorities, err := parseCertificates(authority)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Authority, err)
	}
	cert, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the certificate and its key: %w", err)
	}
	chain, err := parseChain(cert.Certificate)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Certificate, err)
	}
	_, realm, err := nameOf(chain[0])
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.Certificate, err)
	}
	trusted := anchorsOf(authorities, realm)
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		is, err := trusted.verify(chain, usage, now)
		if err == nil && is != self {
			err = fmt.Errorf("it belongs to %s, but this process is %s", is, self)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", f.Certificate, err)
		}
	}
	return &cert, trusted, nil
}

func parseChain(raw [][]byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for _, der := range raw {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("parsing a certificate: %w", err)
		}
		chain = append(chain, cert)
	}
	return chain, nil
}
