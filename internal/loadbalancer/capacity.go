package loadbalancer

import (
	"net"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// Capacity limits the connections of all Balancers of a process. Each Balancer has a share that others cannot use, so
// that clients of one endpoint cannot take the connections of all others. The rest is common to all.
type Capacity struct {
	share  int
	common *connlimit.Counter
}

// NewCapacity returns the capacity for a total number of connections. Half of it is divided among the Balancers, whose
// maximum number is given.
func NewCapacity(total, balancers int) *Capacity {
	share := total / 2 / balancers
	common := total - share*balancers
	return &Capacity{share: share, common: connlimit.NewCounter(common, common)}
}

// reservation is the share of a Balancer.
type reservation struct {
	*Capacity
	own *connlimit.Counter
}

func (c *Capacity) reserve() reservation {
	return reservation{c, connlimit.NewCounter(c.share, c.share)}
}

// take counts a connection of a client until release. It returns false if there is no capacity.
func (r reservation) take() (release func(), ok bool) {
	if release, ok = r.own.Take(struct{}{}); ok {
		return release, true
	}
	return r.common.Take(struct{}{})
}

// admit counts a connection until release. If there is no capacity, it closes the oldest connection of the client with
// the most connections, unless this client then had more. It returns false if there still is none.
func (b *Balancer) admit(client net.Conn) (release func(), ok bool) {
	from := connlimit.OriginOf(client.RemoteAddr())
	free, ok := b.take(from)
	if !ok && b.established.Displace(from) {
		b.refused.Add(1)
		free, ok = b.take(from)
	}
	if !ok {
		return nil, false
	}
	leave := b.established.Add(from, func() {
		free()
		_ = client.Close()
	})
	return func() {
		leave()
		free()
	}, true
}

// take counts a connection of a client until release. It returns false if that exceeds a limit.
func (b *Balancer) take(client connlimit.Origin) (release func(), ok bool) {
	leave, ok := b.open.Take(client)
	if !ok {
		return nil, false
	}
	free, ok := b.reserved.take()
	if !ok {
		leave()
		return nil, false
	}
	return func() { // may be called repeatedly, like both of these
		free()
		leave()
	}, true
}
