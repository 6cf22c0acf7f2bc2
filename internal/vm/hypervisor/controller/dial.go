package controller

import (
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

// Back-off of everything that is asked of a controller: it is away rarely, and then
// hundreds of hypervisors ask for it.
const (
	firstDelay = 200 * time.Millisecond
	lastDelay  = 10 * time.Second
)

// DialOptions are for connections to a controller. A broken one is noticed although
// nothing is said for hours, and one that cannot be made is tried for at least every
// ten seconds; gRPC's own defaults are never, and every two minutes.
//
// The server must allow pings: keepalive.EnforcementPolicy with a MinTime of 20 s or
// less.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstDelay, Multiplier: 2, Jitter: 0.2, MaxDelay: lastDelay},
			MinConnectTimeout: lastDelay,
		}),
	}
}

// delays returns the pauses between tries: doubling, and never the same for many.
type delays struct{ next time.Duration }

func (d *delays) take() time.Duration {
	delay := max(d.next, firstDelay)
	d.next = min(2*delay, lastDelay)
	return delay + rand.N(delay/5+1) - delay/10
}

func (d *delays) reset() { d.next = 0 }
