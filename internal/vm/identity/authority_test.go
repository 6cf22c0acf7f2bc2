package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
)

func request(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	return value[[]byte](t)(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		// Names that the requester asks for. They must be ignored.
		Subject: pkix.Name{CommonName: "controller"}, DNSNames: []string{"controller"}, EmailAddresses: []string{"controller@example.com"},
		IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}, URIs: []*url.URL{{Scheme: "millwright", Host: "controller"}},
	}, key))
}

func TestAuthority_PEMRoundTrip(t *testing.T) {
	now := newClock().Now()
	authority := value[*Authority](t)(NewAuthority(now))
	cert, key := authority.PEM()
	again := value[*Authority](t)(ParseAuthority(cert, key))
	der := value[[]byte](t)(again.Sign(request(t, value[*ecdsa.PrivateKey](t)(ca.NewKey())), pod, Lifetime, now))
	leaf := value[*x509.Certificate](t)(x509.ParseCertificate(der))
	must(t, leaf.CheckSignatureFrom(authority.pair.Cert))
	if life := authority.pair.Cert.NotAfter.Sub(now); life != ca.Lifetime {
		t.Errorf("the authority is valid for %v", life)
	}

	other, otherKey := value[*Authority](t)(NewAuthority(now)).PEM()
	for name, pair := range map[string][2][]byte{
		"another key":         {cert, otherKey},
		"another certificate": {other, key},
		"nothing":             {nil, nil},
		"swapped":             {key, cert},
		"no key":              {cert, nil},
		"cut":                 {cert[:len(cert)/2], key},
	} {
		if _, err := ParseAuthority(pair[0], pair[1]); !errors.Is(err, ErrBadAuthority) {
			t.Errorf("%s: got %v, want ErrBadAuthority", name, err)
		}
	}
}

func TestAuthority_SignContainsOnlyIdentity(t *testing.T) {
	now := newClock().Now()
	authority := value[*Authority](t)(NewAuthority(now))
	der := value[[]byte](t)(authority.Sign(request(t, value[*ecdsa.PrivateKey](t)(ca.NewKey())), pod, Lifetime, now))
	leaf := value[*x509.Certificate](t)(x509.ParseCertificate(der))
	if got, err := peerOf(leaf); err != nil || got != pod {
		t.Errorf("got %v, %v, want %v", got, err, pod)
	}
	if len(leaf.DNSNames) != 0 || leaf.IsCA || leaf.NotAfter.Sub(now) != Lifetime {
		t.Errorf("DNSNames = %v, IsCA = %v, NotAfter = %v", leaf.DNSNames, leaf.IsCA, leaf.NotAfter)
	}
	if names := len(leaf.URIs) + len(leaf.IPAddresses) + len(leaf.EmailAddresses); names != 1 || leaf.Subject.String() != "" {
		t.Errorf("the certificate has %d alternative names and the subject %q, want only the identity", names, leaf.Subject)
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	if leaf.KeyUsage != x509.KeyUsageDigitalSignature || !slices.Equal(leaf.ExtKeyUsage, usages) {
		t.Errorf("the certificate has the usages %v and %v", leaf.KeyUsage, leaf.ExtKeyUsage)
	}
	late := authority.pair.Cert.NotAfter.Add(-time.Hour)
	der = value[[]byte](t)(authority.Sign(request(t, value[*ecdsa.PrivateKey](t)(ca.NewKey())), pod, Lifetime, late))
	leaf = value[*x509.Certificate](t)(x509.ParseCertificate(der))
	if !leaf.NotAfter.Equal(authority.pair.Cert.NotAfter) {
		t.Errorf("the certificate is valid until %v, longer than its authority", leaf.NotAfter)
	}
}

func TestAuthority_SignRejectsBadRequests(t *testing.T) {
	now := newClock().Now()
	authority := value[*Authority](t)(NewAuthority(now))
	good := request(t, value[*ecdsa.PrivateKey](t)(ca.NewKey()))
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	p384 := value[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	p224 := value[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	tests := map[string]struct {
		request []byte
		peer    Peer
		want    error
	}{
		"P-256":        {good, pod, nil},
		"P-384":        {request(t, p384), pod, nil},
		"Ed25519":      {request(t, ed), pod, nil},
		"P-224":        {request(t, p224), pod, ErrBadRequest},
		"RSA":          {request(t, value[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))), pod, ErrBadRequest},
		"forged":       {forged, pod, ErrBadRequest},
		"garbage":      {[]byte("garbage"), pod, ErrBadRequest},
		"nothing":      {nil, pod, ErrBadRequest},
		"nobody":       {good, Peer{}, ErrNotAPeer},
		"no pod":       {good, Peer{Namespace: "pool", VM: "vm"}, ErrNotAPeer},
		"invalid name": {good, Peer{Namespace: "pool", VM: "a/b", Pod: "c"}, ErrNotAPeer},
		"controller":   {good, Controller(), nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := authority.Sign(test.request, test.peer, Lifetime, now); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}
