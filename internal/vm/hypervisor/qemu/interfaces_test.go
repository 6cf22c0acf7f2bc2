package qemu

import (
	"bytes"
	"net"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// tap is the network of an interface. It contains the first frames that QEMU has sent.
type tap chan []byte

func newTap() tap { return make(tap, 16) }

var tapMAC = net.HardwareAddr{0x02, 0, 0, 0, 0xaa, 1}

func (t tap) connect(config *Config) {
	config.Interfaces = []Interface{{MAC: tapMAC, Pass: func(guest net.Conn) {
		frame := make([]byte, 1<<17)
		for {
			n, err := guest.Read(frame)
			if err != nil {
				return
			}
			select {
			case t <- bytes.Clone(frame[:n]):
			default:
			}
		}
	}}}
}

// wantAnnouncement waits for a frame and checks that it is a reverse ARP request of the guest, from which every bridge on the
// path learns the guest's location.
func (t tap) wantAnnouncement(test *testing.T) {
	test.Helper()
	const reverseARP = "\x80\x35"
	select {
	case frame := <-t:
		if !bytes.Equal(frame[6:12], tapMAC) || string(frame[12:14]) != reverseARP {
			test.Errorf("QEMU sent %x", frame)
		}
	case <-bounded(test).Done():
		test.Error("QEMU has not announced the guest")
	}
}

// TestCont_AnnouncesGuest checks that QEMU announces a guest to its networks when it starts to run.
func TestCont_AnnouncesGuest(t *testing.T) {
	config, network := machine(t, echo), newTap()
	network.connect(&config)
	p := start(t, config)
	if len(network) > 0 {
		t.Errorf("a stopped guest sent %x", <-network)
	}
	must(t, p.Cont(bounded(t)))
	network.wantAnnouncement(t)
}

// TestMigration_AnnouncesGuest checks that QEMU announces a guest to its networks after a migration, and that the target
// sends nothing before it runs the guest.
func TestMigration_AnnouncesGuest(t *testing.T) {
	tier.All(t)
	there, here := newTap(), newTap()
	l, console := newPairOf(t, func(t *testing.T, guest []byte) Config {
		config := pairMachine(t, guest)
		if guest == nil {
			there.connect(&config)
		} else {
			here.connect(&config)
		}
		return config
	})
	here.wantAnnouncement(t)
	console.numbers(10)
	must(t, l.send())
	if len(there) > 0 {
		t.Errorf("the target sent %x before it had the guest", <-there)
	}
	must(t, l.source.Finish(bounded(t), Destination{Exports: exports}))
	must(t, l.target.Received(bounded(t)))
	must(t, l.target.CloseExports(bounded(t)))
	must(t, l.target.Cont(bounded(t)))
	there.wantAnnouncement(t)
	must(t, l.source.Kill(bounded(t)))
}
