// Command peer is the only program of a guest that communicates with other guests. At port 7, it sends back what it
// receives by TCP and UDP. At port 80, it serves HTTP:
//
//	/?nonce=TEXT             prints the name of the VM, the boot ID of its kernel, that of the earlier boot from the same
//	                         disk, or "none", and the text
//	/exchange?with=ADDRESS   exchanges data with port 7 of another guest, by TCP and UDP
//	/hold?with=ADDRESS       opens a connection to port 7 of another guest, and exchanges data until it fails
//	/held                    prints how often data was exchanged on this connection, or why it failed
package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/guest/boot"
	"github.com/millwright-dev/millwright/guest/metadata"
	"github.com/millwright-dev/millwright/guest/network"
)

const (
	// payload is the number of bytes of a datagram.
	payload = 1400
	// datagrams is how many are exchanged.
	datagrams = 50
	// streamed is the number of bytes that are exchanged by TCP.
	streamed = 1 << 20
	// holdInterval is the time between two messages on the connection of /hold.
	holdInterval = 20 * time.Millisecond
	// waitTimeout limits the time to connect, and to get data back.
	waitTimeout = 5 * time.Minute
)

func main() {
	fmt.Printf("peer: %v\r\n", run())
	select {}
}

func run() error {
	if err := errors.Join(boot.Mount(), boot.LoadModules()); err != nil {
		return err
	}
	described, err := metadata.Read()
	if err != nil {
		return err
	}
	card, err := network.Card()
	if err != nil {
		return err
	}
	if err := network.Up(card); err != nil {
		return err
	}
	for _, link := range described.Links {
		if err := network.Connect(card, link.Address, link.Peer); err != nil {
			return err
		}
	}
	id, previous, err := bootIDs()
	if err != nil {
		return err
	}
	if err := errors.Join(echoTCP(), echoUDP()); err != nil {
		return err
	}
	var held connection
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %s", described.Name, id, previous, r.FormValue("nonce"))
	})
	mux.HandleFunc("/exchange", func(w http.ResponseWriter, r *http.Request) { respond(w, exchange(r.FormValue("with"))) })
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) { respond(w, held.open(r.FormValue("with"))) })
	mux.HandleFunc("/held", func(w http.ResponseWriter, _ *http.Request) {
		exchanged, err := held.state()
		if err != nil {
			respond(w, err)
			return
		}
		fmt.Fprint(w, exchanged)
	})
	fmt.Print("peer: ready\r\n")
	return http.ListenAndServe(":80", mux)
}

// bootIDs returns the ID of this boot, and the one on the root disk, which it replaces.
func bootIDs() (id, previous string, err error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", "", err
	}
	disk, err := os.OpenFile("/dev/vda", os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		return "", "", err
	}
	defer disk.Close()
	stored := make([]byte, len(text))
	if _, err := disk.ReadAt(stored, 0); err != nil {
		return "", "", err
	}
	if _, err := disk.WriteAt(text, 0); err != nil {
		return "", "", err
	}
	if previous = "none"; stored[0] != 0 {
		previous = strings.TrimSpace(string(stored))
	}
	return strings.TrimSpace(string(text)), previous, nil
}

func respond(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func echoTCP() error {
	listener, err := net.Listen("tcp", ":7")
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
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return nil
}

func echoUDP() error {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: 7})
	if err != nil {
		return err
	}
	go func() {
		packet := make([]byte, 1<<16)
		for {
			length, from, err := conn.ReadFromUDPAddrPort(packet)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(packet[:length], from)
		}
	}()
	return nil
}

// dial connects to port 7 of another guest.
func dial(protocol, address string) (net.Conn, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout(protocol, netip.AddrPortFrom(ip, 7).String(), waitTimeout)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(waitTimeout))
}

// exchange sends a stream and single datagrams, and checks what comes back.
func exchange(with string) error {
	stream, err := dial("tcp", with)
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := roundTrip(stream, streamed); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	packets, err := dial("udp", with)
	if err != nil {
		return err
	}
	defer packets.Close()
	for number := range datagrams {
		if err := roundTrip(packets, payload); err != nil {
			return fmt.Errorf("datagram %d: %w", number, err)
		}
	}
	return nil
}

// roundTrip sends random bytes, which must come back.
func roundTrip(conn net.Conn, length int) error {
	content, back := make([]byte, length), make([]byte, length)
	_, _ = rand.Read(content) // never fails
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(content)
		sent <- err
	}()
	if _, err := io.ReadFull(conn, back); err != nil {
		return err
	}
	if !bytes.Equal(content, back) {
		return errors.New("got back other data")
	}
	return <-sent
}

// connection is the connection of /hold.
type connection struct {
	mu        sync.Mutex
	exchanged int
	err       error
}

func (c *connection) open(with string) error {
	conn, err := dial("tcp", with)
	if err != nil {
		return err
	}
	go func() {
		defer conn.Close()
		for err == nil {
			time.Sleep(holdInterval)
			if err = conn.SetDeadline(time.Now().Add(waitTimeout)); err == nil {
				err = roundTrip(conn, payload)
			}
			c.mu.Lock()
			c.exchanged, c.err = c.exchanged+1, err
			c.mu.Unlock()
		}
	}()
	return nil
}

func (c *connection) state() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exchanged, c.err
}
