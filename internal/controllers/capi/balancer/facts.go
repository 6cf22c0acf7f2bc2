package balancer

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/controlplane"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// facts are what is known of a MillwrightCluster.
type facts struct {
	// given is the endpoint that is set already; the zero value if none is.
	given core.Endpoint
	// first and last are the ports of this load balancer, and others those that it has for other MillwrightClusters. Of
	// several that have the same endpoint one has the port.
	first, last int32
	others      map[int32]types.NamespacedName
	// held is the port that is open for this one; 0 if none is.
	held int32
	// limit is how many ports a namespace may have, 0 for any number, and siblings how many others of this namespace
	// have one and come before this one.
	limit, siblings int
	// paused says that nothing may be written, and stands by that another process writes.
	paused, standsBy bool
	// servers are the addresses of the API servers.
	servers []string
}

// gather finds the facts; which ports others have by that reader.
func (c *Controller) gather(ctx context.Context, reader client.Reader, infra *infrav1.MillwrightCluster, cluster *core.Cluster) (facts, error) {
	f := facts{
		given: cluster.Spec.ControlPlaneEndpoint, first: c.FirstPort, last: c.LastPort, limit: c.MaxPerNamespace,
		others: map[int32]types.NamespacedName{}, paused: core.Paused(cluster, infra), standsBy: !c.leading(),
	}
	if own := infra.Spec.ControlPlaneEndpoint; own != nil {
		f.given = core.Endpoint{Host: own.Host, Port: own.Port}
	}
	list := &infrav1.MillwrightClusterList{}
	if err := reader.List(ctx, list, client.InNamespace(c.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return facts{}, fmt.Errorf("listing MillwrightClusters: %w", err)
	}
	f.share(client.ObjectKeyFromObject(infra), c.holders(list, infra, f.given))
	machines, err := controlplane.Machines(ctx, c.Client, infra.Namespace, cluster.Name)
	if err != nil {
		return facts{}, err
	}
	f.servers = serversOf(machines, controlplane.Port(infra))
	return f, nil
}

// holder is a MillwrightCluster that has a port of this load balancer, or wants one.
type holder struct {
	types.NamespacedName
	// ports are that of its endpoint and the one that is open, which are the same unless one has changed; none if
	// it only wants one.
	ports []int32
	// open says that one is, and chosen that this process leads and keeps it so.
	open, chosen bool
	since        time.Time
	// said is what its condition says of it, also from before this process.
	said portRecord
}

// portRecord is what the condition of a MillwrightCluster says of who had its port. The process that leads writes it, so all
// processes find the same.
type portRecord int

const (
	// notServed: it had none, or nobody knows.
	notServed portRecord = iota
	// servedOnce: it had the port of an earlier spec, which may be that of another endpoint.
	servedOnce
	// served: it had this port.
	served
)

func recordOf(infra *infrav1.MillwrightCluster) portRecord {
	condition := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionLoadBalancerReady)
	switch {
	case condition == nil || condition.Reason != infrav1.ReasonForwarding && condition.Reason != infrav1.ReasonNoHealthyMachine:
		return notServed
	case condition.ObservedGeneration != infra.Generation:
		return servedOnce
	}
	return served
}

// holders returns those that have ports, and in any case this one. First come those whose port is open, as none is closed
// for the limit of its namespace; then the older ones, so that it is the same after a restart. One that only wants a port is the last.
func (c *Controller) holders(list *infrav1.MillwrightClusterList, infra *infrav1.MillwrightCluster, given core.Endpoint) []holder {
	found := map[types.NamespacedName]*holder{client.ObjectKeyFromObject(infra): {}}
	for i := range list.Items {
		other := &list.Items[i]
		if key, endpoint := client.ObjectKeyFromObject(other), other.Spec.ControlPlaneEndpoint; endpoint != nil && c.asked(other) {
			found[key] = &holder{ports: c.own(endpoint.Port), since: other.CreationTimestamp.Time, said: recordOf(other)}
		}
	}
	this := found[client.ObjectKeyFromObject(infra)]
	this.ports, this.since, this.said = c.own(given.Port), infra.CreationTimestamp.Time, recordOf(infra)
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.open {
		h := found[key]
		if h == nil { // its endpoint is in the Cluster only, or is not in the cache yet
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

// own returns a port in a list, if it is one of this load balancer's.
func (c *Controller) own(port int32) []int32 {
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

// claim is how good the claim of a holder to a port is.
type claim int

const (
	// claimWanted: it is the endpoint.
	claimWanted claim = iota
	// claimEarlier: it was served with an earlier spec.
	claimEarlier
	// claimOpen: it is open here, which the process that leads may not have said yet, or never says.
	claimOpen
	// claimServed: the process that leads, or led, says so.
	claimServed
	// claimChosen: it is open, and this process leads.
	claimChosen
)

func (h holder) claimTo(port int32) claim {
	open := h.open && h.ports[len(h.ports)-1] == port
	switch {
	case open && h.chosen:
		return claimChosen
	case h.said == served:
		return claimServed
	case open:
		return claimOpen
	case h.said == servedOnce:
		return claimEarlier
	default:
		return claimWanted
	}
}

// hasRatherThan reports whether of two that have a port as their endpoint this one gets it: the one with the better claim, then
// the one whose port is open, then the older one. Each process and each pass decides the same, as soon as it knows what the one
// that leads has decided.
func (h holder) hasRatherThan(other holder, port int32) bool {
	return cmp.Or(int(other.claimTo(port)-h.claimTo(port)), before(h, other)) < 0
}

// share notes which ports others have. Those that are too many in their namespace have none, so that they keep none from others.
func (f *facts) share(this types.NamespacedName, holders []holder) {
	count, has := map[string]int{}, map[int32]holder{}
	for _, h := range holders {
		before := count[h.Namespace]
		if h.NamespacedName == this {
			f.siblings = before
			if h.open {
				f.held = h.ports[len(h.ports)-1]
			}
		}
		if len(h.ports) == 0 || f.limit > 0 && before >= f.limit {
			continue
		}
		count[h.Namespace]++
		for _, port := range h.ports {
			if other, taken := has[port]; !taken || h.hasRatherThan(other, port) {
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

// serversOf returns the addresses of the API servers on machines.
func serversOf(machines []infrav1.MillwrightMachine, port int32) []string {
	var servers []string
	for i := range machines {
		servers = append(servers, net.JoinHostPort(controlplane.Nearest(&machines[i]), strconv.Itoa(int(port))))
	}
	slices.Sort(servers)
	return slices.Compact(servers)
}
