package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.zx2c4.com/wireguard/conn"
)

// bind is the network's side of WireGuard: a UDP socket with the address of this hypervisor. It implements conn.Bind.
type bind struct {
	endpoint *Endpoint

	mu      sync.Mutex
	socket  *net.UDPConn
	packets batchConn
}

// socketBuffer is the size of the socket's buffers in bytes, if the host permits it, as in WireGuard's own socket.
const socketBuffer = 7 << 20

// batchConn is an ipv4.PacketConn or an ipv6.PacketConn.
type batchConn interface {
	ReadBatch(messages []ipv4.Message, flags int) (int, error)
	WriteBatch(messages []ipv4.Message, flags int) (int, error)
}

// Open opens the socket. It ignores the port, because the address is that of the endpoint.
func (b *bind) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.socket != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	family, listen := "udp6", b.endpoint.config.Listen
	if listen.Addr().Unmap().Is4() {
		family = "udp4"
	}
	socket, err := net.ListenUDP(family, net.UDPAddrFromAddrPort(listen))
	if err != nil {
		return nil, 0, fmt.Errorf("opening the UDP socket: %w", err)
	}
	// The kernel limits these sizes, and does not return an error.
	_ = socket.SetReadBuffer(socketBuffer)
	_ = socket.SetWriteBuffer(socketBuffer)
	b.socket, b.packets = socket, ipv6.NewPacketConn(socket)
	if family == "udp4" {
		b.packets = ipv4.NewPacketConn(socket)
	}
	received := make([]ipv4.Message, batch)
	for i := range received {
		received[i].Buffers = make([][]byte, 1)
	}
	packets := b.packets
	return []conn.ReceiveFunc{func(buffers [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		return b.receive(packets, received, buffers, sizes, from)
	}}, addressOf(socket.LocalAddr()).Port(), nil
}

// receive reads messages. Those that WireGuard must not handle get the size 0, which it ignores.
func (b *bind) receive(packets batchConn, received []ipv4.Message, buffers [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
	tunnel := b.endpoint.tunnel
	tunnel.receiving.wait(tunnel.closed)
	received = received[:min(len(received), len(buffers))]
	for i := range received {
		received[i].Buffers[0] = buffers[i]
	}
	n, err := packets.ReadBatch(received, 0)
	if err != nil {
		return 0, err
	}
	for i, message := range received[:n] {
		source := addressOf(message.Addr)
		content := buffers[i][:message.N]
		sizes[i], from[i] = message.N, remote{source}
		switch {
		case !b.endpoint.accept(source, content):
			sizes[i] = 0
		case hasPacket(content):
			tunnel.receiving.take(1)
		}
	}
	return n, nil
}

// addressOf converts an address of a UDP socket.
func addressOf(address net.Addr) netip.AddrPort {
	udp, ok := address.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	converted := udp.AddrPort()
	return netip.AddrPortFrom(converted.Addr().Unmap(), converted.Port())
}

// local returns the address of the socket.
func (b *bind) local() netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	return addressOf(b.socket.LocalAddr())
}

// Send sends messages to one hypervisor.
func (b *bind) Send(buffers [][]byte, to conn.Endpoint) error {
	b.mu.Lock()
	packets := b.packets
	b.mu.Unlock()
	if packets == nil {
		return net.ErrClosed
	}
	target, ok := to.(remote)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	address := net.UDPAddrFromAddrPort(target.AddrPort)
	messages := make([]ipv4.Message, len(buffers))
	for i, buffer := range buffers {
		b.sent(buffer, target.AddrPort)
		messages[i] = ipv4.Message{Buffers: [][]byte{buffer}, Addr: address}
	}
	for len(messages) > 0 {
		n, err := packets.WriteBatch(messages, 0)
		if err != nil {
			return fmt.Errorf("sending to %s: %w", target, err)
		}
		messages = messages[n:]
	}
	return nil
}

// sent records what WireGuard sends.
func (b *bind) sent(message []byte, to netip.AddrPort) {
	switch {
	case hasPacket(message):
		b.endpoint.tunnel.sending.give(1)
	case isInitiation(message):
		b.endpoint.mu.RLock()
		m := b.endpoint.table.byEndpoint[to]
		b.endpoint.mu.RUnlock()
		if m != nil {
			m.attempts.Add(1)
		}
	}
}

// Close closes the socket. The receiving function then returns net.ErrClosed.
func (b *bind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.socket == nil {
		return nil
	}
	socket := b.socket
	b.socket, b.packets = nil, nil
	return socket.Close()
}

// SetMark does nothing: the socket has no mark.
func (b *bind) SetMark(uint32) error { return nil }

// BatchSize implements conn.Bind.
func (b *bind) BatchSize() int { return batch }

// ParseEndpoint implements conn.Bind.
func (b *bind) ParseEndpoint(text string) (conn.Endpoint, error) {
	address, err := netip.ParseAddrPort(text)
	return remote{address}, err
}

// remote is the address of another hypervisor. It implements conn.Endpoint. The kernel chooses the source address, which
// is that of the socket.
type remote struct{ netip.AddrPort }

func (r remote) ClearSrc()           {}
func (r remote) SrcToString() string { return "" }
func (r remote) SrcIP() netip.Addr   { return netip.Addr{} }
func (r remote) DstToString() string { return r.String() }
func (r remote) DstIP() netip.Addr   { return r.Addr() }

// DstToBytes implements conn.Endpoint.
func (r remote) DstToBytes() []byte {
	bytes, _ := r.MarshalBinary() // never fails
	return bytes
}
