// Command intruder is the only program of a guest whose root user attacks: it tries to reach
// the host in every way that the kernel's command line names, and prints what it got. It also
// measures the way to another guest.
//
// The parameter try=HOW:ADDRESS:PORT may be repeated. HOW is
//
//	tcp    connect, and read what the other end says first
//	reach  the same for minutes, as the other end must answer
//	udp    send a datagram, also to a broadcast address
//	raw    send a datagram in a frame of its own making, past the routes of the kernel
//	frag   the same in two fragments, of which the first has the ports only
//	opts   the same with options in the header, which move the ports
//	vlan   the same in a frame with the tag of a VLAN
//	serve  listen, and say hello to the first who comes
//	echo   send and receive over many connections at the same time
//	spoof  connect from an address that is another guest's
//	greet  listen from now on, and say hello to all who come
//	mirror listen from now on, and send back what comes
//	return send back each datagram from now on
//	sink   listen from now on, and say goodbye at the end of what comes
//	stream send 32 MiB to a sink over one connection, and print the rate
//	turns  send single bytes to a mirror, each when the one before is back, and print the
//	       median of the times
//
// The parameter last=BYTE is the last byte of the guest's addresses; 22 by default.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/boot"
	"github.com/millwright-dev/millwright/guest/network"
)

// The guest's links, as in the test.
var links = [][2]netip.Addr{
	{netip.MustParseAddr("10.0.2.16"), netip.MustParseAddr("10.0.2.2")},
	{netip.MustParseAddr("fd77::16"), netip.MustParseAddr("fd77::2")},
}

// stolen contains addresses of another guest, or of none, in the order of the links.
var stolen = []netip.Addr{netip.MustParseAddr("10.0.2.99"), netip.MustParseAddr("fd77::99")}

const (
	// waitTimeout is how long to wait for a response that should not come. Packets may be dropped silently.
	waitTimeout = 4 * time.Second
	// reachTimeout is how long to wait for a response that must come. Guests are slow, and packets are
	// retransmitted after seconds.
	reachTimeout = 2 * time.Minute
)

func main() {
	card, err := setUp()
	if err != nil {
		fmt.Printf("intruder: %v\r\n", err)
	}
	commandLine, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		fmt.Printf("intruder: %v\r\n", err)
	}
	for parameter := range strings.FieldsSeq(string(commandLine)) {
		if what, ok := strings.CutPrefix(parameter, "try="); ok {
			result, err := try(card, what)
			fmt.Printf("tried %s: %s (%v)\r\n", what, result, err)
		}
	}
	fmt.Print("intruder: done\r\n")
	select {}
}

// setUp mounts, loads the modules of the ordinary guest and configures the network.
func setUp() (net.Interface, error) {
	problems := []error{boot.Mount(), boot.LoadModules()}
	card, err := network.Card()
	if err != nil {
		return card, errors.Join(append(problems, err)...)
	}
	problems = append(problems, network.Up(card))
	for _, link := range ownLinks() {
		problems = append(problems, network.Connect(card, link[0], link[1]))
	}
	return card, errors.Join(problems...)
}

// ownLinks returns the links with the last byte in the command line.
func ownLinks() [][2]netip.Addr {
	commandLine, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return links
	}
	own := links
	for parameter := range strings.FieldsSeq(string(commandLine)) {
		if text, ok := strings.CutPrefix(parameter, "last="); ok {
			last, err := strconv.ParseUint(text, 10, 8)
			if err != nil {
				return links
			}
			own = nil
			for _, link := range links {
				address := link[0].AsSlice()
				address[len(address)-1] = byte(last)
				changed, _ := netip.AddrFromSlice(address)
				own = append(own, [2]netip.Addr{changed, link[1]})
			}
		}
	}
	return own
}

// frames creates the frames of an attack with a datagram.
var frames = map[string]func(to netip.Addr, datagram []byte) [][]byte{
	"raw": whole, "frag": fragments, "opts": withOptions, "vlan": tagged,
}

// servers handle connections from now on.
var servers = map[string]func(net.Conn){
	"greet":  func(conn net.Conn) { _, _ = conn.Write([]byte("hello")) },
	"mirror": func(conn net.Conn) { _, _ = io.Copy(conn, conn) },
	"sink": func(conn net.Conn) {
		_, _ = io.Copy(io.Discard, conn)
		_, _ = conn.Write([]byte("bye"))
	},
}

func try(card net.Interface, what string) (string, error) {
	how, target, _ := strings.Cut(what, ":")
	address, err := netip.ParseAddrPort(target)
	if err != nil {
		return "", err
	}
	if made, ok := frames[how]; ok {
		return "sent", sendRaw(card, address, made)
	}
	if handle, ok := servers[how]; ok {
		return "listening", listen(address, handle)
	}
	switch how {
	case "tcp":
		return connect(nil, address, waitTimeout)
	case "reach":
		return connect(nil, address, reachTimeout)
	case "udp":
		return "sent", send(address)
	case "serve":
		return "served", serve(address)
	case "return":
		return "listening", returnDatagrams(address)
	case "echo":
		return echo(address)
	case "spoof":
		return spoof(card, address)
	case "stream":
		return stream(address)
	case "turns":
		return turns(address)
	}
	return "", errors.ErrUnsupported
}

// listen handles connections from now on.
func listen(address netip.AddrPort, handle func(net.Conn)) error {
	listener, err := net.Listen("tcp", address.String())
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return nil
}

// returnDatagrams sends back each datagram from now on.
func returnDatagrams(address netip.AddrPort) error {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
	if err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buffer[:n], from)
		}
	}()
	return nil
}

// spoof connects from another guest's address.
func spoof(card net.Interface, address netip.AddrPort) (string, error) {
	of := 0
	if address.Addr().Is6() {
		of = 1
	}
	if err := network.Connect(card, stolen[of], links[of][1]); err != nil {
		return "", err
	}
	return connect(&net.TCPAddr{IP: stolen[of].AsSlice()}, address, waitTimeout)
}

func connect(local net.Addr, address netip.AddrPort, within time.Duration) (string, error) {
	conn, err := (&net.Dialer{Timeout: within, LocalAddr: local}).Dial("tcp", address.String())
	if err != nil {
		return "refused", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	output, err := io.ReadAll(io.LimitReader(conn, 5))
	return "connected, got " + strconv.Quote(string(output)), err
}

func serve(address netip.AddrPort) error {
	listener, err := net.Listen("tcp", address.String())
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Print("serving\r\n")
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	return err
}

func send(address netip.AddrPort) error {
	// Go permits broadcasts.
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(address))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	return err
}

// sendRaw sends an IPv4 datagram to any address, including one that the kernel would not route, in the given
// frames.
func sendRaw(card net.Interface, address netip.AddrPort, frames func(to netip.Addr, datagram []byte) [][]byte) error {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	payload := []byte("hello")
	datagram := binary.BigEndian.AppendUint16(nil, 4711)
	datagram = binary.BigEndian.AppendUint16(datagram, address.Port())
	datagram = binary.BigEndian.AppendUint16(datagram, uint16(8+len(payload)))
	datagram = append(append(datagram, 0, 0), payload...) // no checksum
	addresses := append(bytes.Repeat([]byte{0xff}, 6), card.HardwareAddr...)
	for _, frame := range frames(address.Addr(), datagram) {
		if err := unix.Sendto(socket, append(bytes.Clone(addresses), frame...), 0, &unix.SockaddrLinklayer{Ifindex: card.Index, Halen: 6}); err != nil {
			return err
		}
	}
	return nil
}

// ipv4 returns the rest of a frame with a packet: the type, the header, and a part of a datagram.
func ipv4(to netip.Addr, fragment uint16, options, part []byte) []byte {
	length := 20 + len(options)
	header := []byte{0x40 | byte(length/4), 0, 0, byte(length + len(part)), 0, 1, byte(fragment >> 8), byte(fragment), 64, syscall.IPPROTO_UDP, 0, 0}
	header = append(header, links[0][0].AsSlice()...)
	header = append(header, to.AsSlice()...)
	header = append(header, options...)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return slices.Concat([]byte{8, 0}, header, part)
}

func whole(to netip.Addr, datagram []byte) [][]byte { return [][]byte{ipv4(to, 0, nil, datagram)} }

// Fragment offsets are in units of eight bytes, the length of the header with the ports.
func fragments(to netip.Addr, datagram []byte) [][]byte {
	const more = 0x2000
	return [][]byte{ipv4(to, more, nil, datagram[:8]), ipv4(to, 1, nil, datagram[8:])}
}

func withOptions(to netip.Addr, datagram []byte) [][]byte {
	const none = 1
	return [][]byte{ipv4(to, 0, bytes.Repeat([]byte{none}, 8), datagram)}
}

func tagged(to netip.Addr, datagram []byte) [][]byte {
	return [][]byte{append([]byte{0x81, 0, 0, 1}, ipv4(to, 0, nil, datagram)...)}
}

func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	return ^uint16(sum + sum>>16)
}

// The data that echo sends over each of its connections.
const (
	connections = 20
	perConn     = 512 << 10
)

// echo sends on many connections, each of which must return the same data.
func echo(address netip.AddrPort) (string, error) {
	content := make([]byte, perConn)
	for i := range content {
		content[i] = byte(i * i >> 7)
	}
	started := time.Now()
	results := make([]error, connections)
	var group sync.WaitGroup
	for i := range results {
		group.Go(func() { results[i] = echoOnce(address, content) })
	}
	group.Wait()
	took := time.Since(started)
	rate := connections * perConn / took.Seconds() / (1 << 20)
	return fmt.Sprintf("echoed %d times in %s, %.1f MiB/s", connections, took.Round(time.Millisecond), rate), errors.Join(results...)
}

func echoOnce(address netip.AddrPort, content []byte) error {
	conn, err := net.Dial("tcp", address.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(content)
		sent <- err
	}()
	back := make([]byte, len(content))
	if _, err := io.ReadFull(conn, back); err != nil {
		return err
	}
	if !bytes.Equal(content, back) {
		return errors.New("got back something else")
	}
	return <-sent
}
