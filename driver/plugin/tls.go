package plugin

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
)

// Files name the PEM files of a driver. Certificate and key are read again for each connection, so
// that they may be renewed.
type Files struct {
	// Certificate and Key are the driver's. Its common name or a DNS name of it is the kind.
	Certificate, Key string
	// CA has the authorities of the manager's certificate, which is for the name in
	// Options.Target.
	CA string
}

// TLS returns the credentials for a manager that listens at a TCP address.
func TLS(files Files) (credentials.TransportCredentials, error) {
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s with key %s: %w", files.Certificate, files.Key, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	authorities, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", files.CA)
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() },
	}), nil
}
