package loadbalancer

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/millwright-dev/millwright/internal/specialaddress"
)

// via returns a function that connects by HTTP CONNECT through a Unix socket. It refuses special addresses as
// loadbalancer.Dial does, and names, because the server of the socket would resolve them.
func via(socket string) func(ctx context.Context, address string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		server, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, fmt.Errorf("connecting to %s by %s: not an IP address and a port", address, socket)
		}
		if err := specialaddress.Check(server); err != nil {
			return nil, err
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		if err := request(ctx, conn, address); err != nil {
			_ = conn.Close()
			err = cmp.Or(ctx.Err(), err) // rather than the error of the closed connection
			return nil, fmt.Errorf("connecting to %s by %s: %w", address, socket, err)
		}
		return conn, nil
	}
}

// request requests a connection to an address. The server does not send data before its client does, so no data
// can follow the response yet.
func request(ctx context.Context, conn net.Conn, address string) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	connect := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if err := connect.Write(conn); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), connect)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		_ = response.Body.Close()
		return fmt.Errorf("%s: %s", response.Status, why)
	}
	return nil
}
