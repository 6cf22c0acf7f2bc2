package controlplane

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
)

var now = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func value[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func newLayout(t *testing.T) layout {
	t.Helper()
	dir := layout(filepath.Join(t.TempDir(), "cp"))
	must(t, dir.create())
	return dir
}

func TestCertificatesServeTheirPurpose(t *testing.T) {
	all := value[pki](t)(ensurePKI(newLayout(t), []string{"host.example", "192.0.2.7"}, now))
	tests := map[string]struct {
		reason, authority, cert, host string
		usage                         x509.ExtKeyUsage
		want                          bool
	}{
		"Server":       {"clients on this machine verify it", clusterCA, apiserverCert, "127.0.0.1", x509.ExtKeyUsageServerAuth, true},
		"Guest":        {"guests see the host as 10.0.2.2", clusterCA, apiserverCert, "10.0.2.2", x509.ExtKeyUsageServerAuth, true},
		"GuestV6":      {"or as fec0::2", clusterCA, apiserverCert, "fec0::2", x509.ExtKeyUsageServerAuth, true},
		"Extra":        {"names of the configuration are added", clusterCA, apiserverCert, "host.example", x509.ExtKeyUsageServerAuth, true},
		"ExtraIP":      {"addresses too", clusterCA, apiserverCert, "192.0.2.7", x509.ExtKeyUsageServerAuth, true},
		"Stranger":     {"other names are not covered", clusterCA, apiserverCert, "other.example", x509.ExtKeyUsageServerAuth, false},
		"NoServer":     {"a client must not pose as a server", clusterCA, adminCert, "", x509.ExtKeyUsageServerAuth, false},
		"Admin":        {"the administrator is a client", clusterCA, adminCert, "", x509.ExtKeyUsageClientAuth, true},
		"NoFrontProxy": {"a client must not pose as the front proxy", frontProxyCA, adminCert, "", x509.ExtKeyUsageClientAuth, false},
		"NoEtcd":       {"a client must not read etcd", etcdCA, adminCert, "", x509.ExtKeyUsageClientAuth, false},
		"EtcdPeer":     {"etcd is a client of its peers", etcdCA, etcdCert, "", x509.ExtKeyUsageClientAuth, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			roots := x509.NewCertPool()
			roots.AddCert(all[test.authority].Cert)
			_, err := all[test.cert].Cert.Verify(x509.VerifyOptions{
				Roots: roots, DNSName: test.host, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{test.usage},
			})
			if got := err == nil; got != test.want {
				t.Errorf("%s: want %v, got %v (%v)", test.reason, test.want, got, err)
			}
		})
	}
}

func TestKeysArePrivate(t *testing.T) {
	dir := newLayout(t)
	value[pki](t)(ensurePKI(dir, nil, now))
	files := value[[]string](t)(filepath.Glob(dir.pki("*")))
	if len(files) < 20 {
		t.Fatalf("want certificates and keys, got %v", files)
	}
	for _, file := range files {
		if mode := value[os.FileInfo](t)(os.Stat(file)).Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o", file, mode)
		}
	}
	if mode := value[os.FileInfo](t)(os.Stat(dir.path())).Mode().Perm(); mode != 0o700 {
		t.Errorf("the folder has mode %o", mode)
	}
}

// TestRestartKeepsAuthorities: an authority is replaced only if it cannot be used, and all
// other certificates are valid for a year from each start on.
func TestRestartKeepsAuthorities(t *testing.T) {
	tests := map[string]struct {
		reason  string
		between func(t *testing.T, dir layout)
		names   []string
		after   time.Duration
		renewed string // the authority that is replaced
	}{
		"Nothing": {reason: "all are still good"},
		"Name":    {reason: "the server certificate gets a new name", names: []string{"new.example"}},
		"Time":    {reason: "leaves live for a year, authorities for ten", after: 5 * leafLifetime},
		"LostLeaf": {
			reason:  "a certificate without its key is replaced",
			between: func(t *testing.T, dir layout) { must(t, os.Remove(dir.pki(etcdCert+".key"))) },
		},
		"LostAuthority": {
			reason:  "an authority without its certificate cannot be used",
			between: func(t *testing.T, dir layout) { must(t, os.Remove(dir.pki(etcdCA+".crt"))) },
			renewed: etcdCA,
		},
		"OtherKey": {
			reason:  "nor can one with the key of another",
			between: func(t *testing.T, dir layout) { must(t, os.Rename(dir.pki(adminCert+".key"), dir.pki(etcdCA+".key"))) },
			renewed: etcdCA,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := newLayout(t)
			before := value[pki](t)(ensurePKI(dir, nil, now))
			if test.between != nil {
				test.between(t, dir)
			}
			restart := now.Add(test.after)
			after := value[pki](t)(ensurePKI(dir, test.names, restart))
			for authority, leaves := range leaves(test.names) {
				if renewed := !before[authority].Cert.Equal(after[authority].Cert); renewed != (authority == test.renewed) {
					t.Errorf("%s: %s renewed: %v", test.reason, authority, renewed)
				}
				for name, leaf := range leaves {
					stored := value[ca.Pair](t)(load(dir.pki(name)))
					must(t, stored.Cert.CheckSignatureFrom(after[authority].Cert))
					if stored.Cert.NotAfter.Before(restart.Add(leafLifetime-time.Hour)) || stored.Cert.NotBefore.After(restart) {
						t.Errorf("%s: %s is valid from %s to %s", test.reason, name, stored.Cert.NotBefore, stored.Cert.NotAfter)
					}
					for _, host := range leaf.hosts {
						must(t, stored.Cert.VerifyHostname(host))
					}
				}
			}
		})
	}
}

func TestServiceAccountKeyStays(t *testing.T) {
	dir := newLayout(t)
	value[pki](t)(ensurePKI(dir, nil, now))
	before := value[[]byte](t)(os.ReadFile(dir.pki(serviceAccountKey + ".key")))
	value[pki](t)(ensurePKI(dir, nil, now.Add(5*365*24*time.Hour)))
	after := value[[]byte](t)(os.ReadFile(dir.pki(serviceAccountKey + ".key")))
	if string(before) != string(after) {
		t.Error("a new key would make all tokens void")
	}
}

func TestLoadDistinguishesUnusableFromUnreadable(t *testing.T) {
	base := filepath.Join(t.TempDir(), "x")
	if _, err := load(base); !errors.Is(err, ca.ErrUnusable) {
		t.Errorf("want no certificate, got %v", err)
	}
	must(t, os.WriteFile(base+".crt", []byte("no PEM"), 0o600))
	if _, err := load(base); !errors.Is(err, ca.ErrUnusable) {
		t.Errorf("want no certificate, got %v", err)
	}
	must(t, os.Remove(base+".crt"))
	must(t, os.Mkdir(base+".crt", 0o700)) // reading it fails, though it exists
	if _, err := load(base); err == nil || errors.Is(err, ca.ErrUnusable) {
		t.Errorf("want the error of reading, got %v", err)
	}
}
