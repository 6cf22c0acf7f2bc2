package connlimit_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/test/support/flood"
)

// TestListener_PeersPassFlood checks that clients with more addresses than the port has capacity, which fill it again
// and again, do not keep out a client that authenticates itself.
func TestListener_PeersPassFlood(t *testing.T) {
	const total, addresses, tries = 128, 160, 20
	certificate, roots := selfSigned(t)
	inner, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := connlimit.Listen(inner, total)
	t.Cleanup(func() { _ = listener.Close() })
	go serve(listener, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	flood.Hold(t, inner.Addr().String(), addresses)
	for range 5 {
		var err error
		for range tries {
			if err = greet(inner.Addr().String(), &tls.Config{
				MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "localhost", Certificates: []tls.Certificate{certificate},
			}); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatalf("an authenticated client did not get through in %d tries: %v", tries, err)
		}
	}
}

// serve sends a byte to each client that is authenticated.
func serve(listener net.Listener, config *tls.Config) {
	for {
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer raw.Close()
			conn := tls.Server(raw, config)
			if conn.Handshake() == nil {
				connlimit.Known(conn)
				_, _ = conn.Write([]byte{1})
			}
		}()
	}
}

// greet connects and receives a byte.
func greet(address string, config *tls.Config) error {
	conn, err := tls.Dial("tcp4", address, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}
