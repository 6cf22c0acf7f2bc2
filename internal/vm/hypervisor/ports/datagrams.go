package ports

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/specialaddress"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

const (
	// maxFlows is the maximum number of flows of datagrams of all ports. They do not count as connections, because anyone
	// can send datagrams from addresses of others.
	maxFlows = 1024
	// idleTime is how long a flow exists after the last datagram of its client. Those of the guest do not count, so that
	// the guest cannot keep it. This is the minimum of RFC 4787.
	idleTime = 2 * time.Minute
	// datagramSize is the size of a buffer for any datagram, in bytes.
	datagramSize = math.MaxUint16
)

// socket sends and receives the datagrams of clients. It is implemented by *net.UDPConn.
type socket interface {
	ReadFromUDPAddrPort(into []byte) (n int, client netip.AddrPort, err error)
	WriteToUDPAddrPort(datagram []byte, client netip.AddrPort) (int, error)
	Close() error
}

// datagramPort forwards the datagrams of a port, with a flow for each client.
type datagramPort struct {
	server *Server
	socket socket
	port   uint16

	mu    sync.Mutex
	flows map[netip.AddrPort]*flow
}

// flow forwards the datagrams of one client. It exists until the client is silent for idleTime, or there are too many.
type flow struct {
	port   *datagramPort
	client netip.AddrPort
	guest  dialer.Flow
	// The following fields are guarded by datagramPort.mu. renew and leave are those of Server.flows.
	idle         *time.Timer
	renew, leave func()
}

// listenUDP serves until Close is called.
func (s *Server) listenUDP(address string, port uint16) error {
	conn, err := net.ListenPacket("udp", net.JoinHostPort(address, strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("listening for datagrams to the guest: %w", err)
	}
	s.serveUDP(conn.(*net.UDPConn), port)
	return nil
}

func (s *Server) serveUDP(datagrams socket, port uint16) {
	p := &datagramPort{server: s, socket: datagrams, port: port, flows: map[netip.AddrPort]*flow{}}
	s.datagrams = append(s.datagrams, p)
	s.running.Go(p.serve)
}

// serve forwards the datagrams of clients until the server is closed.
func (p *datagramPort) serve() {
	buffer := make([]byte, datagramSize)
	for {
		n, client, err := p.socket.ReadFromUDPAddrPort(buffer)
		switch {
		case p.server.ctx.Err() != nil:
			return
		case err != nil:
			p.server.log.Warn("cannot receive datagrams to the guest", "port", p.port, "error", err)
			if !sleep(p.server.ctx, retryAfter) {
				return
			}
		default:
			p.forward(netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), buffer[:n])
		}
	}
}

// forward sends a datagram of a client to the guest.
func (p *datagramPort) forward(client netip.AddrPort, datagram []byte) {
	f := p.renewed(client)
	if f == nil {
		if f = p.open(client); f == nil {
			return
		}
	}
	f.guest.Send(datagram)
}

// renewed returns the flow of a client, whose idle time begins again. It returns nil if there is none.
func (p *datagramPort) renewed(client netip.AddrPort) *flow {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flows[client]
	if f != nil {
		f.idle.Reset(idleTime)
		f.renew()
	}
	return f
}

// open opens a flow for a client. It returns nil if that is not possible.
func (p *datagramPort) open(client netip.AddrPort) *flow {
	if !permitted(client.Addr()) {
		return nil
	}
	guest, err := p.server.guest.DialGuestUDP(p.port, func(datagram []byte) {
		_, _ = p.socket.WriteToUDPAddrPort(datagram, client) // a datagram may be lost anywhere
	})
	if err != nil {
		p.server.log.Debug("cannot forward datagrams to the guest", "port", p.port, "error", err)
		return nil
	}
	f := &flow{port: p, client: client, guest: guest, renew: func() {}, leave: func() {}}
	p.mu.Lock()
	f.idle = time.AfterFunc(idleTime, f.close)
	p.flows[client] = f
	p.mu.Unlock()
	renew, leave := p.server.flows.AddFlow(connlimit.OriginOfIP(client.Addr()), f.displaced)
	p.mu.Lock()
	defer p.mu.Unlock()
	f.renew, f.leave = renew, leave
	return f
}

// permitted reports whether the guest may respond to a client. The source of a datagram may be spoofed, and guests must not
// reach special addresses. The kernel drops packets from outside with a loopback address.
func permitted(client netip.Addr) bool {
	return specialaddress.Kind(client) == "" || client.IsLoopback()
}

// displaced closes the flow in favor of another one.
func (f *flow) displaced() {
	s := f.port.server
	s.manyFlows.Do(func() {
		s.log.Warn("too many clients send datagrams to the guest; closing the flow that has been idle the longest of the client with the most", "client", f.client, "limit", maxFlows)
	})
	f.close()
}

// close closes the flow. It may be called repeatedly.
func (f *flow) close() {
	f.guest.Close()
	f.port.mu.Lock()
	defer f.port.mu.Unlock()
	f.idle.Stop()
	if f.port.flows[f.client] == f {
		delete(f.port.flows, f.client)
	}
	f.leave()
}

// close closes all flows. The socket must be closed.
func (p *datagramPort) close() {
	p.mu.Lock()
	open := slices.Collect(maps.Values(p.flows))
	p.mu.Unlock()
	for _, f := range open {
		f.close()
	}
}
