package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/millwright-dev/millwright/internal/ca"
)

// testKeptKubeconfig checks that the API server accepts the user, and that the kubeconfig refers to the
// certificate by file name. Clients reload a certificate only if it is a file.
func testKeptKubeconfig(t *testing.T, cp *ControlPlane) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	value[func(context.Context) error](t)(cp.KeepKubeconfig(path, "system:node:kept", "system:nodes"))
	config := value[*rest.Config](t)(clientcmd.BuildConfigFromFlags("", path))
	checkUser(t, config, "system:node:kept")
	if tls := config.TLSClientConfig; tls.CertFile != path+".pem" || tls.KeyFile != tls.CertFile || len(tls.CertData)+len(tls.KeyData) != 0 {
		t.Errorf("the certificate is in %q, the key in %q", tls.CertFile, tls.KeyFile)
	}
	if mode := value[os.FileInfo](t)(os.Stat(path + ".pem")).Mode().Perm(); mode != 0o600 {
		t.Errorf("the key has mode %o", mode)
	}
}

// TestCertificate_IsRenewedBeforeExpiry checks that over a year, the certificate in the file is always valid for at least
// another week, although it is issued for a month.
func TestCertificate_IsRenewedBeforeExpiry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept.pem")
	synctest.Test(t, func(t *testing.T) {
		authority := value[ca.Pair](t)(ca.New(x509.Certificate{Subject: pkix.Name{CommonName: "test"}, KeyUsage: x509.KeyUsageCertSign}, time.Now()))
		kept := &keptCertificate{path: path, authority: authority, log: logr.Discard(), leaf: leaf{commonName: "a", usages: clientUsage, lifetime: renewedLifetime}}
		must(t, kept.renew())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = kept.keep(ctx) }() // always nil
		serials := map[string]bool{}
		for range 365 {
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			pair := value[tls.Certificate](t)(tls.LoadX509KeyPair(path, path))
			serials[pair.Leaf.SerialNumber.String()] = true
			if left := time.Until(pair.Leaf.NotAfter); left < 7*24*time.Hour || left > 30*24*time.Hour {
				t.Fatalf("the certificate expires within %v", left)
			}
		}
		if len(serials) < 12 || len(serials) > 20 {
			t.Errorf("%d certificates in a year", len(serials))
		}
	})
}
