package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
)

// serve starts a server with a dial function, and returns a function that connects a client.
func serve(t *testing.T, dial Dial) func(request string) (*http.Response, net.Conn, *bufio.Reader) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, listener, dial) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func(request string) (*http.Response, net.Conn, *bufio.Reader) {
		t.Helper()
		conn, err := net.Dial("unix", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, request)
		in := bufio.NewReader(conn)
		response, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		return response, conn, in
	}
}

// echo returns a connection to a server that sends back what it receives.
func echo(t *testing.T) net.Conn {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer other.Close()
		_, _ = io.Copy(other, other) // it terminates with the test
	}()
	return conn
}

func TestEgress_Connects(t *testing.T) {
	asked := make(chan string, 1)
	connect := serve(t, func(_ context.Context, address string) (net.Conn, error) {
		asked <- address
		return echo(t), nil
	})
	// Data sent before the response belongs to the connection.
	response, conn, in := connect("CONNECT 10.77.0.16:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nearly ")
	if address := <-asked; response.StatusCode != http.StatusOK || address != "10.77.0.16:10250" {
		t.Fatalf("%s, connected to %s", response.Status, address)
	}
	fmt.Fprint(conn, "and late")
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || string(got) != "early and late" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestEgress_CloseTerminatesConnections checks that stopping the server closes open connections.
func TestEgress_CloseTerminatesConnections(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, listener, func(context.Context, string) (net.Conn, error) { return echo(t), nil })
	}()
	conn, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "CONNECT 10.77.0.16:10250 HTTP/1.1\r\nHost: x\r\n\r\n")
	in := bufio.NewReader(conn)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Errorf("the connection ended with %v", err)
	}
}

func TestEgress_RejectsInvalidRequests(t *testing.T) {
	connect := serve(t, func(context.Context, string) (net.Conn, error) { return nil, errors.New("no such node") })
	for request, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n":                    http.StatusMethodNotAllowed,
		"CONNECT 10.77.0.99:10250 HTTP/1.1\r\nHost: x\r\n\r\n": http.StatusBadGateway,
	} {
		if response, _, _ := connect(request); response.StatusCode != want {
			t.Errorf("%q: %s, want %d", request, response.Status, want)
		}
	}
}
