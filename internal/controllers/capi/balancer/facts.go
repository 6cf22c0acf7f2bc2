package balancer

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/controlplane"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/specialaddress"
)

// maxServers is the maximum number of API servers of a Cluster. Each one is checked every two seconds, and a user may
// create any number of machines.
const maxServers = 32

// facts are the facts about a MillwrightCluster.
type facts struct {
	// endpoint is the endpoint that is already set; the zero value if there is none.
	endpoint core.Endpoint
	// first and last are the port range of this load balancer. others has the ports that belong to other
	// MillwrightClusters. If several of them have the same endpoint, one has the port.
	first, last int32
	others      map[int32]types.NamespacedName
	// open is the port that is open for this MillwrightCluster; 0 if there is none.
	open int32
	// limit is the maximum number of ports per namespace; 0 means no limit. siblings is the number of other
	// MillwrightClusters in the namespace that have a port and take precedence over this one.
	limit, siblings int
	// paused reports that the object must not be written. standby reports that another process is the leader and
	// writes it.
	paused, standby bool
	// servers are the addresses of the API servers. unused explains why addresses of machines are not among them; it
	// is empty if all are.
	servers []string
	unused  string
}

// gather collects the facts. It reads the ports of other MillwrightClusters with the given reader.
func (c *Controller) gather(ctx context.Context, reader client.Reader, infra *infrav1.MillwrightCluster, cluster *core.Cluster) (facts, error) {
	f := facts{
		endpoint: cluster.Spec.ControlPlaneEndpoint, first: c.FirstPort, last: c.LastPort, limit: c.MaxPerNamespace,
		others: map[int32]types.NamespacedName{}, paused: core.Paused(cluster, infra), standby: !c.leading(),
	}
	if own := infra.Spec.ControlPlaneEndpoint; own != nil {
		f.endpoint = core.Endpoint{Host: own.Host, Port: own.Port}
	}
	list := &infrav1.MillwrightClusterList{}
	if err := reader.List(ctx, list, client.InNamespace(c.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return facts{}, fmt.Errorf("listing MillwrightClusters: %w", err)
	}
	f.assignPorts(client.ObjectKeyFromObject(infra), c.holders(list, infra, f.endpoint))
	machines, err := controlplane.Machines(ctx, c.Client, infra.Namespace, cluster.Name)
	if err != nil {
		return facts{}, err
	}
	f.servers, f.unused = serversOf(machines, controlplane.Port(infra))
	return f, nil
}

// holder is a MillwrightCluster that has or requests a port of this load balancer.
type holder struct {
	types.NamespacedName
	// ports are the port of its endpoint and the port that is open. They are the same unless one has changed. If it
	// has no port yet, ports is empty.
	ports []int32
	// open reports whether a port is open. chosen reports whether this process is the leader and has assigned the
	// open port.
	open, chosen bool
	since        time.Time
	// served is the state in its condition, which may have been written by an earlier process.
	served servedState
}

// servedState is what the condition of a MillwrightCluster reports about its port. The leader writes the condition,
// so all processes see the same state.
type servedState int

const (
	// notServed means that it had no port, or that this is unknown.
	notServed servedState = iota
	// servedEarlier means that it had the port of an earlier spec, which may have had another endpoint.
	servedEarlier
	// servedCurrent means that it had the port of its current spec.
	servedCurrent
)

func servedStateOf(infra *infrav1.MillwrightCluster) servedState {
	condition := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionLoadBalancerReady)
	switch {
	case condition == nil || condition.Reason != infrav1.ReasonForwarding && condition.Reason != infrav1.ReasonNoHealthyMachine:
		return notServed
	case condition.ObservedGeneration != infra.Generation:
		return servedEarlier
	}
	return servedCurrent
}

// holders returns all MillwrightClusters that have ports, and in any case this one, in the order of their precedence.
// Those whose port is open come first, because no open port is closed for the limit of its namespace. Older ones come
// before newer ones, so that the order is the same after a restart. Those that have no port yet come last.
func (c *Controller) holders(list *infrav1.MillwrightClusterList, infra *infrav1.MillwrightCluster, own core.Endpoint) []holder {
	found := map[types.NamespacedName]*holder{client.ObjectKeyFromObject(infra): {}}
	for i := range list.Items {
		other := &list.Items[i]
		if key, endpoint := client.ObjectKeyFromObject(other), other.Spec.ControlPlaneEndpoint; endpoint != nil && c.selects(other) {
			found[key] = &holder{ports: c.portList(endpoint.Port), since: other.CreationTimestamp.Time, served: servedStateOf(other)}
		}
	}
	this := found[client.ObjectKeyFromObject(infra)]
	this.ports, this.since, this.served = c.portList(own.Port), infra.CreationTimestamp.Time, servedStateOf(infra)
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.open {
		h := found[key]
		if h == nil { // only the Cluster has its endpoint, or the cache does not have it yet
			h = &holder{}
			found[key] = h
		}
		h.ports, h.open, h.chosen = append(h.ports, e.port), true, e.chosen
	}
	all := make([]holder, 0, len(found))
	for key, h := range found {
		h.NamespacedName = key
		all = append(all, *h)
	}
	slices.SortFunc(all, before)
	return all
}

// portList returns a list with a port, or an empty list if the port is not in the range of this load balancer.
func (c *Controller) portList(port int32) []int32 {
	if port < c.FirstPort || port > c.LastPort {
		return nil
	}
	return []int32{port}
}

func before(x, y holder) int {
	rank := func(h holder) int {
		switch {
		case h.open:
			return 0
		case len(h.ports) > 0:
			return 1
		default:
			return 2
		}
	}
	return cmp.Or(rank(x)-rank(y), x.since.Compare(y.since), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
}

// claim ranks how strong the claim of a holder to a port is.
type claim int

const (
	// claimEndpoint means that the port is only its endpoint.
	claimEndpoint claim = iota
	// claimEarlier means that it was served with an earlier spec.
	claimEarlier
	// claimOpen means that the port is open in this process, but the leader has not confirmed it in the condition.
	claimOpen
	// claimServed means that the condition confirms it, as the current or the last leader has written it.
	claimServed
	// claimChosen means that the port is open in this process, which is the leader.
	claimChosen
)

func (h holder) claimTo(port int32) claim {
	open := h.open && h.ports[len(h.ports)-1] == port
	switch {
	case open && h.chosen:
		return claimChosen
	case h.served == servedCurrent:
		return claimServed
	case open:
		return claimOpen
	case h.served == servedEarlier:
		return claimEarlier
	default:
		return claimEndpoint
	}
}

// precedes reports whether this holder gets a port that is the endpoint of both holders. The one with the stronger
// claim gets it; then the one whose port is open, and then the older one. All processes and passes come to the same
// decision once they know the leader's decision.
func (h holder) precedes(other holder, port int32) bool {
	return cmp.Or(int(other.claimTo(port)-h.claimTo(port)), before(h, other)) < 0
}

// assignPorts sets the ports of others. Holders that exceed the limit of their namespace get no port, so they do not
// keep a port from others.
func (f *facts) assignPorts(this types.NamespacedName, holders []holder) {
	count, has := map[string]int{}, map[int32]holder{}
	for _, h := range holders {
		before := count[h.Namespace]
		if h.NamespacedName == this {
			f.siblings = before
			if h.open {
				f.open = h.ports[len(h.ports)-1]
			}
		}
		if len(h.ports) == 0 || f.limit > 0 && before >= f.limit {
			continue
		}
		count[h.Namespace]++
		for _, port := range h.ports {
			if other, taken := has[port]; !taken || h.precedes(other, port) {
				has[port] = h
			}
		}
	}
	for port, h := range has {
		if h.NamespacedName != this {
			f.others[port] = h.NamespacedName
		}
	}
}

// serversOf returns the addresses of the API servers on machines, without duplicates. If there are too many, it returns
// those of the oldest machines. It omits special addresses: users who can set the address of a machine are not trusted
// with the services at these addresses. unused explains why addresses are missing; it is empty if none is.
func serversOf(machines []infrav1.MillwrightMachine, port int32) (servers []string, unused string) {
	slices.SortFunc(machines, func(a, b infrav1.MillwrightMachine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	found := map[string]struct{}{}
	for i := range machines {
		host := controlplane.InternalAddress(&machines[i])
		if address, err := netip.ParseAddr(host); err == nil && specialaddress.Kind(address) != "" {
			unused = cmp.Or(unused, fmt.Sprintf("MillwrightMachine %s has the address %s, which is %s", machines[i].Name, address.WithZone(""), specialaddress.Kind(address)))
			continue
		}
		server := net.JoinHostPort(host, strconv.Itoa(int(port)))
		if _, duplicate := found[server]; !duplicate && len(found) < maxServers {
			servers = append(servers, server)
		}
		found[server] = struct{}{}
	}
	if len(found) > maxServers {
		unused = cmp.Or(unused, fmt.Sprintf("there are %d addresses, and at most %d of them are used", len(found), maxServers))
	}
	return servers, unused
}
