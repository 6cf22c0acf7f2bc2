package overlay

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/test/support/netns"
)

// kernel is a network namespace whose kernel acts as a guest, with a tap device as its network card.
type kernel struct {
	*netns.Namespace
	t    *testing.T
	tap  *os.File
	port network.Port
}

// newKernel returns a kernel with the addresses of a port.
func newKernel(t *testing.T, port network.Port) *kernel {
	t.Helper()
	k := &kernel{Namespace: netns.New(t), t: t, port: port}
	k.tap = k.OpenTap("guest0", port.MAC)
	k.AddAddress("guest0", netip.PrefixFrom(port.IPv4, 16))
	k.AddAddress("guest0", netip.PrefixFrom(port.IPv6, 64))
	return k
}

// plug connects the guest to an endpoint, and disconnects it from an earlier one, like the migration of a VM.
func (k *kernel) plug(e *Endpoint, sends chan<- func([]byte)) {
	k.t.Helper()
	send, err := e.Attach(k.t.Context(), k.port, func(framed []byte) error {
		for len(framed) > 0 {
			size := 4 + binary.BigEndian.Uint32(framed)
			if _, err := k.tap.Write(framed[4:size]); err != nil {
				return err
			}
			framed = framed[size:]
		}
		return nil
	})
	if err != nil {
		k.t.Fatal(err)
	}
	sends <- send
}

// forward sends the guest's frames with the function that was last received from the channel.
func (k *kernel) forward(sends <-chan func([]byte)) {
	send := <-sends
	buffer := make([]byte, 1<<16)
	for {
		size, err := k.tap.Read(buffer)
		if err != nil {
			return
		}
		select {
		case send = <-sends:
		default:
		}
		send(append([]byte(nil), buffer[:size]...))
	}
}

// TestEndpoint_ConnectionSurvivesMove checks that a TCP connection between two kernels stays open while the VM of one of
// them moves to another hypervisor, and that both find the MTU.
func TestEndpoint_ConnectionSurvivesMove(t *testing.T) {
	for name, size := range map[string]int{"with a small MTU": network.MinMTU, "with the MTU of the link": MaxMTU} {
		t.Run(name, func(t *testing.T) {
			for version, address := range map[string]func(network.Port) netip.Addr{
				"IPv4": func(p network.Port) netip.Addr { return p.IPv4 }, "IPv6": func(p network.Port) netip.Addr { return p.IPv6 },
			} {
				t.Run(version, func(t *testing.T) { moveConnection(t, size, address) })
			}
		})
	}
}

func moveConnection(t *testing.T, mtu int, address func(network.Port) netip.Addr) {
	client, server := newKernel(t, portOf(10)), newKernel(t, portOf(11))
	from, source, target := endpoint(t, mtu), endpoint(t, mtu), endpoint(t, mtu)
	at := func(e *Endpoint, k *kernel) Member { return (&host{Endpoint: e, port: k.port}).member() }
	fromClient, fromServer := make(chan func([]byte), 1), make(chan func([]byte), 1)
	client.plug(from, fromClient)
	server.plug(source, fromServer)
	go client.forward(fromClient)
	go server.forward(fromServer)
	from.Apply(Update{Present: []Member{at(source, server)}})
	source.Apply(Update{Present: []Member{at(from, client)}})
	target.Apply(Update{Present: []Member{at(from, client)}})

	var listener net.Listener
	var conn net.Conn
	server.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(address(server.port), 7).String())
		return err
	})
	defer listener.Close()
	go func() {
		accepted, err := listener.Accept()
		if err == nil {
			_, _ = io.Copy(accepted, accepted)
			accepted.Close()
		}
	}()
	client.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), 20*time.Second)
		return err
	})
	defer conn.Close()
	echo := func(size int) {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(i >> 8)
		}
		go func() { _, _ = conn.Write(sent) }()
		got := make([]byte, size)
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Fatalf("%v; client %v, source %v, target %v", err, from.Refused(), source.Refused(), target.Refused())
		}
		if string(got) != string(sent) {
			t.Error("other bytes came back")
		}
	}
	echo(64 << 10)
	begin := time.Now()
	server.plug(target, fromServer)
	source.Apply(Update{Absent: []string{client.port.VM}})
	from.Apply(Update{Present: []Member{at(target, server)}})
	echo(10)
	t.Logf("the first bytes came back after %s", time.Since(begin))
	echo(64 << 10)
}
