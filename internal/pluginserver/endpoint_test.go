package pluginserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/internal/pluginserver"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drivers.sock")
	endpoint, err := pluginserver.Socket(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the socket is %v: %v", info.Mode(), err)
	}
	if _, err := pluginserver.Socket(path); err == nil || !strings.Contains(err.Error(), "another process is listening") {
		t.Errorf("a second server took the socket over: %v", err)
	}

	added := make(chan *pluginserver.Driver, 1)
	m := &manager{T: t, server: pluginserver.New(pluginserver.Options{Add: func(_ string, d *pluginserver.Driver) error { added <- d; return nil }})}
	m.start(m.server.Serve, endpoint)
	m.serve(fake.New(fake.Config{}), plugin.Options{Kind: "fake", Target: "unix://" + path, Credentials: insecure.NewCredentials()})
	_, err = (<-added).GetMachineStatus(t.Context(), statusRequest("one"))
	wantCode(t, err, codes.NotFound)
}

func TestSocket_ReplacesSocketOfKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drivers.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	endpoint, err := pluginserver.Socket(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = endpoint.Close()
}

func TestSocket_KeepsOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pluginserver.Socket(path); err == nil {
		t.Error("the socket replaced a file")
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestEndpoint_RequiresTLSBeyondLoopback(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "localhost.example:0"} {
		if _, err := pluginserver.Loopback(address); !errors.Is(err, pluginserver.ErrNotLoopback) {
			t.Errorf("%s: %v", address, err)
		}
	}
	endpoint, err := pluginserver.Loopback("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = endpoint.Close()
}

// authority signs certificates.
type authority struct {
	*testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{T: t, dir: t.TempDir()}
	a.key = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key))(t)
	a.cert = must(x509.ParseCertificate(der))(t)
	a.write("ca.crt", "CERTIFICATE", der)
	return a
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func (a *authority) write(name, kind string, der []byte) {
	a.Helper()
	if err := os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.Fatal(err)
	}
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// sign writes NAME.crt and NAME.key.
func (a *authority) sign(name string, change func(*x509.Certificate)) {
	a.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(a.T)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	change(template)
	a.write(name+".crt", "CERTIFICATE", must(x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key))(a.T))
	a.write(name+".key", "PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key))(a.T))
}

// secured serves drivers over TLS.
func secured(t *testing.T, a *authority) (target string, added chan *pluginserver.Driver) {
	a.sign("manager", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	endpoint, err := pluginserver.TLS("127.0.0.1:0", plugin.Files{Certificate: a.path("manager.crt"), Key: a.path("manager.key"), CA: a.path("ca.crt")})
	if err != nil {
		t.Fatal(err)
	}
	added = make(chan *pluginserver.Driver, 4)
	m := &manager{T: t, server: pluginserver.New(pluginserver.Options{Add: func(_ string, d *pluginserver.Driver) error { added <- d; return nil }})}
	m.start(m.server.Serve, endpoint)
	return strings.TrimPrefix(endpoint.String(), "tcp://"), added
}

func (a *authority) credentials(name string) credentials.TransportCredentials {
	a.Helper()
	return must(plugin.TLS(plugin.Files{Certificate: a.path(name + ".crt"), Key: a.path(name + ".key"), CA: a.path("ca.crt")}))(a.T)
}

func TestTLS(t *testing.T) {
	a := newAuthority(t)
	target, added := secured(t, a)
	a.sign("by-name", func(c *x509.Certificate) { c.Subject.CommonName = "Fake" })
	a.sign("by-dns", func(c *x509.Certificate) { c.DNSNames = []string{"x", "other"} })
	m := &manager{T: t}
	for name, kind := range map[string]string{"by-name": "fake", "by-dns": "other"} {
		m.serve(fake.New(fake.Config{}), plugin.Options{Kind: kind, Target: target, Credentials: a.credentials(name)})
		_, err := (<-added).GetMachineStatus(soon(t), statusRequest("one"))
		wantCode(t, err, codes.NotFound)
	}
}

// dialed returns a plug-in with credentials.
func dialed(t *testing.T, target string, with credentials.TransportCredentials) *raw {
	conn := must(grpc.NewClient(target, grpc.WithTransportCredentials(with)))(t)
	t.Cleanup(func() { _ = conn.Close() })
	client := driverpb.NewInfraClient(conn)
	stream, err := client.Register(soon(t))
	if err != nil {
		return &raw{t, client, nil}
	}
	return &raw{t, client, stream}
}

func TestEndpoint_Certificates(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	target, added := secured(t, a)
	a.sign("fake", func(c *x509.Certificate) { c.Subject.CommonName = "fake" })
	a.sign("other", func(c *x509.Certificate) { c.Subject.CommonName = "other" })
	a.sign("expired", func(c *x509.Certificate) {
		c.Subject.CommonName, c.NotAfter = "fake", time.Now().Add(-time.Minute)
	})
	a.sign("server-only", func(c *x509.Certificate) {
		c.Subject.CommonName, c.ExtKeyUsage = "fake", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	foreign.sign("fake", func(c *x509.Certificate) { c.Subject.CommonName = "fake" })
	none := credentials.NewClientTLSFromCert(poolOf(a), "")
	mixed := must(plugin.TLS(plugin.Files{Certificate: foreign.path("fake.crt"), Key: foreign.path("fake.key"), CA: a.path("ca.crt")}))(t)
	for name, tt := range map[string]struct {
		with credentials.TransportCredentials
		want grpccodes.Code
	}{
		"none":                         {none, grpccodes.Unavailable},
		"of another authority":         {mixed, grpccodes.Unavailable},
		"expired":                      {a.credentials("expired"), grpccodes.Unavailable},
		"not for clients":              {a.credentials("server-only"), grpccodes.Unavailable},
		"without TLS":                  {insecure.NewCredentials(), grpccodes.Unavailable},
		"for another kind":             {a.credentials("other"), grpccodes.PermissionDenied},
		"manager of another authority": {foreign.credentials("fake"), grpccodes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			r := dialed(t, target, tt.with)
			if r.stream == nil {
				return // rejected during the handshake
			}
			_ = r.stream.Send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Registration{Registration: registration()}})
			wantEnd(t, r.ended(), tt.want)
			if len(added) != 0 {
				t.Error("the plug-in was registered anyway")
			}
		})
	}
}

// TestEndpoint_LimitsConnectionsPerCertificate checks that a plug-in cannot use up the connections of others.
func TestEndpoint_LimitsConnectionsPerCertificate(t *testing.T) {
	a := newAuthority(t)
	target, _ := secured(t, a)
	connects := func(name string) bool {
		t.Helper()
		certificate := must(tls.LoadX509KeyPair(a.path(name+".crt"), a.path(name+".key")))(t)
		conn := must(tls.Dial("tcp", target, &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: poolOf(a), Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"},
		}))(t)
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		// The connection has a timeout until the client has sent the preface of HTTP/2 and its settings.
		_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00") // fails if the server has closed it
		_, err := conn.Read(make([]byte, 1))                                                                // the settings of the server
		return err == nil
	}
	for _, name := range []string{"fake", "other"} {
		a.sign(name, func(c *x509.Certificate) { c.Subject.CommonName = name })
		for i := range pluginserver.MaxPerPeer {
			if !connects(name) {
				t.Fatalf("connection %d with certificate %s was closed", i+1, name)
			}
		}
		if connects(name) {
			t.Errorf("certificate %s has more than %d connections", name, pluginserver.MaxPerPeer)
		}
	}
}

func poolOf(a *authority) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// TestSecret_OfOtherKindIsDenied checks this even for a plug-in that knows the ID of another plug-in's
// operation.
func TestSecret_OfOtherKindIsDenied(t *testing.T) {
	a := newAuthority(t)
	target, added := secured(t, a)
	a.sign("fake", func(c *x509.Certificate) { c.Subject.CommonName = "fake" })
	a.sign("thief", func(c *x509.Certificate) { c.Subject.CommonName = "thief" })
	owner := dialed(t, target, a.credentials("fake"))
	owner.registered(registration())
	d := <-added
	thief := dialed(t, target, a.credentials("thief"))
	thief.registered(registration(func(r *driverpb.Registration) { r.Kind = "thief" }))
	done := ask(soon(t), d, "one")
	op := owner.receive().GetOperation()
	_, err := thief.client.GetSecret(t.Context(), op.GetSecret())
	wantEnd(t, err, grpccodes.PermissionDenied)
	_, err = thief.client.GetMachineClass(t.Context(), op.GetMachineClass())
	wantEnd(t, err, grpccodes.PermissionDenied)
	_, err = owner.client.GetSecret(t.Context(), op.GetSecret())
	wantEnd(t, err, grpccodes.OK)
	owner.respond(op)
	wantCode(t, (<-done).err, codes.OK)
}

// TestEndpoint_LogsRejectedConnection checks that the log states why a certificate of another authority is rejected.
func TestEndpoint_LogsRejectedConnection(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	a.sign("manager", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	foreign.sign("fake", func(c *x509.Certificate) { c.Subject.CommonName = "fake" })
	endpoint := must(pluginserver.TLS("127.0.0.1:0", plugin.Files{Certificate: a.path("manager.crt"), Key: a.path("manager.key"), CA: a.path("ca.crt")}))(t)
	lines := make(chan string, 16)
	log := funcr.New(func(_, line string) { lines <- line }, funcr.Options{})
	m := &manager{T: t, server: pluginserver.New(pluginserver.Options{Log: log, Add: func(string, *pluginserver.Driver) error { return nil }})}
	target := strings.TrimPrefix(endpoint.String(), "tcp://")
	m.start(m.server.Serve, endpoint)
	with := must(plugin.TLS(plugin.Files{Certificate: foreign.path("fake.crt"), Key: foreign.path("fake.key"), CA: a.path("ca.crt")}))(t)
	if r := dialed(t, target, with); r.stream != nil {
		wantEnd(t, r.ended(), grpccodes.Unavailable)
	}
	for ctx := soon(t); ; {
		select {
		case line := <-lines:
			if strings.Contains(line, "Refused the connection") {
				if !strings.Contains(line, "unknown authority") {
					t.Errorf("the log does not contain the reason: %s", line)
				}
				return
			}
		case <-ctx.Done():
			t.Fatal("the rejection is not logged")
		}
	}
}

// TestEndpoint_ReloadsAuthority checks that a running driver accepts a manager with a certificate of a new
// authority.
func TestEndpoint_ReloadsAuthority(t *testing.T) {
	former, a := newAuthority(t), newAuthority(t)
	target, added := secured(t, a)
	a.sign("fake", func(c *x509.Certificate) { c.Subject.CommonName = "fake" })
	files := plugin.Files{Certificate: a.path("fake.crt"), Key: a.path("fake.key"), CA: filepath.Join(t.TempDir(), "ca.crt")}
	replace := func(from *authority) {
		if err := os.WriteFile(files.CA, must(os.ReadFile(from.path("ca.crt")))(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace(former)
	with := must(plugin.TLS(files))(t)
	if r := dialed(t, target, with); r.stream != nil {
		wantEnd(t, r.ended(), grpccodes.Unavailable)
	}
	replace(a)
	dialed(t, target, with).registered(registration())
	<-added
	if err := os.Remove(files.CA); err != nil {
		t.Fatal(err)
	}
	if r := dialed(t, target, with); r.stream != nil {
		wantEnd(t, r.ended(), grpccodes.Unavailable)
	}
}

func TestEndpoint_ReloadsCertificates(t *testing.T) {
	a := newAuthority(t)
	target, added := secured(t, a)
	a.sign("fake", func(c *x509.Certificate) { c.Subject.CommonName = "other" })
	with := a.credentials("fake")
	a.sign("fake", func(c *x509.Certificate) { c.Subject.CommonName = "fake" })
	a.sign("manager", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	dialed(t, target, with).registered(registration())
	<-added
	if err := os.WriteFile(a.path("manager.crt"), []byte("half a f"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := dialed(t, target, with)
	if r.stream != nil {
		wantEnd(t, r.ended(), grpccodes.Unavailable)
	}
}
