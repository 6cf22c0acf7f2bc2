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

// reread is how old what was read from files may be when a connection is made.
const reread = time.Second

// ErrBadFiles means that the files of an identity are missing, cannot be read, do not belong together, or are not
// valid now for the process that uses them.
var ErrBadFiles = errors.New("unusable files of an identity")

// Files are the files of an identity that others issue, in PEM form: as cert-manager lays tls.crt, tls.key and
// ca.crt, and SPIFFE's helper svid.pem, svid_key.pem and svid_bundle.pem.
type Files struct {
	// Certificate is the file with the certificate, followed by those of intermediate authorities, if any. Its
	// only URI is the identity. Its usages, if it has any, are both client and server.
	Certificate string
	// Key is the file with its private key.
	Key string
	// Authority is the file with the certificates of the authorities that are trusted.
	Authority string
}

// None reports whether no file is named.
func (f Files) None() bool { return f == Files{} }

// Complete reports whether all files are named.
func (f Files) Complete() bool { return f.Certificate != "" && f.Key != "" && f.Authority != "" }

// FromFiles returns the credentials of a process whose identity is issued by others: a hypervisor, or the
// controller. The files are read when a connection is made, so a new certificate, key or authority
// holds for the next connection. What was read last is used as long as it is valid, when the files are not.
// They need not exist yet. A nil now means time.Now, a nil log none.
func FromFiles(files Files, self Peer, now func() time.Time, log *slog.Logger) *Credentials {
	if now == nil {
		now = time.Now
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Credentials{trust: newTrust(nil, now), log: log, self: self.String() + ", from files", every: reread}
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

// Check reads the files, and returns what is wrong with them: an error that wraps ErrBadFiles.
func (f Files) Check(self Peer, now time.Time) error {
	if _, _, err := f.load(self, now); err != nil {
		return fmt.Errorf("%w: %w", ErrBadFiles, err)
	}
	return nil
}

// load reads the files. No part of the key is in errors.
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
			err = fmt.Errorf("it is for %s, and this is %s", is, self)
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
