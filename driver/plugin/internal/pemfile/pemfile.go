// Package pemfile reads certificates, for both ends of the protocol millwright.driver.
package pemfile

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Load reads a certificate with its key, and the authorities of the other end's.
func Load(certificate, key, ca string) (tls.Certificate, *x509.CertPool, error) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return pair, nil, fmt.Errorf("certificate %s with key %s: %w", certificate, key, err)
	}
	authorities, err := os.ReadFile(ca)
	if err != nil {
		return pair, nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return pair, nil, fmt.Errorf("%s has no certificate in PEM form", ca)
	}
	return pair, pool, nil
}
