package bulk

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/test/support/flood"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sides returns functions that secure connections on the two sides of a test.
func sides(t *testing.T) (server, client Secure) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	with := func(make func(net.Conn, *tls.Config) *tls.Conn) Secure {
		return func(ctx context.Context, raw net.Conn, channel Channel) (*tls.Conn, error) {
			conn := make(raw, &tls.Config{
				Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
				NextProtos: []string{string(channel)}, SessionTicketsDisabled: true,
			})
			return conn, conn.HandshakeContext(ctx)
		}
	}
	return with(tls.Server), with(tls.Client)
}

// socket is a Unix socket of one QEMU process.
func socket(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func dialer(listener net.Listener) Dial {
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", listener.Addr().String())
	}
}

// line is both sides of a migration between sockets like QEMU's.
type line struct {
	receiver *Receiver
	sender   *Sender
	from     map[Channel]net.Listener // the listeners that the source's QEMU connects to
	to       map[Channel]net.Listener // the listeners of the target's QEMU
}

func newLine(t *testing.T) *line {
	t.Helper()
	server, client := sides(t)
	l := &line{
		from: map[Channel]net.Listener{Memory: socket(t), Disk: socket(t)},
		to:   map[Channel]net.Listener{Memory: socket(t), Disk: socket(t)},
	}
	var err error
	l.receiver, err = Listen("127.0.0.1", server, map[Channel]Dial{Memory: dialer(l.to[Memory]), Disk: dialer(l.to[Disk])})
	must(t, err)
	t.Cleanup(l.receiver.Close)
	l.sender = NewSender(client)
	l.sender.Start(map[Channel]Source{
		Memory: {l.from[Memory], l.receiver.Address(Memory)}, Disk: {l.from[Disk], l.receiver.Address(Disk)},
	})
	t.Cleanup(l.sender.Close)
	return l
}

// connect returns both sides of a channel: that of the source's QEMU and that of the target's QEMU.
func (l *line) connect(t *testing.T, channel Channel) (source, target net.Conn) {
	t.Helper()
	source, err := dialer(l.from[channel])(t.Context())
	must(t, err)
	target, err = l.to[channel].Accept()
	must(t, err)
	t.Cleanup(func() { _ = errors.Join(source.Close(), target.Close()) })
	return source, target
}

// The target receives the commit after all of the memory, and not when QEMU closes its connection.
func TestSender_CommitFollowsMemory(t *testing.T) {
	l := newLine(t)
	source, target := l.connect(t, Memory)
	text := strings.Repeat("memory", 100_000)
	go func() {
		_, _ = io.WriteString(source, text)
		_ = source.Close() // as QEMU does after it has sent everything
	}()
	got := make([]byte, len(text))
	_, err := io.ReadFull(target, got)
	must(t, err)
	if string(got) != text {
		t.Error("the received memory differs")
	}
	select {
	case err := <-l.receiver.End():
		t.Fatalf("the channel was closed before the commit: %v", err)
	default:
	}
	must(t, target.Close()) // as QEMU does after it has loaded everything
	must(t, l.sender.Commit(t.Context()))
	must(t, <-l.receiver.End())
}

// Clients that connect but send nothing do not block the ports for the source.
func TestServer_IdleClientsDoNotBlock(t *testing.T) {
	l := newLine(t)
	for channel := range l.receiver.ports {
		flood.Past(t, l.receiver.Address(channel), maxAnonymous)
		l.connect(t, channel)
	}
}

// If the channel is closed in any other way, that is not a commit.
func TestReceiver_OtherClosureIsNotCommit(t *testing.T) {
	for name, end := range map[string]func(l *line, source net.Conn){
		"the source gives up": func(l *line, _ net.Conn) { l.sender.Close() },
		"QEMU has sent everything, but there is no commit": func(l *line, source net.Conn) {
			_ = source.Close()
			<-l.sender.sent
			_ = l.sender.memory.NetConn().Close() // as when the process terminates
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t)
			source, _ := l.connect(t, Memory)
			_, err := io.WriteString(source, "memory")
			must(t, err)
			end(l, source)
			if err := <-l.receiver.End(); !errors.Is(err, ErrCut) {
				t.Errorf("error = %v, want ErrCut", err)
			}
		})
	}
}

func TestSender_CommitNeedsMemory(t *testing.T) {
	l := newLine(t)
	l.connect(t, Memory)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.sender.Commit(ctx); !errors.Is(err, ErrNotSent) {
		t.Errorf("error = %v, want ErrNotSent", err)
	}
}

// A source that terminates while it copies the disk has not committed.
func TestReceiver_DiskChannelClosedEarly(t *testing.T) {
	l := newLine(t)
	source, _ := l.connect(t, Disk)
	must(t, source.Close())
	if err := <-l.receiver.End(); !errors.Is(err, ErrCut) {
		t.Errorf("error = %v, want ErrCut", err)
	}

	l = newLine(t)
	disk, _ := l.connect(t, Disk)
	memory, target := l.connect(t, Memory)
	_, err := io.WriteString(memory, "memory")
	must(t, err)
	_, err = io.ReadFull(target, make([]byte, len("memory")))
	must(t, err)
	must(t, errors.Join(disk.Close(), memory.Close()))
	must(t, l.sender.Commit(t.Context()))
	must(t, <-l.receiver.End())
}

// The disk channel carries data in both directions and may be opened again.
func TestChannel_DiskIsBidirectional(t *testing.T) {
	l := newLine(t)
	for range 2 {
		source, target := l.connect(t, Disk)
		for _, way := range [][2]net.Conn{{source, target}, {target, source}} {
			_, err := io.WriteString(way[0], "block")
			must(t, err)
			got := make([]byte, len("block"))
			_, err = io.ReadFull(way[1], got)
			must(t, err)
		}
		must(t, source.Close())
		if _, err := target.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("error = %v, want EOF", err)
		}
		must(t, target.Close())
	}
}

// Each disk has its own connection, and no disk waits for another.
func TestChannel_DisksDoNotWaitForEachOther(t *testing.T) {
	l := newLine(t)
	var sources, targets []net.Conn
	for range 3 {
		source, target := l.connect(t, Disk)
		sources, targets = append(sources, source), append(targets, target)
	}
	for i := range sources {
		text := fmt.Sprint("block", i)
		_, err := io.WriteString(sources[i], text)
		must(t, err)
		got := make([]byte, len(text))
		_, err = io.ReadFull(targets[i], got)
		must(t, err)
		if string(got) != text {
			t.Errorf("disk %d got %q", i, got)
		}
	}
}

// QEMU may believe that it has sent everything and not detect that the connection breaks afterwards.
func TestSender_SentNoticesBrokenConnection(t *testing.T) {
	l := newLine(t)
	if l.receiver.Begun() {
		t.Error("Begun() = true before a connection")
	}
	source, _ := l.connect(t, Memory)
	if !l.receiver.Begun() {
		t.Error("Begun() = false after a connection")
	}
	must(t, source.Close())
	must(t, l.sender.Sent(t.Context()))

	l = newLine(t)
	source, _ = l.connect(t, Memory)
	l.receiver.Close()
	for { // until the sender detects it
		if _, err := io.WriteString(source, strings.Repeat("memory", 1000)); err != nil {
			break
		}
	}
	if err := l.sender.Sent(t.Context()); !errors.Is(err, ErrNotSent) {
		t.Errorf("error = %v, want ErrNotSent", err)
	}
}
