// Package dialer connects this process to guests.
//
// A [Dialer] is a port of the guests' switch with its own address. It uses gVisor's TCP over IPv4, so it needs
// neither privileges nor a network interface of the host, and it reaches guests even after they have moved.
// Nothing listens on its address.
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
	d := &Dialer{
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
		}),
		local: tcpip.FullAddress{NIC: card, Addr: tcpip.AddrFrom4(address.As4())},
		guest: guests,
	}
	if err := d.configure(outgoing); err != nil {
		return nil, err
	}
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
			link.Send(frameOf(port, packet))
			packet.DecRef()
		}
	}()
	return d, nil
}

func (d *Dialer) configure(endpoint stack.LinkEndpoint) error {
	if err := d.stack.CreateNIC(card, endpoint); err != nil {
		return fmt.Errorf("creating the network interface: %s", err)
	}
	own := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: d.local.Addr.WithPrefix()}
	if err := d.stack.AddProtocolAddress(card, own, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("setting the address: %s", err)
	}
	d.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: card}})
	return nil
}

// receive passes the packet of a frame to the network stack.
func receive(endpoint *channel.Endpoint, frame []byte) {
	if len(frame) < header.EthernetMinimumSize || header.Ethernet(frame).Type() != header.IPv4ProtocolNumber {
		return
	}
	packet := stack.NewPacketBuffer(stack.PacketBufferOptions{
		Payload: buffer.MakeWithData(frame[header.EthernetMinimumSize:]),
	})
	defer packet.DecRef()
	endpoint.InjectInbound(header.IPv4ProtocolNumber, packet)
}

// frameOf returns a frame with the packet for the switch, which checks only the sender.
func frameOf(port network.Port, packet *stack.PacketBuffer) []byte {
	frame := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+packet.Size())
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(port.MAC), Type: header.IPv4ProtocolNumber,
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
	to := tcpip.FullAddress{NIC: card, Addr: tcpip.AddrFrom4(guest.Addr().As4()), Port: guest.Port()}
	conn, err := gonet.DialTCPWithBind(ctx, d.stack, d.local, to, ipv4.ProtocolNumber)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", guest, err)
	}
	return conn, nil
}
