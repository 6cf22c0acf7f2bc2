package loadbalancer

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// via connects by HTTP CONNECT over a Unix socket.
func via(socket string) func(ctx context.Context, address string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		if err := request(ctx, conn, address); err != nil {
			_ = conn.Close()
			err = cmp.Or(ctx.Err(), err) // not that the connection was closed for that
			return nil, fmt.Errorf("connecting to %s by %s: %w", address, socket, err)
		}
		return conn, nil
	}
}

// request asks for a connection to an address. The server that is reached speaks after its client, so that nothing
// of it can follow the answer yet.
func request(ctx context.Context, conn net.Conn, address string) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	connect := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if err := connect.Write(conn); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), connect)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
		_ = answer.Body.Close()
		return fmt.Errorf("%s: %s", answer.Status, why)
	}
	return nil
}
