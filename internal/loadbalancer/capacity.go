package loadbalancer

import (
	"github.com/millwright-dev/millwright/internal/connlimit"
)

// Capacity limits the connections of all Balancers of a process. Each Balancer has a share that others cannot use, so
// that clients of one endpoint cannot take the connections of all others. The rest is common to all.
type Capacity struct {
	share  int
	common *connlimit.Counter
}

// minClients is the minimum number of clients that fill the common capacity.
const minClients = 4

// NewCapacity returns the capacity for a total number of connections. Half of it is divided among the Balancers, whose
// maximum number is given.
func NewCapacity(total, balancers int) *Capacity {
	share := total / 2 / balancers
	common := total - share*balancers
	return &Capacity{share: share, common: connlimit.NewCounter(common, (common+minClients-1)/minClients)}
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
func (r reservation) take(client connlimit.Origin) (release func(), ok bool) {
	if release, ok = r.own.Take(struct{}{}); ok {
		return release, true
	}
	return r.common.Take(client)
}

// admit counts a connection of a client until release. It returns false if that exceeds a limit.
func (b *Balancer) admit(client connlimit.Origin) (release func(), ok bool) {
	leave, ok := b.open.Take(client)
	if !ok {
		return nil, false
	}
	free, ok := b.reserved.take(client)
	if !ok {
		leave()
		return nil, false
	}
	return func() {
		free()
		leave()
	}, true
}
