package balancer

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// facts are what is known of a MillwrightCluster.
type facts struct {
	// given is the endpoint that is set already; the zero value if none is.
	given core.Endpoint
	// first and last are the ports of this load balancer, and others those that it has for other MillwrightClusters.
	first, last int32
	others      map[int32]types.NamespacedName
	// held is the port that is open for this one; 0 if none is.
	held int32
	// paused says that nothing may be written.
	paused bool
	// servers are the addresses of the API servers.
	servers []string
}

// gather finds the facts.
func (c *Controller) gather(ctx context.Context, infra *infrav1.MillwrightCluster, cluster *core.Cluster) (facts, error) {
	key := client.ObjectKeyFromObject(infra)
	f := facts{
		given: cluster.Spec.ControlPlaneEndpoint, first: c.FirstPort, last: c.LastPort,
		others: map[int32]types.NamespacedName{}, paused: core.Paused(cluster, infra),
	}
	if own := infra.Spec.ControlPlaneEndpoint; own != nil {
		f.given = core.Endpoint{Host: own.Host, Port: own.Port}
	}
	list := &infrav1.MillwrightClusterList{}
	if err := c.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return facts{}, fmt.Errorf("listing MillwrightClusters: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if endpoint := other.Spec.ControlPlaneEndpoint; endpoint != nil && c.asked(other) && client.ObjectKeyFromObject(other) != key {
			f.others[endpoint.Port] = client.ObjectKeyFromObject(other)
		}
	}
	c.mu.Lock()
	for other, e := range c.open {
		if other == key {
			f.held = e.port
		} else {
			f.others[e.port] = other
		}
	}
	c.mu.Unlock()
	var err error
	f.servers, err = c.servers(ctx, infra, cluster)
	return f, err
}

// servers returns the addresses of the API servers of a Cluster: of the control plane machines that have an address, and
// whose VM is to stay.
func (c *Controller) servers(ctx context.Context, infra *infrav1.MillwrightCluster, cluster *core.Cluster) ([]string, error) {
	list := &infrav1.MillwrightMachineList{}
	err := c.Client.List(ctx, list, client.InNamespace(infra.Namespace),
		client.MatchingLabels{core.LabelCluster: cluster.Name}, client.HasLabels{core.LabelControlPlane}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the control plane of Cluster %s: %w", cluster.Name, err)
	}
	const standard = 6443 // the schema's default, for objects without it
	port := strconv.Itoa(int(cmp.Or(infra.Spec.ControlPlanePort, standard)))
	var servers []string
	for i := range list.Items {
		machine := &list.Items[i]
		if host := addressOf(machine); host != "" && machine.DeletionTimestamp.IsZero() {
			servers = append(servers, net.JoinHostPort(host, port))
		}
	}
	slices.Sort(servers)
	return slices.Compact(servers), nil
}

// addressOf returns the address of a machine that is the nearest for a load balancer beside it; empty if there is none.
func addressOf(machine *infrav1.MillwrightMachine) string {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS} {
		for _, address := range machine.Status.Addresses {
			if address.Type == kind {
				return address.Address
			}
		}
	}
	return ""
}
