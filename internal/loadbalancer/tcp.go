package loadbalancer

import (
	"context"
	"net"
	"time"

	"github.com/millwright-dev/millwright/internal/specialaddress"
)

// keepAlive detects vanished peers within about half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// Dial connects to HOST:PORT over TCP from this host's network. It refuses special addresses, such as loopback
// addresses of this host: users who can set the addresses of machines are not trusted with its services.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	dialer := &net.Dialer{KeepAliveConfig: keepAlive, Control: specialaddress.Control(specialaddress.Check)}
	return dialer.DialContext(ctx, "tcp", address)
}

// Listen listens on HOST:PORT over TCP.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", address)
}
