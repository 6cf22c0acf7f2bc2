package qemu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// The sectors to which the guest "scribe" writes its numbers.
const (
	scribeBanner  = "boot\n"
	scribeStart   = 2048
	scribeSectors = 4096
	sectorBytes   = 512
	scribeDisk    = (scribeStart + scribeSectors) * sectorBytes
)

// dataSize is the size of the pair's data disk. It differs from the size of the root disk.
const dataSize = scribeDisk + 3<<20

// exports are the disks of a pair.
var exports = []Export{{Name: "disk", Bytes: scribeDisk}, {Serial: "logs", Name: "more", Bytes: dataSize}}

// pair is a machine, and another one that waits for its state. The guest writes to both disks.
type pair struct {
	t              *testing.T
	source, target *Process
	disks          []string // of the target
	cut            func()   // cuts the connections between their sockets
	sent           atomic.Int64
}

// newPair boots scribe and connects the sockets of the source to those of the target.
func newPair(t *testing.T) (*pair, *reader) {
	t.Helper()
	return newPairOf(t, pairMachine)
}

// newPairOf is like newPair with other machines. The guest is nil for the target.
func newPairOf(t *testing.T, machine func(t *testing.T, guest []byte) Config) (*pair, *reader) {
	t.Helper()
	return newPairBetween(t, bootAll(t), bootAll(t), machine)
}

// newPairBetween is like newPairOf with other programs.
func newPairBetween(t *testing.T, source, target string, machine func(t *testing.T, guest []byte) Config) (*pair, *reader) {
	t.Helper()
	config := machine(t, bootSector("scribes"))
	config.Sockets = t.TempDir()
	l := &pair{t: t, source: startWith(t, source, config)}
	console := attach(t, l.source)
	must(t, l.source.Cont(bounded(t)))
	console.until(scribeBanner)

	config = machine(t, nil)
	l.disks = []string{config.Disks.Root.Path, config.Disks.Data[0].Path}
	config.Sockets, config.Incoming = t.TempDir(), true
	l.target = startWith(t, target, config)
	must(t, l.target.Receive(bounded(t), exports))
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	l.cut = cancel
	for _, socket := range []Socket{MemorySocket, DiskSocket} {
		listener, err := l.source.Listen(socket)
		must(t, err)
		context.AfterFunc(ctx, func() { _ = listener.Close() })
		go l.join(ctx, listener, socket)
	}
	return l, console
}

// bootAll returns a QEMU with a firmware that knows all disks.
func bootAll(t *testing.T) string {
	t.Helper()
	requireQEMU(t)
	program, err := filepath.Abs(filepath.Join("..", "testdata", "boot-all"))
	must(t, err)
	return program
}

// pairMachine returns a machine with a root disk and a data disk.
func pairMachine(t *testing.T, guest []byte) Config {
	t.Helper()
	config := machine(t, guest)
	must(t, os.Truncate(config.Disks.Root.Path, scribeDisk))
	path := filepath.Join(t.TempDir(), "data.raw")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, dataSize))
	config.Disks.Data = []DataDisk{{Disk: Disk{Path: path}, Serial: "logs"}}
	return config
}

func (l *pair) join(ctx context.Context, listener net.Listener, socket Socket) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		to, err := l.target.Dial(ctx, socket)
		if err != nil {
			_ = from.Close()
			return
		}
		context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
		go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
		go func() { n, _ := io.Copy(to, from); l.sent.Add(n); _ = to.Close() }()
	}
}

func (l *pair) send() error {
	return l.source.Send(bounded(l.t), Destination{Exports: exports}, func(Progress) {})
}

// sendUntilCanceled sends the memory slowly, and cancels that before it is complete. The guest, which is emulated, is
// stopped by then.
func (l *pair) sendUntilCanceled() error {
	ctx, cancel := context.WithCancel(bounded(l.t))
	defer cancel()
	err := l.source.Send(ctx, Destination{Bandwidth: 64 << 10}, func(Progress) {
		info, err := l.source.queryMigration(ctx)
		if err == nil && info.RAM.Transferred > 0 {
			if state, err := l.source.State(ctx); err != nil || state.Status != Leaving {
				l.t.Errorf("during the copy of the memory, the source is %s, %v", state.Status, err)
			}
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		return fmt.Errorf("the copy ended with %w", err)
	}
	return nil
}

// wantNumbers checks the disk of a guest that has terminated after it printed last.
func wantNumbers(t *testing.T, disk string, last uint64) {
	t.Helper()
	content, err := os.ReadFile(disk)
	must(t, err)
	if len(bytes.Trim(content[sectorBytes:scribeStart*sectorBytes], "\x00")) > 0 {
		t.Error("found data where nothing was written")
	}
	for back := range min(last+1, scribeSectors-1) { // it may have started to write the next one
		number := last - back
		sector := scribeStart + number%scribeSectors
		got := uint64(binary.LittleEndian.Uint32(content[sector*sectorBytes:]))
		if got != number {
			t.Fatalf("sector %d has %d, want %d: a write is lost", sector, got, number)
		}
	}
}

func TestMigration_MovesGuest(t *testing.T) {
	tier.All(t)
	for name, machine := range map[string]func(*testing.T, []byte) Config{"from file to file": pairMachine, "from device to device": devicePair} {
		t.Run(name, func(t *testing.T) { testMachineMoves(t, machine) })
	}
}

func testMachineMoves(t *testing.T, machine func(*testing.T, []byte) Config) {
	l, console := newPairOf(t, machine)
	_, before := console.numbers(300)
	begun := time.Now()
	must(t, l.send())
	stopped := time.Now()
	if state := runState(t, l.source); state != string(Leaving) {
		t.Errorf("the source is %s before the rest was sent", state)
	}
	must(t, l.source.Finish(bounded(t), Destination{Exports: exports}))
	must(t, l.target.Received(bounded(t)))
	if got := [2]string{runState(t, l.source), runState(t, l.target)}; got != [2]string{string(Left), string(Paused)} {
		t.Errorf("states = %v: a guest runs without being continued", got)
	}
	must(t, l.target.CloseExports(bounded(t)))
	arrived := attach(t, l.target)
	must(t, l.target.Cont(bounded(t)))
	t.Logf("moved in %v; the guest was stopped for %v", time.Since(begun), time.Since(stopped))
	must(t, l.source.Kill(bounded(t)))
	last := lastNumber(t, console, before)
	arrived.rest = append(console.rest, arrived.rest...) // the last line may have been split
	first, _ := arrived.numbers(1)
	if first != last+1 {
		t.Errorf("the guest continues with %d after %d", first, last)
	}
	_, last = arrived.numbers(300)
	must(t, l.target.Kill(bounded(t)))
	last = lastNumber(t, arrived, last)
	for _, disk := range l.disks {
		wantNumbers(t, disk, last)
	}
}

// silent returns a QEMU whose firmware prints nothing, as in versions without Config.firmwareOutput.
func silent(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "silent")
	script := "#!/usr/bin/env bash\nexec '" + bootAll(t) + "' \"${@/,graphics=off/}\"\n"
	must(t, os.WriteFile(program, []byte(script), 0o700))
	return program
}

// A guest moves between versions that do and do not show the output of the firmware, and boots there after a reset.
func TestMigration_FirmwareOutputMayDiffer(t *testing.T) {
	tier.All(t)
	for name, test := range map[string]struct {
		source, target func(*testing.T) string
		shown          bool // by the target
	}{
		"from a version without output": {silent, bootAll, true},
		"to a version without output":   {bootAll, silent, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, console := newPairBetween(t, test.source(t), test.target(t), pairMachine)
			console.numbers(10)
			must(t, l.send())
			must(t, l.source.Finish(bounded(t), Destination{Exports: exports}))
			must(t, l.target.Received(bounded(t)))
			must(t, l.target.CloseExports(bounded(t)))
			arrived := attach(t, l.target)
			must(t, l.target.Cont(bounded(t)))
			must(t, l.source.Kill(bounded(t)))
			arrived.until("\n") // the first line may have been split
			arrived.numbers(10)
			must(t, l.target.Reset(bounded(t)))
			if before := arrived.until(scribeBanner); bytes.Contains(before, []byte("SeaBIOS")) != test.shown {
				t.Errorf("after the reset, the console has %q; want output of the firmware: %t", before, test.shown)
			}
		})
	}
}

// lastNumber reads the remaining output of a terminated machine, except for an incomplete last line. before is the
// last number that was read.
func lastNumber(t *testing.T, console *reader, before uint64) uint64 {
	t.Helper()
	for {
		output, err := console.Next(bounded(t))
		if err != nil {
			break
		}
		console.rest = append(console.rest, output...)
	}
	const line = 9
	whole := len(console.rest) / line * line
	lines := console.rest[:whole]
	console.rest = console.rest[whole:]
	if whole == 0 {
		return before
	}
	return parseNumber(t, string(lines[whole-line:whole-1]))
}

// Whenever a migration is canceled before it has completed, the guest continues, and the next migration succeeds.
func TestMigration_IsAbandoned(t *testing.T) {
	tier.All(t)
	for name, test := range map[string]struct {
		until func(*pair) error
		state Status // after the migration was canceled
	}{
		"before it starts":          {func(*pair) error { return nil }, Running},
		"when the guest is stopped": {(*pair).send, Running},
		"when the target is killed": {func(l *pair) error {
			must(t, l.target.Kill(bounded(t)))
			if err := l.send(); err == nil {
				t.Error("sent a machine to a target that was killed")
			}
			return nil
		}, Running},
		"when the memory is copied": {(*pair).sendUntilCanceled, Running},
		"when the guest is then stopped for another reason": {func(l *pair) error {
			return errors.Join(l.sendUntilCanceled(), l.source.Stop(bounded(t)))
		}, Paused},
		"when everything was sent": {func(l *pair) error {
			return errors.Join(l.send(), l.source.Finish(bounded(t), Destination{Exports: exports}))
		}, Left},
	} {
		t.Run(name, func(t *testing.T) {
			l, console := newPair(t)
			console.numbers(100)
			must(t, test.until(l))
			l.cut()
			must(t, l.source.Abandon(bounded(t)))
			if state := runState(t, l.source); state != string(test.state) {
				t.Errorf("the source is %s, want %s", state, test.state)
			}
			must(t, l.source.Cont(bounded(t)))
			console.numbers(300) // no number is lost or repeated
			if copies, err := l.source.queryMirrors(bounded(t)); err != nil || len(copies) > 0 {
				t.Errorf("remaining jobs: %+v, %v", copies, err)
			}
			must(t, l.source.removeDestinations(bounded(t)))
			must(t, l.source.Kill(bounded(t)))
		})
	}
}

// A target that loses its source never runs the guest.
func TestMigration_TargetLosesSource(t *testing.T) {
	tier.All(t)
	l, _ := newPair(t)
	must(t, l.send())
	must(t, l.source.Kill(bounded(t)))
	if err := l.target.Received(bounded(t)); !errors.Is(err, qmp.ErrDisconnected) {
		t.Errorf("error = %v, want ErrDisconnected", err)
	}
	<-l.target.Done()
	if output, err := attach(t, l.target).Next(bounded(t)); !errors.Is(err, io.EOF) {
		t.Errorf("the guest printed %q, %v", output, err)
	}
}

func TestMigration_RequiresSockets(t *testing.T) {
	tier.All(t)
	p := start(t, machine(t, counter))
	if _, err := p.Listen(MemorySocket); err == nil {
		t.Error("Receive succeeded without sockets")
	}
	if _, err := p.Dial(bounded(t), MemorySocket); err == nil {
		t.Error("Dial succeeded without sockets")
	}
	config := machine(t, counter)
	config.Sockets = filepath.Join(t.TempDir(), "missing")
	if p, err := Start(bounded(t), requireQEMU(t), config); err == nil {
		_ = p.Kill(bounded(t))
		t.Error("started a machine without its directory")
	}
}
