package load

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Balancer finds the nodes through which a Service of type NodePort can be reached, as load balancers in front
// of a cluster do: nodes that are Ready and not cordoned, once the Service has responded through them. A
// healthy kube-proxy is not sufficient: it reports healthy before its first rules are in force.
type Balancer struct {
	// Nodes returns the current nodes.
	Nodes func(context.Context) ([]corev1.Node, error)
	// Get requests a path at an address. It returns an error unless the status is 200.
	Get func(ctx context.Context, target netip.AddrPort, path string) error
	// Port is the port of the Service on every node.
	Port uint16

	mu    sync.Mutex
	leads map[types.UID]bool
}

// probeTimeout is how long the Service may take to respond.
const probeTimeout = 10 * time.Second

// Run sends a request through each new node once per interval, until the context is done.
func (b *Balancer) Run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		b.probe(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// probe probes all new nodes concurrently, and forgets nodes that are gone.
func (b *Balancer) probe(ctx context.Context) {
	nodes, err := b.Nodes(ctx)
	if err != nil {
		return // retry in the next interval
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var all sync.WaitGroup
	there := map[types.UID]bool{}
	for i := range nodes {
		node := &nodes[i]
		there[node.UID] = true
		if address, ok := reachable(node); ok && !b.isKnown(node.UID) {
			all.Go(func() {
				if b.Get(ctx, netip.AddrPortFrom(address, b.Port), "/") == nil {
					b.mark(node.UID)
				}
			})
		}
	}
	all.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.leads, func(node types.UID, _ bool) bool { return !there[node] })
}

func (b *Balancer) isKnown(node types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leads[node]
}

func (b *Balancer) mark(node types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leads == nil {
		b.leads = map[types.UID]bool{}
	}
	b.leads[node] = true
}

// Targets returns the addresses of the Service, in the order of the nodes.
func (b *Balancer) Targets(ctx context.Context) []netip.AddrPort {
	nodes, err := b.Nodes(ctx)
	if err != nil {
		return nil
	}
	var targets []netip.AddrPort
	for i := range nodes {
		if address, ok := reachable(&nodes[i]); ok && b.isKnown(nodes[i].UID) {
			targets = append(targets, netip.AddrPortFrom(address, b.Port))
		}
	}
	return targets
}

// reachable returns the IPv4 address of a node that accepts new connections.
func reachable(node *corev1.Node) (netip.Addr, bool) {
	ready := slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
	if _, excluded := node.Labels[corev1.LabelNodeExcludeBalancers]; !ready || excluded || node.Spec.Unschedulable || node.DeletionTimestamp != nil {
		return netip.Addr{}, false
	}
	for _, is := range node.Status.Addresses {
		if address, err := netip.ParseAddr(is.Address); err == nil && is.Type == corev1.NodeInternalIP && address.Is4() {
			return address, true
		}
	}
	return netip.Addr{}, false
}
