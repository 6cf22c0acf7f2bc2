package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/millwright-dev/millwright/internal/ca"
)

// testFiles are the files of an identity.
type testFiles struct {
	Files
	clock *clock
}

func newTestFiles(t *testing.T, clock *clock) *testFiles {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	return &testFiles{Files{Certificate: in("tls.crt"), Key: in("tls.key"), Authority: in("ca.crt")}, clock}
}

// leaf returns a certificate that an external authority may issue.
func (l *testFiles) leaf(uris ...string) x509.Certificate {
	cert := x509.Certificate{
		NotBefore: l.clock.Now().Add(-time.Minute), NotAfter: l.clock.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, uri := range uris {
		parsed, _ := url.Parse(uri)
		cert.URIs = append(cert.URIs, parsed)
	}
	return cert
}

// write writes the files of a signed certificate. The chain follows the certificate.
func (l *testFiles) write(t *testing.T, by ca.Pair, root ca.Pair, cert x509.Certificate, chain ...[]byte) {
	t.Helper()
	key, _, err := newRequest()
	must(t, err)
	signed, err := by.Sign(cert, key.Public())
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: signed.Raw})
	for _, more := range chain {
		text = append(text, more...)
	}
	must(t, os.WriteFile(l.Certificate, text, 0o600))
	must(t, os.WriteFile(l.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	must(t, os.WriteFile(l.Authority, root.CertPEM(), 0o600))
}

func authorityAt(t *testing.T, clock *clock) ca.Pair {
	return value[*Authority](t)(NewAuthority(clock.Now())).pair
}

// both writes the files of a controller and a hypervisor that have the same authority. Their names start with a
// realm.
func both(t *testing.T, controller, hypervisor *testFiles, realm string) {
	t.Helper()
	root := authorityAt(t, controller.clock)
	controller.write(t, root, root, controller.leaf(realm+"controller"))
	hypervisor.write(t, root, root, hypervisor.leaf(realm+"vm/pool/vm-1/vm-1-abc"))
}

// A certificate, key and authority that another system has renewed apply to the next connection on both sides, and
// the replaced ones no longer apply. An open connection stays open.
func TestFromFiles_ReadsRenewedFiles(t *testing.T) {
	clock := newClock()
	controller, hypervisor, old := newTestFiles(t, clock), newTestFiles(t, clock), newTestFiles(t, clock)
	both(t, controller, hypervisor, uriOwn)
	w := &whoami{}
	address := serve(t, FromFiles(controller.Files, Controller(), clock.Now, nil).ServerOptions(), func(server *grpc.Server) {
		healthpb.RegisterHealthServer(server, w)
	})
	member := FromFiles(hypervisor.Files, pod, clock.Now, nil)
	open := value[*grpc.ClientConn](t)(member.Dial(address, Controller()))
	t.Cleanup(func() { _ = open.Close() })
	must(t, checkOver(t, open))
	if w.last != pod {
		t.Errorf("the server got %v, want %v", w.last, pod)
	}
	for from, to := range map[string]string{hypervisor.Certificate: old.Certificate, hypervisor.Key: old.Key, hypervisor.Authority: old.Authority} {
		text, err := os.ReadFile(from)
		must(t, err)
		must(t, os.WriteFile(to, text, 0o600))
	}
	both(t, controller, hypervisor, uriOwn)
	clock.advance(2 * maxFileAge)
	must(t, check(t, member, address, Controller()))
	wantCode(t, check(t, FromFiles(old.Files, pod, clock.Now, nil), address, Controller()), codes.Unavailable)
	must(t, checkOver(t, open))
	// Half of a change: the old certificate is used until it expires.
	must(t, os.Remove(hypervisor.Key))
	clock.advance(2 * maxFileAge)
	must(t, check(t, member, address, Controller()))
	must(t, member.Err())
	clock.advance(2 * time.Hour)
	wantCode(t, check(t, member, address, Controller()), codes.Unavailable)
	if err := member.Err(); !errors.Is(err, ErrBadFiles) {
		t.Errorf("Err() = %v", err)
	}
}

// Identities of a SPIFFE trust domain are accepted, also if an intermediate authority has issued them. Identities
// of another trust domain, or of Millwright's own authority, are rejected.
func TestFromFiles_AcceptsSPIFFENames(t *testing.T) {
	const realm = "spiffe://example.org/millwright/"
	clock := newClock()
	root, err := ca.New(x509.Certificate{KeyUsage: x509.KeyUsageCertSign}, clock.Now())
	must(t, err)
	middle := intermediate(t, root, clock)
	controller := newTestFiles(t, clock)
	controller.write(t, middle, root, controller.leaf(realm+"controller"), middle.CertPEM())
	w := &whoami{}
	address := serve(t, FromFiles(controller.Files, Controller(), clock.Now, nil).ServerOptions(), func(server *grpc.Server) {
		healthpb.RegisterHealthServer(server, w)
	})
	for uri, want := range map[string]codes.Code{
		realm + "vm/pool/vm-1/vm-1-abc":                       codes.OK,
		"spiffe://other.org/millwright/vm/pool/vm-1/vm-1-abc": codes.Unavailable,
		uriOwn + "vm/pool/vm-1/vm-1-abc":                      codes.Unavailable,
	} {
		files := newTestFiles(t, clock)
		files.write(t, middle, root, files.leaf(uri), middle.CertPEM())
		must(t, files.Check(pod, clock.Now()))
		err := check(t, FromFiles(files.Files, pod, clock.Now, nil), address, Controller())
		wantCode(t, err, want)
	}
	if w.last != pod {
		t.Errorf("the server got %v, want %v", w.last, pod)
	}
}

// intermediate returns an authority that another one has signed.
func intermediate(t *testing.T, root ca.Pair, clock *clock) ca.Pair {
	t.Helper()
	pair := authorityAt(t, clock)
	public := pair.Cert.PublicKey
	signed, err := root.Sign(x509.Certificate{
		NotBefore: clock.Now().Add(-time.Minute), NotAfter: clock.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
		IsCA: true, BasicConstraintsValid: true,
	}, public)
	must(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: signed.Raw})
	made, err := ca.Parse(text, pair.KeyPEM())
	must(t, err)
	return made
}

// Each problem is detected before a connection is made, and no connection is made.
func TestFromFiles_RejectsBadFiles(t *testing.T) {
	clock := newClock()
	root := authorityAt(t, clock)
	const name = uriOwn + "vm/pool/vm-1/vm-1-abc"
	for flaw, spoil := range map[string]func(*testFiles){
		"no file": func(l *testFiles) { must(t, os.Remove(l.Authority)) },
		"no PEM":  func(l *testFiles) { must(t, os.WriteFile(l.Certificate, []byte("-"), 0o600)) },
		"another key": func(l *testFiles) {
			other := newTestFiles(t, clock)
			other.write(t, root, root, other.leaf(name))
			l.Key = other.Key
		},
		"another Pod":       func(l *testFiles) { l.write(t, root, root, l.leaf(uriOwn+"vm/pool/vm-1/vm-1-def")) },
		"the controller":    func(l *testFiles) { l.write(t, root, root, l.leaf(uriController)) },
		"no name":           func(l *testFiles) { l.write(t, root, root, l.leaf()) },
		"two names":         func(l *testFiles) { l.write(t, root, root, l.leaf(name, name)) },
		"another name":      func(l *testFiles) { l.write(t, root, root, l.leaf("spiffe://example.org/ns/pool/sa/default")) },
		"another authority": func(l *testFiles) { l.write(t, authorityAt(t, clock), root, l.leaf(name)) },
		"client only":       func(l *testFiles) { c := l.leaf(name); c.ExtKeyUsage = c.ExtKeyUsage[:1]; l.write(t, root, root, c) },
		"expired": func(l *testFiles) {
			c := l.leaf(name)
			c.NotAfter = clock.Now().Add(-time.Second)
			l.write(t, root, root, c)
		},
		"a leaf as authority": func(l *testFiles) { l.Authority = l.Certificate },
	} {
		t.Run(flaw, func(t *testing.T) {
			files := newTestFiles(t, clock)
			files.write(t, root, root, files.leaf(name))
			must(t, files.Check(pod, clock.Now()))
			spoil(files)
			if err := files.Check(pod, clock.Now()); !errors.Is(err, ErrBadFiles) {
				t.Errorf("Check() = %v", err)
			}
			member := FromFiles(files.Files, pod, clock.Now, nil)
			if _, err := member.certificate(t.Context()); !errors.Is(err, ErrBadFiles) || !errors.Is(member.Err(), ErrBadFiles) {
				t.Errorf("certificate error = %v, Err() = %v", err, member.Err())
			}
		})
	}
}

// A hypervisor distinguishes a controller that does not issue certificates from an unreachable one.
func TestForHypervisor_ControllerWithoutIssuer(t *testing.T) {
	clock := newClock()
	authority := value[*Authority](t)(NewAuthority(clock.Now()))
	controller := ForController(authority, clock.Now)
	members := controller.trust.server(tls.RequireAndVerifyClientCert)
	members.Certificates = []tls.Certificate{*value[*tls.Certificate](t)(controller.certificate(t.Context()))}
	for name, test := range map[string]struct {
		address string
		want    error
	}{
		"controller without Issue":               {serve(t, controller.ServerOptions(), func(*grpc.Server) {}), ErrNoIssuer},
		"controller that requires a certificate": {serve(t, []grpc.ServerOption{grpc.Creds(credentials.NewTLS(members))}, func(*grpc.Server) {}), ErrNoIssuer},
		"no listener":                            {"127.0.0.1:1", nil},
		"another server":                         {serve(t, holding(t, authority, pod, clock).ServerOptions(), func(*grpc.Server) {}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			pem, _ := authority.PEM()
			hypervisor := value[*Credentials](t)(ForHypervisor(Options{
				Authority: pem, TokenFile: writeToken(t, "token"), Endpoint: test.address, Now: clock.Now,
			}))
			if _, err := hypervisor.certificate(t.Context()); err == nil {
				t.Error("got a certificate, want none")
			}
			if err := hypervisor.Err(); !errors.Is(err, test.want) {
				t.Errorf("Err() = %v, want %v", err, test.want)
			}
		})
	}
}
