package ca

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"testing"
	"time"
)

func authority(t *testing.T, now time.Time) Pair {
	t.Helper()
	made, err := New(x509.Certificate{Subject: pkix.Name{CommonName: "test"}, KeyUsage: x509.KeyUsageCertSign}, now)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestAuthority_SignedCertificateIsValid(t *testing.T) {
	now := time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)
	made := authority(t, now)
	if life := made.Cert.NotAfter.Sub(now); life != Lifetime || !made.Cert.IsCA || made.Cert.Subject.CommonName != "test" {
		t.Errorf("the authority is %v and lives for %v", made.Cert.Subject, life)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := made.Sign(x509.Certificate{NotBefore: now, NotAfter: now.Add(time.Hour)}, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if err := leaf.CheckSignatureFrom(made.Cert); err != nil {
		t.Error(err)
	}
	if other := authority(t, now); leaf.CheckSignatureFrom(other.Cert) == nil || other.Cert.SerialNumber.Cmp(made.Cert.SerialNumber) == 0 {
		t.Error("two authorities are the same")
	}
}

func TestParse(t *testing.T) {
	now := time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)
	made, other := authority(t, now), authority(t, now)
	parsed, err := Parse(made.CertPEM(), made.KeyPEM())
	if err != nil || !parsed.Cert.Equal(made.Cert) || !parsed.Key.Equal(made.Key) {
		t.Errorf("it came back as %v, %v", parsed.Cert, err)
	}
	for name, text := range map[string][2][]byte{
		"OtherKey": {made.CertPEM(), other.KeyPEM()},
		"NoKey":    {made.CertPEM(), nil},
		"NoCert":   {nil, made.KeyPEM()},
		"NotPEM":   {[]byte("no PEM"), made.KeyPEM()},
		"Swapped":  {made.KeyPEM(), made.CertPEM()},
	} {
		if _, err := Parse(text[0], text[1]); !errors.Is(err, ErrUnusable) {
			t.Errorf("%s: got %v, want ErrUnusable", name, err)
		}
	}
}
