package ca

import (
	"bytes"
	"crypto/x509"
	"errors"
	"testing"
	"time"
)

// FuzzParse checks that the content of a Secret is either a CA with its key or unusable, and that no error
// contains the key.
func FuzzParse(f *testing.F) {
	made, err := New(x509.Certificate{KeyUsage: x509.KeyUsageCertSign}, time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC))
	if err != nil {
		f.Fatal(err)
	}
	cert, key := made.CertPEM(), made.KeyPEM()
	for _, text := range [][2][]byte{
		{cert, key}, {key, cert}, {cert, nil}, {nil, key}, {cert[:100], key}, {cert, key[:100]},
		{append([]byte("text before\n"), cert...), key}, {bytes.ReplaceAll(cert, []byte("\n"), []byte("\r\n")), key},
	} {
		f.Add(text[0], text[1])
	}
	f.Fuzz(func(t *testing.T, certPEM, keyPEM []byte) {
		pair, err := Parse(certPEM, keyPEM)
		if err != nil {
			if !errors.Is(err, ErrUnusable) {
				t.Errorf("the error is %v, want ErrUnusable", err)
			}
			if secret := bytes.TrimSpace(keyPEM); len(secret) > 8 && bytes.Contains([]byte(err.Error()), secret) {
				t.Errorf("the key is in %q", err)
			}
			return
		}
		again, err := Parse(pair.CertPEM(), pair.KeyPEM())
		if err != nil || !again.Cert.Equal(pair.Cert) || !again.Key.Equal(pair.Key) {
			t.Errorf("what was usable is not any more: %v", err)
		}
		key, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pair.Sign(x509.Certificate{NotAfter: pair.Cert.NotAfter}, key.Public()); err != nil {
			t.Logf("it signs nothing: %v", err) // the certificate is not a CA's
		}
	})
}
