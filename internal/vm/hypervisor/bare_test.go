package hypervisor_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
)

// bare is a QEMU without a hypervisor, as a user would start it, with the same virtual hardware and one monitor.
type bare struct {
	t       *testing.T
	dir     string
	process *exec.Cmd
	ended   chan struct{}
	monitor *qmp.Client
	events  chan qmp.Event
	console *listening
}

type arguments map[string]any

func startBare(t *testing.T, disk string, memory uint64, incoming bool) *bare {
	t.Helper()
	dir, err := os.MkdirTemp("", "bare-") // the path is short enough for sockets
	must(t, err)
	b := &bare{t: t, dir: dir, ended: make(chan struct{}), events: make(chan qmp.Event, 1000)}
	args := []string{
		"-machine", qemu.MachineType + ",usb=off,vmport=off", "-accel", "tcg", "-cpu", "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt",
		"-smp", "1", "-m", fmt.Sprintf("%dM", memory>>20), "-nodefaults", "-no-user-config", "-display", "none", "-boot", "menu=off,strict=on", "-S",
		"-chardev", "socket,id=qmp,server=on,wait=off,path=" + b.path("qmp"), "-mon", "chardev=qmp,mode=control",
		"-chardev", "socket,id=console,server=on,wait=off,path=" + b.path("console"), "-device", "isa-serial,chardev=console",
		"-blockdev", "driver=raw,node-name=root,discard=unmap,file.driver=file,file.discard=unmap,file.filename=" + disk,
		"-device", "virtio-blk-pci,drive=root,bootindex=1", "-device", "virtio-rng-pci",
	}
	if incoming {
		args = append(args, "-incoming", "defer")
	}
	b.process = exec.Command(qemu.DefaultProgram, args...)
	b.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	b.process.Stderr = os.Stderr
	must(t, b.process.Start())
	go func() {
		defer close(b.ended)
		_ = b.process.Wait()
	}()
	t.Cleanup(b.kill)
	b.monitor, err = qmp.New(b.ctx(), b.dial("qmp"), func(e qmp.Event) { b.events <- e })
	must(t, err)
	b.console = listen(b.dial("console"))
	return b
}

func (b *bare) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bare) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	b.t.Cleanup(cancel)
	return ctx
}

// kill kills QEMU. It may be called more than once.
func (b *bare) kill() {
	_ = b.process.Process.Kill() // fails only if QEMU has already exited
	<-b.ended
	_ = os.RemoveAll(b.dir)
}

// dial connects to a socket as soon as QEMU has created it.
func (b *bare) dial(name string) net.Conn {
	b.t.Helper()
	for {
		conn, err := net.Dial("unix", b.path(name))
		if err == nil {
			return conn
		}
		select {
		case <-time.After(time.Millisecond): // nothing announces the socket
		case <-b.ended:
			b.t.Fatalf("QEMU has exited: %v", err)
		}
	}
}

func (b *bare) do(command string, with arguments) {
	b.t.Helper()
	if with == nil {
		with = arguments{}
	}
	must(b.t, b.monitor.Execute(b.ctx(), command, with, nil))
}

// await waits for an event.
func (b *bare) await(name string, is func(data string) bool) {
	b.t.Helper()
	for late := time.After(waitTimeout); ; {
		select {
		case event := <-b.events:
			if event.Name == name && is(string(event.Data)) {
				return
			}
		case <-late:
			b.t.Fatalf("no event %s", name)
		}
	}
}

// listening records when a console gets output.
type listening struct {
	mu          sync.Mutex
	first, last time.Time
	changed     chan struct{} // closed when the first bytes arrive
}

func listen(conn net.Conn) *listening {
	l := &listening{changed: make(chan struct{})}
	go func() {
		buffer := make([]byte, 4096)
		for {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
			now := time.Now()
			l.mu.Lock()
			if l.first.IsZero() {
				l.first = now
				close(l.changed)
			}
			l.last = now
			l.mu.Unlock()
		}
	}()
	return l
}

// begins waits until the console gets output.
func (l *listening) begins(t *testing.T) {
	t.Helper()
	select {
	case <-l.changed:
	case <-time.After(waitTimeout):
		t.Fatal("the guest did not print anything")
	}
}

func (l *listening) times() (first, last time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.last
}

// bareName is the name of a bare QEMU in its certificate.
const bareName = "bare"

// bareCertificates creates a directory of certificates for QEMU, with the same kind of keys as hypervisors.
func bareCertificates(t *testing.T) string {
	t.Helper()
	now := time.Now()
	authority, err := ca.New(x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, KeyUsage: x509.KeyUsageCertSign}, now)
	must(t, err)
	key, err := ca.NewKey()
	must(t, err)
	cert, err := authority.Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: bareName}, DNSNames: []string{bareName}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key.Public())
	must(t, err)
	dir, pair := t.TempDir(), ca.Pair{Cert: cert, Key: key}
	must(t, os.WriteFile(filepath.Join(dir, "ca-cert.pem"), authority.CertPEM(), 0o600))
	for _, side := range []string{"client", "server"} {
		must(t, os.WriteFile(filepath.Join(dir, side+"-cert.pem"), pair.CertPEM(), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, side+"-key.pem"), pair.KeyPEM(), 0o600))
	}
	return dir
}

// secure makes QEMU send and receive over TLS, if there is a directory with certificates.
func (b *bare) secure(certificates, endpoint string) {
	b.t.Helper()
	if certificates == "" {
		return
	}
	b.do("object-add", arguments{"qom-type": "tls-creds-x509", "id": "tls", "dir": certificates, "endpoint": endpoint, "verify-peer": true})
	b.do("migrate-set-parameters", arguments{"tls-creds": "tls", "tls-hostname": bareName})
}

// moveBare moves a guest from one QEMU to another one that is started for this purpose. It does what hypervisors
// do, but it connects the sockets directly, with QEMU's own TLS if there is a directory with certificates. It
// returns how long that took, and how long the guest was stopped.
func moveBare(t *testing.T, disk string, size, memory uint64, certificates string) (total, gap time.Duration) {
	t.Helper()
	source := startBare(t, disk, memory, false)
	source.secure(certificates, "client")
	source.do("cont", nil)
	source.console.begins(t)
	begun := time.Now()
	copied := filepath.Join(t.TempDir(), "disk")
	must(t, os.WriteFile(copied, nil, 0o600))
	must(t, os.Truncate(copied, int64(size)))
	target := startBare(t, copied, memory, true)
	target.secure(certificates, "server")
	on := func(name string) arguments { return arguments{"capability": name, "state": true} }
	target.do("migrate-set-capabilities", arguments{"capabilities": []arguments{on("events"), on("late-block-activate")}})
	target.do("migrate-incoming", arguments{"uri": "unix:" + target.path("memory")})
	server := arguments{"addr": arguments{"type": "unix", "data": arguments{"path": target.path("disk")}}}
	client := arguments{"driver": "nbd", "server": arguments{"type": "unix", "path": target.path("disk")}, "export": "root", "discard": "unmap"}
	if certificates != "" {
		server["tls-creds"], client["tls-creds"], client["tls-hostname"] = "tls", "tls", bareName
	}
	target.do("nbd-server-start", server)
	target.do("block-export-add", arguments{"type": "nbd", "id": "root", "node-name": "root", "name": "root", "writable": true})

	source.do("migrate-set-capabilities", arguments{"capabilities": []arguments{on("events"), on("pause-before-switchover")}})
	source.do("blockdev-add", arguments{"node-name": "copy", "driver": "raw", "discard": "unmap", "file": client})
	source.do("blockdev-mirror", arguments{"job-id": "copy", "device": "root", "target": "copy", "sync": "full"})
	whatever := func(string) bool { return true }
	is := func(status string) func(string) bool {
		return func(data string) bool { return strings.Contains(data, `"`+status+`"`) }
	}
	source.await("BLOCK_JOB_READY", whatever)
	source.do("migrate", arguments{"uri": "unix:" + target.path("memory")})
	source.await("MIGRATION", is("pre-switchover"))
	source.do("block-job-cancel", arguments{"device": "copy"})
	source.await("BLOCK_JOB_COMPLETED", whatever)
	source.do("blockdev-del", arguments{"node-name": "copy"})
	source.do("migrate-continue", arguments{"state": "pre-switchover"})
	target.await("MIGRATION", is("completed"))
	target.do("nbd-server-stop", nil)
	target.do("cont", nil)
	target.console.begins(t)
	first, _ := target.console.times()
	_, last := source.console.times()
	source.kill()
	target.kill()
	return first.Sub(begun), first.Sub(last)
}
