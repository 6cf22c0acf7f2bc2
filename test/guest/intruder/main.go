// Command intruder is the only program of a guest whose root user attacks: it tries to reach
// the host in every way that the kernel's command line names, and prints what it got.
//
// The parameter try=HOW:ADDRESS:PORT may be repeated. HOW is
//
//	tcp    connect, and read what the other end says first
//	udp    send a datagram, also to a broadcast address
//	raw    send a datagram in a frame of its own making, past the routes of the kernel
//	serve  listen, and say hello to the first who comes
//	echo   send and receive over many connections at the same time
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
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/network"
)

// The guest's links, as in the test.
var links = [][2]netip.Addr{
	{netip.MustParseAddr("10.0.2.16"), netip.MustParseAddr("10.0.2.2")},
	{netip.MustParseAddr("fd77::16"), netip.MustParseAddr("fd77::2")},
}

// patience is how long to wait for an answer. Packets may be dropped without a word.
const patience = 4 * time.Second

func main() {
	card, err := setUp()
	if err != nil {
		fmt.Printf("intruder: %v\r\n", err)
	}
	commandLine, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		fmt.Printf("intruder: %v\r\n", err)
	}
	for _, parameter := range strings.Fields(string(commandLine)) {
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
	var problems []error
	for _, m := range [][2]string{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		problems = append(problems, unix.Mount(m[0], m[1], m[0], 0, ""))
	}
	modules, err := filepath.Glob("/modules/*.ko")
	problems = append(problems, err)
	for _, path := range modules {
		file, err := os.Open(path)
		if err == nil {
			err = unix.FinitModule(int(file.Fd()), "", 0)
		}
		problems = append(problems, err)
	}
	card, err := network.Card()
	if err != nil {
		return card, errors.Join(append(problems, err)...)
	}
	problems = append(problems, network.Up(card))
	for _, link := range links {
		problems = append(problems, network.Connect(card, link[0], link[1]))
	}
	return card, errors.Join(problems...)
}

func try(card net.Interface, what string) (string, error) {
	how, target, _ := strings.Cut(what, ":")
	address, err := netip.ParseAddrPort(target)
	if err != nil {
		return "", err
	}
	switch how {
	case "tcp":
		return connect(address)
	case "udp":
		return "sent", send(address)
	case "raw":
		return "sent", sendRaw(card, address)
	case "serve":
		return "served", serve(address)
	case "echo":
		return echo(address)
	}
	return "", errors.ErrUnsupported
}

func connect(address netip.AddrPort) (string, error) {
	conn, err := net.DialTimeout("tcp", address.String(), patience)
	if err != nil {
		return "refused", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	said, err := io.ReadAll(io.LimitReader(conn, 5))
	return "connected, got " + strconv.Quote(string(said)), err
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
	// Go allows broadcasts.
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(address))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	return err
}

// sendRaw sends an IPv4 datagram to any address, also one that the kernel would not route.
func sendRaw(card net.Interface, address netip.AddrPort) error {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	payload := []byte("hello")
	frame := bytes.Repeat([]byte{0xff}, 6)
	frame = append(frame, card.HardwareAddr...)
	frame = append(frame, 8, 0)
	header := []byte{0x45, 0, 0, byte(28 + len(payload)), 0, 1, 0, 0, 64, syscall.IPPROTO_UDP, 0, 0}
	header = append(header, links[0][0].AsSlice()...)
	header = append(header, address.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	frame = append(frame, header...)
	frame = binary.BigEndian.AppendUint16(frame, 4711)
	frame = binary.BigEndian.AppendUint16(frame, address.Port())
	frame = binary.BigEndian.AppendUint16(frame, uint16(8+len(payload)))
	frame = append(frame, 0, 0) // no checksum
	frame = append(frame, payload...)
	return unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: card.Index, Halen: 6})
}

func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	return ^uint16(sum + sum>>16)
}

// What echo sends over each of its connections.
const (
	connections = 20
	perConn     = 512 << 10
)

// echo sends on many connections, each of which has to give back the same.
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
