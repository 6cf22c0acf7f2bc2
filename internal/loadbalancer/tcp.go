package loadbalancer

import (
	"context"
	"net"
	"time"
)

// keepAlive detects vanished peers within about half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// Dial connects to HOST:PORT over TCP from this host's network.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(ctx, "tcp", address)
}

// Listen listens on HOST:PORT over TCP.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", address)
}
