package controlplane

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func TestPKI_CertificatesAreUsable(t *testing.T) {
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

func TestPKI_KeyFilesArePrivate(t *testing.T) {
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
		t.Errorf("the directory has mode %o", mode)
	}
}

// TestPKI_RestartKeepsAuthorities checks that the key of a CA is never replaced, and that each start renews all other
// certificates for a year.
func TestPKI_RestartKeepsAuthorities(t *testing.T) {
	tests := map[string]struct {
		reason  string
		between func(t *testing.T, dir layout)
		names   []string
		after   time.Duration
		renewed string // the CA that is replaced
	}{
		"Nothing": {reason: "all are still good"},
		"Name":    {reason: "the server certificate gets a new name", names: []string{"new.example"}},
		"Time":    {reason: "leaves live for a year, authorities for ten", after: 5 * leafLifetime},
		"LostLeaf": {
			reason:  "a certificate without its key is replaced",
			between: func(t *testing.T, dir layout) { must(t, os.Remove(dir.pki(etcdCert+".key"))) },
		},
		"LostAuthority": {
			reason:  "an authority without its certificate gets another for its key",
			between: func(t *testing.T, dir layout) { must(t, os.Remove(dir.pki(etcdCA+".crt"))) },
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
				if !before[authority].Key.Equal(after[authority].Key) {
					t.Errorf("%s: %s has another key", test.reason, authority)
				}
				for name, leaf := range leaves {
					leafPair := stored(t, dir.pki(name))
					must(t, leafPair.Cert.CheckSignatureFrom(after[authority].Cert))
					if leafPair.Cert.NotAfter.Before(restart.Add(leafLifetime-time.Hour)) || leafPair.Cert.NotBefore.After(restart) {
						t.Errorf("%s: %s is valid from %s to %s", test.reason, name, leafPair.Cert.NotBefore, leafPair.Cert.NotAfter)
					}
					for _, host := range leaf.hosts {
						must(t, leafPair.Cert.VerifyHostname(host))
					}
				}
			}
		})
	}
}

func stored(t *testing.T, base string) ca.Pair {
	t.Helper()
	certificate, key, err := readPair(base+".crt", base+".key")
	must(t, err)
	return value[ca.Pair](t)(ca.Parse(certificate, key))
}

func TestPKI_RestartKeepsServiceAccountKey(t *testing.T) {
	dir := newLayout(t)
	value[pki](t)(ensurePKI(dir, nil, now))
	before := value[[]byte](t)(os.ReadFile(dir.pki(serviceAccountKey + ".key")))
	value[pki](t)(ensurePKI(dir, nil, now.Add(5*365*24*time.Hour)))
	after := value[[]byte](t)(os.ReadFile(dir.pki(serviceAccountKey + ".key")))
	if string(before) != string(after) {
		t.Error("a new key would make all tokens void")
	}
}

// TestPKI_AuthorityCertificateIsRecreated checks that certificates signed by the CA remain valid.
func TestPKI_AuthorityCertificateIsRecreated(t *testing.T) {
	dir := newLayout(t)
	before := value[pki](t)(ensurePKI(dir, nil, now))
	must(t, os.Remove(dir.pki(clusterCA+".crt")))
	after := value[pki](t)(ensurePKI(dir, nil, now.Add(time.Hour)))
	roots := x509.NewCertPool()
	roots.AddCert(after[clusterCA].Cert)
	_, err := before[adminCert].Cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now.Add(time.Hour), KeyUsages: clientUsage})
	must(t, err)
}

// TestPKI_UnusableKeysAreNotReplaced checks that an existing but unusable CA or service account key is not replaced, and
// that nothing in the directory changes.
func TestPKI_UnusableKeysAreNotReplaced(t *testing.T) {
	garbage := []byte("no PEM")
	for name, spoil := range map[string]func(dir layout) error{
		"the authority's certificate is garbage": func(dir layout) error { return os.WriteFile(dir.pki(clusterCA+".crt"), garbage, 0o600) },
		"it is empty":                            func(dir layout) error { return os.Truncate(dir.pki(clusterCA+".crt"), 0) },
		"the authority's key is garbage":         func(dir layout) error { return os.WriteFile(dir.pki(etcdCA+".key"), garbage, 0o600) },
		"it is cut off":                          func(dir layout) error { return os.Truncate(dir.pki(etcdCA+".key"), 100) },
		"it is gone":                             func(dir layout) error { return os.Remove(dir.pki(etcdCA + ".key")) },
		"it is that of another certificate": func(dir layout) error {
			return os.Rename(dir.pki(adminCert+".key"), dir.pki(etcdCA+".key"))
		},
		"the certificate is gone, and the key garbage": func(dir layout) error {
			return errors.Join(os.Remove(dir.pki(etcdCA+".crt")), os.WriteFile(dir.pki(etcdCA+".key"), garbage, 0o600))
		},
		"it cannot be read": func(dir layout) error {
			return errors.Join(os.Remove(dir.pki(etcdCA+".crt")), os.Mkdir(dir.pki(etcdCA+".crt"), 0o700))
		},
		"the key of service accounts is garbage": func(dir layout) error {
			return os.WriteFile(dir.pki(serviceAccountKey+".key"), garbage, 0o600)
		},
		"it is gone, and the public key is not": func(dir layout) error { return os.Remove(dir.pki(serviceAccountKey + ".key")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := newLayout(t)
			value[pki](t)(ensurePKI(dir, nil, now))
			must(t, spoil(dir))
			before := roots(t, dir)
			if _, err := ensurePKI(dir, nil, now); err == nil {
				t.Error("it was accepted or replaced")
			}
			if diff := cmp.Diff(before, roots(t, dir)); diff != "" {
				t.Errorf("files changed (-before +after):\n%s", diff)
			}
		})
	}
}

// roots returns the files that are created only once.
func roots(t *testing.T, dir layout) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, name := range []string{clusterCA, frontProxyCA, etcdCA, serviceAccountKey} {
		for _, suffix := range []string{".crt", ".key", ".pub"} {
			if content, err := os.ReadFile(dir.pki(name + suffix)); err == nil {
				found[name+suffix] = string(content)
			}
		}
	}
	return found
}

// TestPKI_PublicKeyIsRecreated checks that the public key is derived from the private key, which is kept.
func TestPKI_PublicKeyIsRecreated(t *testing.T) {
	dir := newLayout(t)
	value[pki](t)(ensurePKI(dir, nil, now))
	before := roots(t, dir)
	must(t, os.Remove(dir.pki(serviceAccountKey+".pub")))
	value[pki](t)(ensurePKI(dir, nil, now))
	if diff := cmp.Diff(before, roots(t, dir)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}
