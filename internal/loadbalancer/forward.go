package loadbalancer

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// forward connects a client with a server until one of them closes the connection. Without a server, the client
// is disconnected; clients of API servers then retry.
func (b *Balancer) forward(ctx context.Context, client net.Conn) {
	defer client.Close()
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer stop()
	hello, err := readHello(client)
	if err != nil {
		return
	}
	server, release := b.connect(ctx)
	if server == nil {
		return
	}
	defer release()
	if _, err := server.Write(hello); err != nil {
		return
	}
	join(client, server)
}

// readHello reads the first data of a client, so that a silent client does not use a connection to a server.
func readHello(client net.Conn) ([]byte, error) {
	if err := client.SetReadDeadline(time.Now().Add(helloLimit)); err != nil {
		return nil, err
	}
	hello := make([]byte, 4<<10)
	n, err := client.Read(hello)
	if err != nil {
		return nil, err
	}
	return hello[:n], client.SetReadDeadline(time.Time{})
}

// join copies in both directions until both are closed, one has failed, or one has outlived the other for too
// long.
func join(client, server net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { copyTo(client, server) })
	copyTo(server, client)
	both.Wait()
}

// copyTo copies until the end of the input, and then closes the write side of the output.
func copyTo(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
		_ = to.SetReadDeadline(time.Now().Add(halfClosedLimit))
		return
	}
	_ = to.Close()
	_ = from.Close()
}
