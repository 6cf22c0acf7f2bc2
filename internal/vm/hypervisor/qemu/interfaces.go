package qemu

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// guestInterfaces are the connections between QEMU and the networks of Config.Interfaces.
type guestInterfaces struct {
	ours    []net.Conn
	theirs  []*os.File
	passing sync.WaitGroup
}

// openInterfaces opens all connections or none.
func openInterfaces(interfaces []Interface) (*guestInterfaces, error) {
	g := &guestInterfaces{}
	for range interfaces {
		ours, theirs, err := socketPair(unix.SOCK_DGRAM)
		if err != nil {
			g.close()
			return nil, fmt.Errorf("opening a network interface for QEMU: %w", err)
		}
		g.ours, g.theirs = append(g.ours, ours), append(g.theirs, theirs)
	}
	return g, nil
}

// pass passes frames until close is called.
func (g *guestInterfaces) pass(interfaces []Interface) {
	g.closeTheirs()
	for i, network := range interfaces {
		g.passing.Go(func() { network.Pass(g.ours[i]) })
	}
}

func (g *guestInterfaces) closeTheirs() {
	for _, file := range g.theirs {
		_ = file.Close()
	}
}

// close closes all connections. Unlike streams, they remain open when QEMU exits.
func (g *guestInterfaces) close() {
	g.closeTheirs()
	for _, conn := range g.ours {
		_ = conn.Close()
	}
	g.passing.Wait()
}

// announce makes QEMU send frames from which bridges learn the location of the guest. By default, QEMU sends them as soon as
// it has received the state of a migrated guest, but at that time, the guest may still continue at the source. The parameters
// are QEMU's defaults, in milliseconds.
func (p *Process) announce(ctx context.Context) error {
	return p.monitor.Execute(ctx, "announce-self", map[string]int{"initial": 50, "max": 550, "rounds": 5, "step": 100}, nil)
}
