// Package dialer connects this process to guests.
//
// It uses gVisor's TCP and UDP, so it needs neither privileges nor a network interface of the host. Nothing listens on its
// addresses.
//
// A [Dialer] is a port of the guests' switch with its own address. It reaches guests even after they have moved. A
// [Direct] is at the other end of one guest's link, and reaches only this guest.
package dialer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/millwright-dev/millwright/internal/vm/network"
)

const (
	// card is the ID of the only network interface.
	card = 1
	// maxPacket is the longest packet of the switch, in bytes.
	maxPacket = 1500
	// queued is the maximum number of pending packets to guests. Further packets are dropped, as TCP expects.
	queued = 512
	// lengthSize is the size of the length prefix of a delivered frame.
	lengthSize = 4
)

// Dialer connects to guests. Create it with New.
type Dialer struct {
	stack *stack.Stack
	local tcpip.FullAddress
	guest netip.Prefix
}

// New joins the switch at a socket until the context is canceled. The address must belong to the guests' network
// and must not be the address of a VM.
func New(ctx context.Context, socket string, address netip.Addr, guests netip.Prefix, log *slog.Logger) (*Dialer, error) {
	port := network.Port{VM: "host", MAC: net.HardwareAddr{0x02, 0, 0, 0, 0, 0x02}, IPv4: address}
	outgoing := channel.New(queued, maxPacket, "")
	own, err := newStack(outgoing, address, tcp.NewProtocol)
	if err != nil {
		return nil, err
	}
	d := &Dialer{stack: own, local: fullAddress(netip.AddrPortFrom(address, 0)), guest: guests}
	link, err := network.Join(ctx, socket, port, func(framed []byte) error {
		receive(outgoing, framed[lengthSize:])
		return nil
	}, log)
	if err != nil {
		return nil, err
	}
	go func() {
		defer d.stack.Destroy()
		for packet := outgoing.ReadContext(ctx); packet != nil; packet = outgoing.ReadContext(ctx) {
			link.Send(frameOf(port.MAC, nil, packet)) // the switch ignores the receiver
			packet.DecRef()
		}
	}()
	return d, nil
}

// newStack returns a network stack with one address, whose packets all go to the endpoint.
func newStack(endpoint stack.LinkEndpoint, address netip.Addr, transports ...stack.TransportProtocolFactory) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: transports,
	})
	if err := s.CreateNIC(card, endpoint); err != nil {
		return nil, fmt.Errorf("creating the network interface: %s", err)
	}
	own := tcpip.ProtocolAddress{Protocol: protocolOf(address), AddressWithPrefix: tcpip.AddrFromSlice(address.AsSlice()).WithPrefix()}
	if err := s.AddProtocolAddress(card, own, stack.AddressProperties{}); err != nil {
		return nil, fmt.Errorf("setting the address: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: card}, {Destination: header.IPv6EmptySubnet, NIC: card}})
	return s, nil
}

func protocolOf(address netip.Addr) tcpip.NetworkProtocolNumber {
	if address.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

func fullAddress(address netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: card, Addr: tcpip.AddrFromSlice(address.Addr().AsSlice()), Port: address.Port()}
}

// receive passes the packet of a frame to the network stack.
func receive(endpoint *channel.Endpoint, frame []byte) {
	if len(frame) < header.EthernetMinimumSize {
		return
	}
	protocol := header.Ethernet(frame).Type()
	if protocol != header.IPv4ProtocolNumber && protocol != header.IPv6ProtocolNumber {
		return
	}
	packet := stack.NewPacketBuffer(stack.PacketBufferOptions{
		Payload: buffer.MakeWithData(frame[header.EthernetMinimumSize:]),
	})
	defer packet.DecRef()
	endpoint.InjectInbound(protocol, packet)
}

// frameOf returns a frame with the packet.
func frameOf(from, to net.HardwareAddr, packet *stack.PacketBuffer) []byte {
	frame := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+packet.Size())
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(from), DstAddr: tcpip.LinkAddress(to), Type: packet.NetworkProtocolNumber,
	})
	for _, part := range packet.AsSlices() {
		frame = append(frame, part...)
	}
	return frame
}

// Reaches reports whether an address belongs to the guests' network.
func (d *Dialer) Reaches(address netip.Addr) bool { return d.guest.Contains(address) }

// Dial connects to a TCP port of a guest.
func (d *Dialer) Dial(ctx context.Context, guest netip.AddrPort) (net.Conn, error) {
	return dial(ctx, d.stack, d.local, guest)
}

func dial(ctx context.Context, from *stack.Stack, local tcpip.FullAddress, to netip.AddrPort) (*gonet.TCPConn, error) {
	conn, err := gonet.DialTCPWithBind(ctx, from, local, fullAddress(to), protocolOf(to.Addr()))
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", to, err)
	}
	return conn, nil
}
