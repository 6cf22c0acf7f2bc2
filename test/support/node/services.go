package node

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// dialSocket is the socket through which tests connect to an address in the node's network. The first line
// contains the address.
const dialSocket = "dial.sock"

// Services maps addresses, as IP:PORT, that nodes and Pods can reach, to functions that serve a connection. Package node
// closes the connection when the function returns.
type Services map[string]func(net.Conn)

func socketOf(address string) string { return strings.ReplaceAll(address, ":", "-") + ".sock" }

func accept(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

// Dial connects to an address as a process of the node does, such as a port of a Pod or, with kube-proxy, of a Service.
func (n *Node) Dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.dir, dialSocket))
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(conn, address); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// offer runs in the node. It listens on the socket of Dial.
func (in *inside) offer() error {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", in.path(dialSocket))
	if err != nil {
		return err
	}
	go accept(listener, dialFirstLine)
	return nil
}

// dialFirstLine connects a connection to the address in its first line.
func dialFirstLine(from net.Conn) {
	reader := bufio.NewReader(from)
	line, err := reader.ReadString('\n')
	if err != nil {
		return
	}
	to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", strings.TrimSpace(line))
	if err != nil {
		fmt.Fprintln(os.Stderr, "dialling for the test:", err)
		return
	}
	join(buffered{from, reader}, to)
}

// buffered is a connection of which a part was already read.
type buffered struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (b buffered) Read(p []byte) (int, error) { return b.reader.Read(p) }

// To returns a function that forwards connections to an address in the test's own network.
func To(address string) func(net.Conn) {
	return func(from net.Conn) {
		to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", address)
		if err != nil {
			return // the client sees that its connection is closed
		}
		join(from, to)
	}
}
