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

// healthPort is where kube-proxy says whether its rules are in force.
const healthPort = 10256

// Balancer finds the nodes through which a Service of type NodePort is reached, as load balancers in
// front of a cluster do: nodes that are Ready and not cordoned, once their kube-proxy is healthy.
type Balancer struct {
	// Nodes returns the nodes of now.
	Nodes func(context.Context) ([]corev1.Node, error)
	// Get requests a path at an address, and returns an error unless the answer is status 200.
	Get func(ctx context.Context, target netip.AddrPort, path string) error
	// Port is that of the Service on every node.
	Port uint16

	mu      sync.Mutex
	healthy map[types.UID]bool
}

// healthTimeout is how long kube-proxy may take to answer.
const healthTimeout = 10 * time.Second

// Run asks the kube-proxies of new nodes once in each interval, until the context ends.
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

// probe asks all new nodes at once, and forgets those that are gone.
func (b *Balancer) probe(ctx context.Context) {
	nodes, err := b.Nodes(ctx)
	if err != nil {
		return // the next time
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	var all sync.WaitGroup
	there := map[types.UID]bool{}
	for i := range nodes {
		node := &nodes[i]
		there[node.UID] = true
		if address, ok := reachable(node); ok && !b.isHealthy(node.UID) {
			all.Go(func() {
				if b.Get(ctx, netip.AddrPortFrom(address, healthPort), "/healthz") == nil {
					b.mark(node.UID)
				}
			})
		}
	}
	all.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.healthy, func(node types.UID, _ bool) bool { return !there[node] })
}

func (b *Balancer) isHealthy(node types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.healthy[node]
}

func (b *Balancer) mark(node types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.healthy == nil {
		b.healthy = map[types.UID]bool{}
	}
	b.healthy[node] = true
}

// Targets returns the addresses of the Service, in the order of the nodes.
func (b *Balancer) Targets(ctx context.Context) []netip.AddrPort {
	nodes, err := b.Nodes(ctx)
	if err != nil {
		return nil
	}
	var targets []netip.AddrPort
	for i := range nodes {
		if address, ok := reachable(&nodes[i]); ok && b.isHealthy(nodes[i].UID) {
			targets = append(targets, netip.AddrPortFrom(address, b.Port))
		}
	}
	return targets
}

// reachable returns the IPv4 address of a node that new connections may use.
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
