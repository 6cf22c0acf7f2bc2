package controlplane

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/local/folder"
)

const (
	leafLifetime = 365 * 24 * time.Hour
	// renewBefore is how long a certificate must still be good for at Start; a
	// control plane that runs for longer than that needs a restart.
	renewBefore = 90 * 24 * time.Hour
)

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

// newAuthority makes a self-signed certificate authority.
func newAuthority(commonName string, now time.Time) (ca.Pair, error) {
	return ca.New(x509.Certificate{
		Subject:  pkix.Name{CommonName: commonName},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}, now)
}

// issue makes a key and has the authority certify it.
func issue(authority ca.Pair, request certRequest, now time.Time) (ca.Pair, error) {
	template := x509.Certificate{
		Subject:     pkix.Name{CommonName: request.commonName, Organization: request.organizations},
		NotBefore:   now.Add(-ca.Backdate),
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
	key, err := ca.NewKey()
	if err != nil {
		return ca.Pair{}, err
	}
	cert, err := authority.Sign(template, key.Public())
	if err != nil {
		return ca.Pair{}, fmt.Errorf("certifying %s: %w", request.commonName, err)
	}
	return ca.Pair{Cert: cert, Key: key}, nil
}

// usable reports whether a stored certificate still serves the request, so that a restart
// changes only what has to change.
func usable(cert *x509.Certificate, authority ca.Pair, request certRequest, now time.Time) bool {
	if cert.CheckSignatureFrom(authority.Cert) != nil || now.Before(cert.NotBefore) || now.Add(renewBefore).After(cert.NotAfter) {
		return false
	}
	for _, host := range request.hosts {
		if cert.VerifyHostname(host) != nil {
			return false
		}
	}
	return cert.Subject.CommonName == request.commonName
}

// store writes base.crt and base.key. The key goes first: load takes a certificate without
// its key for unusable, and both are made again.
func store(p ca.Pair, base string) error {
	if err := folder.WriteFile(base+".key", p.KeyPEM()); err != nil {
		return err
	}
	return folder.WriteFile(base+".crt", p.CertPEM())
}

// load is the inverse of store. Errors: ca.ErrUnusable if no certificate is stored, or it
// and its key do not belong together.
func load(base string) (ca.Pair, error) {
	var content [2][]byte
	for i, suffix := range []string{".crt", ".key"} {
		var err error
		content[i], err = os.ReadFile(base + suffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return ca.Pair{}, err
		}
	}
	pair, err := ca.Parse(content[0], content[1])
	if err != nil {
		return ca.Pair{}, fmt.Errorf("%s: %w", base, err)
	}
	return pair, nil
}
