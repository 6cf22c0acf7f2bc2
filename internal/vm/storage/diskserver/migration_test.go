package diskserver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// guest is a QEMU of this process whose disk is served to a Pod with a token.
type guest struct {
	*qemu.Process
	t       *testing.T
	console *console.Client
	rest    []byte
}

func (s *site) guest(t *testing.T, pod string, token storage.Token, incoming bool) *guest {
	t.Helper()
	const socket = "disk"
	run := directory(t)
	listener, err := net.Listen("unix", filepath.Join(run, socket))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		s.carrier(peer(pod), token).Carry(ctx, listener)
	}()
	t.Cleanup(func() { cancel(); <-carried })
	p, err := qemu.Start(bounded(t), "", qemu.Config{
		Name: pod, Processor: qemu.Processor{Count: 1, Accelerator: qemu.TCG}, MemoryMiB: 32, Sockets: run, Incoming: incoming,
		Disks: qemu.Disks{Root: qemu.Disk{Served: qemu.Served{Socket: socket, Export: "root"}}},
	})
	must(t, err)
	t.Cleanup(func() { must(t, p.Kill(bounded(t))) })
	return &guest{Process: p, t: t, console: p.Console().Attach()}
}

// line returns the next complete line of the console, except for lines of the firmware.
func (g *guest) line() string {
	g.t.Helper()
	for {
		if line, rest, found := bytes.Cut(g.rest, []byte("\n")); found {
			g.rest = rest
			if bytes.HasSuffix(line, []byte("\r")) {
				continue // the guests do not print carriage returns
			}
			return string(line)
		}
		output, err := g.console.Next(bounded(g.t))
		must(g.t, err)
		g.rest = append(g.rest, output...)
	}
}

// boots reads the banner of the guest.
func (g *guest) boots() {
	g.t.Helper()
	if banner := g.line(); banner != "boot" {
		g.t.Fatalf("the guest printed %q", banner)
	}
}

// number reads a number that the guest "scribe" prints.
func (g *guest) number() uint64 {
	g.t.Helper()
	line := g.line()
	digits := strings.Map(func(letter rune) rune { return rune(fmt.Sprintf("%x", letter-'a')[0]) }, line)
	number, err := strconv.ParseUint(digits, 16, 32)
	if err != nil {
		g.t.Fatalf("the guest printed %q, want a number", line)
	}
	return number
}

// counts reads the given count of consecutive numbers, starting with next, and returns the number that follows.
func (g *guest) counts(next uint64, count int) uint64 {
	g.t.Helper()
	for range count {
		if number := g.number(); number != next {
			g.t.Fatalf("the guest printed %d, want %d", number, next)
		}
		next++
	}
	return next
}

// awaitFailure waits until the machine is stopped because its storage failed.
func (g *guest) awaitFailure() {
	g.t.Helper()
	late := bounded(g.t)
	for {
		state, err := g.State(late)
		must(g.t, err)
		if state.Status == qemu.StorageFailed {
			return
		}
		select {
		case <-g.Changed():
		case <-late.Done():
			g.t.Fatalf("the machine is %s, although its storage is gone", state.Status)
		}
	}
}

// keepsTrying continues the guest whenever its storage has failed, like a hypervisor, until stop is called.
func (g *guest) keepsTrying() (stop func()) {
	ctx, cancel := context.WithCancel(bounded(g.t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if state, err := g.State(ctx); err == nil && state.Status == qemu.StorageFailed {
				_ = g.Cont(ctx)
			}
			select {
			case <-g.Changed():
			case <-ctx.Done():
			}
		}
	}()
	return func() { cancel(); <-done }
}

// connect connects the memory sockets of two machines.
func connect(t *testing.T, source, target *guest) {
	t.Helper()
	listener, err := source.Listen(qemu.MemorySocket)
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	must(t, target.Receive(bounded(t), nil))
	go func() {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		to, err := target.Dial(context.Background(), qemu.MemorySocket)
		if err == nil {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		}
		_ = from.Close()
	}()
}

// A guest moves without a copy of its disk: both machines have attached it with their own tokens. The old token is
// revoked before the guest is continued, so the source cannot write any more, even if it is continued by mistake.
func TestServer_MachineMovesToAnotherToken(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("runs real QEMU machines")
	}
	s := newInstallation(t).serve(newDisk(t, bootSector(t, "scribe")))
	s.open(7, first)
	source := s.guest(t, first, 7, false)
	must(t, source.Cont(bounded(t)))
	source.boots()
	next := source.counts(0, 100)
	s.open(9, second)
	target := s.guest(t, second, 9, true)
	connect(t, source, target)
	must(t, source.Send(bounded(t), qemu.Destination{}, func(qemu.Progress) {}))
	must(t, source.Finish(bounded(t), qemu.Destination{}))
	must(t, target.Received(bounded(t)))
	must(t, s.volume().Revoke(bounded(t), 7))
	before, err := os.ReadFile(s.disk)
	must(t, err)

	must(t, source.Cont(bounded(t))) // by mistake
	source.awaitFailure()
	after, err := os.ReadFile(s.disk)
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("the source wrote after its token was revoked")
	}

	must(t, target.Cont(bounded(t)))
	target.line() // it may have been split
	if on := target.number(); on < next {
		t.Errorf("the guest continues with %d after it printed %d", on, next-1)
	} else {
		next = target.counts(on+1, 300)
	}
	must(t, target.Stop(bounded(t)))
	wantNumbers(t, s.disk, next-1)
}

// wantNumbers checks the disk of a scribe that has printed last.
func wantNumbers(t *testing.T, path string, last uint64) {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	for number := range last + 1 { // the scribe has not wrapped around yet
		at := 512 * (2048 + number%4096)
		if got := uint64(binary.LittleEndian.Uint32(content[at:])); got != number {
			t.Fatalf("number %d is %d on the disk: a write is lost", number, got)
		}
	}
}

// A guest whose server terminates is stopped. It continues without loss of data when the server is running again
// and its token is open.
func TestServer_GuestContinuesAfterRestart(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("runs real QEMU machines")
	}
	i := newInstallation(t)
	s := i.serve(newDisk(t, bootSector(t, "scribe")))
	s.open(7, first)
	g := s.guest(t, first, 7, false)
	must(t, g.Cont(bounded(t)))
	g.boots()
	next := g.counts(0, 100)
	s.stop()
	g.awaitFailure()
	must(t, g.Cont(bounded(t))) // too early
	g.awaitFailure()
	again := i.serveAt(listen(t, s.at.Address), s.disk)
	again.open(7, first)
	stop := g.keepsTrying()
	next = g.counts(next, 100)
	stop()
	must(t, g.Stop(bounded(t)))
	wantNumbers(t, s.disk, next-1)
}
