package diskserver_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/internal/vm/storage/diskserver"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
)

// waitTimeout limits every wait. It is reached only if the test fails.
const waitTimeout = 5 * time.Minute

// The Pods of one virtual machine.
const (
	serverPod = "vm-1-disks"
	first     = "vm-1-aaa"
	second    = "vm-1-bbb"
)

func peer(pod string) identity.Peer { return identity.Peer{Namespace: "pool", VM: "vm-1", Pod: pod} }

func siblingsOf(credentials *identity.Credentials) identity.Siblings {
	return identity.Siblings{Credentials: credentials, Namespace: "pool", VM: "vm-1"}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

// directory returns a new directory whose path is short enough for sockets.
func directory(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("", "disks")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	return path
}

// installation has an authority for all identities.
type installation struct {
	t         testing.TB
	authority *identity.Authority
	directory string
}

func newInstallation(t testing.TB) *installation {
	t.Helper()
	authority, err := identity.NewAuthority(time.Now())
	must(t, err)
	return &installation{t, authority, t.TempDir()}
}

// files returns the files of an identity.
func (i *installation) files(of identity.Peer) identity.Files {
	i.t.Helper()
	key, err := ca.NewKey()
	must(i.t, err)
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	must(i.t, err)
	cert, err := i.authority.Sign(request, of, identity.Lifetime, time.Now())
	must(i.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(i.t, err)
	authority, _ := i.authority.PEM()
	write := func(name string, text []byte) string {
		path := filepath.Join(i.directory, of.VM+"-"+of.Pod+name)
		must(i.t, os.WriteFile(path, text, 0o600))
		return path
	}
	return identity.Files{
		Certificate: write(".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})),
		Key:         write(".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		Authority:   write(".ca", authority),
	}
}

func (i *installation) credentials(of identity.Peer) *identity.Credentials {
	i.t.Helper()
	if of.IsController() {
		return identity.ForController(i.authority, nil)
	}
	return identity.FromFiles(i.files(of), of, nil, nil)
}

// site is a disk server of one VM on the network.
type site struct {
	*installation
	*diskserver.Server
	disk    string
	at      storage.Attachment
	control string
	stop    func()
}

// newDisk creates a disk of 8 MiB that starts with the content.
func newDisk(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	must(t, os.WriteFile(path, content, 0o600))
	must(t, os.Truncate(path, 8<<20))
	return path
}

// serve serves a disk until the test completes or stop is called.
func (i *installation) serve(path string, more ...diskserver.Disk) *site {
	i.t.Helper()
	return i.serveAt(listen(i.t, "127.0.0.1:0"), path, more...)
}

func (i *installation) serveAt(sessions net.Listener, path string, more ...diskserver.Disk) *site {
	t := i.t
	t.Helper()
	server, err := diskserver.New(diskserver.Config{
		Disks: append([]diskserver.Disk{{Name: "root", Path: path}}, more...), Run: directory(t),
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	credentials := i.credentials(peer(serverPod))
	control := listen(t, "127.0.0.1:0")
	s := &site{
		installation: i, Server: server, disk: path, control: control.Addr().String(),
		at: storage.Attachment{Address: sessions.Addr().String(), Pod: serverPod},
	}
	rpc := grpc.NewServer(credentials.ServerOptions()...)
	server.Register(rpc, s.at)
	go func() { _ = rpc.Serve(control) }()
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(ctx, sessions, siblingsOf(credentials).AcceptAny)
	}()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		rpc.Stop()
		cancel()
		<-served
		must(t, server.Close())
	}
	t.Cleanup(s.stop)
	return s
}

func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	must(t, err)
	return listener
}

// as returns the server's volume with the identity of a peer.
func (s *site) as(of identity.Peer) storage.Volume {
	s.t.Helper()
	conn, err := s.credentials(of).Dial(s.control, peer(serverPod))
	must(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return storage.At(conn)
}

// volume returns the server's volume with the identity of the controller.
func (s *site) volume() storage.Volume { return s.as(identity.Controller()) }

// open opens the disks as the controller.
func (s *site) open(token storage.Token, pod string) {
	s.t.Helper()
	at, err := s.volume().Open(bounded(s.t), token, pod)
	must(s.t, err)
	if at != s.at {
		s.t.Errorf("the disks are at %+v, want %+v", at, s.at)
	}
}

func (s *site) carrier(of identity.Peer, token storage.Token) session.Carrier {
	s.t.Helper()
	return session.Carrier{To: s.at, Token: token, Connect: siblingsOf(s.credentials(of)).Connect, Refused: func(error) {}}
}
