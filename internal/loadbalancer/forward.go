package loadbalancer

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// serve forwards a new connection if there is capacity. A silent client uses none, and no connection to a server.
func (b *Balancer) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer stop()
	hello := make([]byte, 4<<10)
	n, err := client.Read(hello)
	if err != nil {
		return
	}
	release, ok := b.admit(client)
	if !ok {
		b.refused.Add(1)
		return
	}
	defer release()
	connlimit.Known(client) // it counts as established
	b.now.Add(1)
	defer b.now.Add(-1)
	b.forward(ctx, connlimit.Unwrap(client), hello[:n])
}

// forward connects a client with a server until one of them closes the connection. Without a server, the client
// is disconnected; clients of API servers then retry. hello is what the client has sent so far.
func (b *Balancer) forward(ctx context.Context, client net.Conn, hello []byte) {
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
