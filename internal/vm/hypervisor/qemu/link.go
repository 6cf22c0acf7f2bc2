package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/firewall"
	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

// link is the hypervisor's end of the guest's network interface.
type link struct {
	rules     firewall.Rules
	elsewhere firewall.Elsewhere
	leave     context.CancelFunc
}

// attach connects the guest to other guests and lets this process connect to the guest. Without a network it returns
// nil.
func (p *Process) attach(guest *UserNetwork, sockets *channels) *link {
	if guest == nil {
		return nil
	}
	log := guest.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, leave := context.WithCancel(context.Background())
	out := &frames{to: sockets.ours[toGuestFD-firstFD]}
	l := &link{rules: guest.rules(), leave: leave}
	direct, err := dialer.NewDirect(ctx, guest.link(out))
	if err != nil {
		log.Error("cannot set up connections to the guest", "error", err)
	} else {
		p.direct, l.elsewhere.Host = direct, direct.Receive
	}
	l.elsewhere.Guests = guest.join(ctx, p.name, out, log)
	return l
}

// filter runs the firewall of the guest's network. Without it, QEMU would pass all frames, so filter kills QEMU
// before it returns.
func (p *Process) filter(l *link, sockets *channels, done chan<- struct{}) {
	defer close(done)
	fromGuest, toNetwork, toGuest := sockets.ours[fromGuestFD-firstFD], sockets.ours[toNetworkFD-firstFD], sockets.ours[toGuestFD-firstFD]
	if l != nil {
		defer l.leave()
		err := firewall.Pass(l.rules, fromGuest, toNetwork, l.elsewhere)
		if errors.Is(err, io.EOF) { // QEMU closes its side when it exits
			select {
			case <-p.child.Ended():
			case <-time.After(endLimit):
			}
		}
		_ = p.child.Signal(syscall.SIGKILL) // fails only if QEMU has already exited
	}
	<-p.child.Ended()
	_ = fromGuest.Close()
	_ = toNetwork.Close()
	_ = toGuest.Close()
}

// frames sends frames to the guest, in QEMU's format: a length of four bytes, followed by the content.
type frames struct {
	mu sync.Mutex
	to io.Writer
}

// deliver sends a frame with its length.
func (f *frames) deliver(framed []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.to.Write(framed)
	return err
}

// send sends a frame without its length.
func (f *frames) send(frame []byte) error {
	const lengthSize = 4
	framed := binary.BigEndian.AppendUint32(make([]byte, 0, lengthSize+len(frame)), uint32(len(frame)))
	return f.deliver(append(framed, frame...))
}

// link describes the guest's link for connections and datagrams of this process to the guest. They come from the address of
// the name server, which each guest reaches through its gateway and with which it uses no other port than 53. They go to
// the guest's IPv4 address, unless only its IPv6 address is fixed.
func (n UserNetwork) link(out *frames) dialer.Link {
	guest, own := n.Guest4(), n.DNS4()
	if !n.Address4.IsValid() && n.Address6.IsValid() {
		guest, own = n.Address6, n.DNS6()
	}
	return dialer.Link{Guest: guest, MAC: n.MAC, Own: own, Send: out.send}
}

// join connects the guest to the overlay or the switch and returns the function that sends frames to other guests.
// Without both, it returns nil.
func (n UserNetwork) join(ctx context.Context, vm string, out *frames, log *slog.Logger) func(frame []byte) {
	if n.Switch == "" && n.Overlay == nil {
		return nil
	}
	port := network.Port{VM: vm, MAC: n.MAC, IPv4: n.Guest4(), IPv6: n.Address6, Networks: n.linkNetworks()}
	send, err := n.attach(ctx, port, out, log)
	if err != nil {
		log.Error("cannot connect the guest to other guests", "error", err)
		return nil
	}
	return send
}

func (n UserNetwork) attach(ctx context.Context, port network.Port, out *frames, log *slog.Logger) (send func(frame []byte), err error) {
	if n.Overlay != nil {
		return n.Overlay.Attach(ctx, port, out.deliver)
	}
	link, err := network.Join(ctx, n.Switch, port, out.deliver, log)
	if err != nil {
		return nil, err
	}
	return link.Send, nil
}

// ErrNoNetwork means that the guest has no network interface.
var ErrNoNetwork = errors.New("the guest has no network")

// Direct returns this process's connections to the guest. It returns nil if the guest has no network.
func (p *Process) Direct() *dialer.Direct { return p.direct }

// DialGuest connects to a TCP port of the guest. It uses the guest's own link, so it reaches no other address. It returns
// ErrNoNetwork, the context's cause if the guest does not respond in time, or an error if the guest refuses the
// connection.
func (p *Process) DialGuest(ctx context.Context, port uint16) (dialer.Conn, error) {
	if p.direct == nil {
		return nil, ErrNoNetwork
	}
	return p.direct.Dial(ctx, port)
}

// DialGuestUDP opens a flow of datagrams to a UDP port of the guest, like dialer.Direct.DialUDP. It uses the guest's own
// link, so it reaches no other address. It returns ErrNoNetwork if the guest has no network.
func (p *Process) DialGuestUDP(port uint16, receive func(datagram []byte)) (dialer.Flow, error) {
	if p.direct == nil {
		return nil, ErrNoNetwork
	}
	return p.direct.DialUDP(port, receive)
}
