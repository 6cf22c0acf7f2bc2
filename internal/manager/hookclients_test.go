package manager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/freeport"
)

// clientOf returns a certificate of an authority.
func clientOf(t *testing.T, authority ca.Pair, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	signed, err := authority.Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: "capi-controller-manager"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{signed.Raw}, PrivateKey: key}
}

// TestWebhooks_HooksRequireClientCertificate checks that only clients of the configured authority can call hooks, and
// that webhooks on the same port accept all clients.
func TestWebhooks_HooksRequireClientCertificate(t *testing.T) {
	newAuthority := func() ca.Pair {
		t.Helper()
		authority, err := ca.New(x509.Certificate{Subject: pkix.Name{CommonName: "hooks"}, KeyUsage: x509.KeyUsageCertSign}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return authority
	}
	core, other := newAuthority(), newAuthority()
	trusted := filepath.Join(t.TempDir(), "ca.crt")
	write := func(authority ca.Pair) {
		t.Helper()
		if err := os.WriteFile(trusted, authority.CertPEM(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := freeport.Address(t)
	dir, _ := webhookCertificate(t)
	webhooks := Webhooks{Port: int(address.Port()), CertDir: dir, HookClientCAs: trusted}
	if _, err := webhooks.onlyHookClients(http.NotFoundHandler()); err == nil || !strings.Contains(err.Error(), "--runtime-hook-client-ca-file") {
		t.Errorf("a missing file: %v", err)
	}
	write(core)
	hook, err := webhooks.onlyHookClients(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(out, "hook") }))
	if err != nil {
		t.Fatal(err)
	}
	server := webhooks.server()
	server.Register("/hook/", hook)
	server.Register("/webhook", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	ask := func(path string, certificates ...tls.Certificate) (int, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certificates}, ForceAttemptHTTP2: true, DisableKeepAlives: true}
		response, err := (&http.Client{Transport: transport}).Post("https://"+address.String()+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	gomega.NewWithT(t).Eventually(func() (int, error) { return ask("/webhook") }).WithTimeout(env.WaitTimeout).Should(gomega.Equal(http.StatusOK))
	client, ofServer := clientOf(t, core, x509.ExtKeyUsageClientAuth), clientOf(t, core, x509.ExtKeyUsageServerAuth)
	stranger := clientOf(t, other, x509.ExtKeyUsageClientAuth)
	want := func(reason, path string, code int, certificates ...tls.Certificate) {
		t.Helper()
		if got, err := ask(path, certificates...); err != nil || got != code {
			t.Errorf("%s: %d, %v, want %d", reason, got, err, code)
		}
	}
	want("the core", "/hook/x", http.StatusOK, client)
	want("no certificate", "/hook/x", http.StatusUnauthorized)
	want("another authority", "/hook/x", http.StatusUnauthorized, stranger)
	want("a server's certificate", "/hook/x", http.StatusUnauthorized, ofServer)
	want("an API server with a certificate", "/webhook", http.StatusOK, stranger)
	write(other)
	want("the new authority", "/hook/x", http.StatusOK, stranger)
	want("the previous authority", "/hook/x", http.StatusUnauthorized, client)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the server returned %v", err)
	}
}
