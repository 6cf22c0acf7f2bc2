package qemu

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// sharing returns a machine with shared disks.
func sharing(t *testing.T) Config {
	t.Helper()
	config := pairMachine(t, bootSector("scribes"))
	config.Sockets, config.Disks.Root.Direct = t.TempDir(), true
	config.Disks.Data[0].Direct = true
	return config
}

// passOn sends a machine to another one with the same disks. The other one is not continued.
func passOn(t *testing.T, from *Process, config Config) *Process {
	t.Helper()
	config.Sockets, config.Incoming = t.TempDir(), true
	to := startWith(t, bootAll(t), config)
	must(t, to.Receive(bounded(t), nil))
	listener, err := from.Listen(MemorySocket)
	must(t, err)
	go func() {
		defer listener.Close()
		sent, err := listener.Accept()
		if err != nil {
			return
		}
		got, err := to.Dial(context.WithoutCancel(t.Context()), MemorySocket)
		if err == nil {
			_, _ = io.Copy(got, sent)
			_ = got.Close()
		}
		_ = sent.Close()
	}()
	must(t, from.Send(bounded(t), Destination{}, func(Progress) {}))
	must(t, from.Finish(bounded(t), Destination{}))
	must(t, to.Received(bounded(t)))
	return to
}

// Only one of two machines with the same disks holds them at a time: the source until it has sent everything, and
// then the machine that is continued first.
func TestSharedDisks_AreHeldByOneMachine(t *testing.T) {
	tier.All(t)
	for name, toTarget := range map[string]bool{"on": true, "back": false} {
		t.Run(name, func(t *testing.T) {
			config := sharing(t)
			source := startWith(t, bootAll(t), config)
			here := attach(t, source)
			must(t, source.Cont(bounded(t)))
			here.until(scribeBanner)
			_, last := here.numbers(200)
			target := passOn(t, source, config)
			first, second, console := source, target, here
			if toTarget {
				first, second, console = target, source, attach(t, target)
			}
			must(t, first.Cont(bounded(t)))
			if err := second.Cont(bounded(t)); !errors.Is(err, ErrDiskLocked) {
				t.Errorf("error = %v, want ErrDiskLocked", err)
			}
			must(t, second.Kill(bounded(t)))
			if toTarget {
				last = lastNumber(t, here, last)
				console.rest = append(here.rest, console.rest...)
			}
			if number, _ := console.numbers(1); number != last+1 {
				t.Errorf("the guest continues with %d after %d", number, last)
			}
			_, last = console.numbers(200)
			must(t, first.Kill(bounded(t)))
			last = lastNumber(t, console, last)
			wantNumbers(t, config.Disks.Root.Path, last)
			wantNumbers(t, config.Disks.Data[0].Path, last)
		})
	}
}

// A stopped guest moves several times, grows, and finally continues.
func TestSharedDisks_StoppedGuestMoves(t *testing.T) {
	tier.All(t)
	config := sharing(t)
	p := startWith(t, bootAll(t), config)
	console := attach(t, p)
	must(t, p.Cont(bounded(t)))
	console.until(scribeBanner)
	console.numbers(100)
	must(t, p.Stop(bounded(t)))
	for range 2 {
		next := passOn(t, p, config)
		must(t, p.Kill(bounded(t)))
		must(t, next.Activate(bounded(t)))
		must(t, next.Activate(bounded(t))) // has no effect
		if state := runState(t, next); state != string(Paused) {
			t.Errorf("state = %s", state)
		}
		p = next
	}
	must(t, p.Grow(bounded(t), "logs", dataSize+1<<20))
	if info, err := os.Stat(config.Disks.Data[0].Path); err != nil || info.Size() != dataSize+1<<20 {
		t.Errorf("%v, %v", info, err)
	}
	console = attach(t, p)
	must(t, p.Cont(bounded(t)))
	console.until("\n")
	_, last := console.numbers(100)
	must(t, p.Kill(bounded(t)))
	wantNumbers(t, config.Disks.Root.Path, lastNumber(t, console, last))
}

// A stopped guest whose migration is canceled after everything was sent has its disks again, and a disk can be
// enlarged. QEMU sends the guest again after it has been continued.
func TestSharedDisks_StoppedGuestStays(t *testing.T) {
	tier.All(t)
	config := sharing(t)
	p := startWith(t, bootAll(t), config)
	console := attach(t, p)
	must(t, p.Cont(bounded(t)))
	console.until(scribeBanner)
	must(t, p.Stop(bounded(t)))
	must(t, passOn(t, p, config).Kill(bounded(t)))
	must(t, p.Abandon(bounded(t)))
	must(t, p.Grow(bounded(t), "logs", dataSize+1<<20))
	must(t, p.Cont(bounded(t)))
	console.numbers(100)
	must(t, p.Cont(bounded(t)))
	console.numbers(100)
	next := passOn(t, p, config)
	must(t, next.Cont(bounded(t)))
	console = attach(t, next)
	console.until("\n") // the rest of a line
	console.numbers(100)
}
