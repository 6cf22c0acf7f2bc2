package plugin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
)

// Files are the names of the PEM files for one end of a connection. The files are read for each connection, so they
// may be renewed.
type Files struct {
	// Certificate and Key belong to this end. The common name or a DNS name of a driver's certificate is its kind.
	// A manager's certificate is for the host name in Options.Target.
	Certificate, Key string
	// CA contains the certificate authorities for the other end's certificate.
	CA string
}

// Check returns an error if the files cannot be used now.
func (f Files) Check() error {
	_, err := f.load()
	return err
}

// TLS returns the credentials for a manager that listens on a TCP address. The error names the file that cannot be
// used.
func TLS(files Files) (credentials.TransportCredentials, error) {
	first, err := files.load()
	if err != nil {
		return nil, err
	}
	return renewed{first, files}, nil
}

// Server returns the configuration of a TLS server that reads the files for each connection, and requires clients
// to have a certificate of the authority. The error names the file that cannot be used.
func (f Files) Server() (*tls.Config, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.server() },
	}, nil
}

func (f Files) server() (*tls.Config, error) {
	pair, authorities, err := f.read()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authorities,
	}, nil
}

// read returns the certificate with its key, and the authorities for the other end.
func (f Files) read() (tls.Certificate, *x509.CertPool, error) {
	pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return pair, nil, fmt.Errorf("cannot load certificate %s with key %s: %w", f.Certificate, f.Key, err)
	}
	authorities, err := os.ReadFile(f.CA)
	if err != nil {
		return pair, nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return pair, nil, fmt.Errorf("%s contains no PEM certificate", f.CA)
	}
	return pair, pool, nil
}

func (f Files) load() (credentials.TransportCredentials, error) {
	pair, authorities, err := f.read()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: authorities, Certificates: []tls.Certificate{pair},
	}), nil
}

// renewed are credentials that read the files for each handshake.
type renewed struct {
	credentials.TransportCredentials
	files Files
}

// ClientHandshake implements credentials.TransportCredentials.
func (r renewed) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	current, err := r.files.load()
	if err != nil {
		return nil, nil, err
	}
	return current.ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (r renewed) Clone() credentials.TransportCredentials {
	return renewed{r.TransportCredentials.Clone(), r.files}
}
