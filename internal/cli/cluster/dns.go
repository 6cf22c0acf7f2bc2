package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/observe/follow"
)

// dnsKey names the Deployment in config/full/dns.yaml.
var dnsKey = client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "coredns"}

const (
	// dnsReplicas is the number of replicas of the cluster's DNS. They run on different nodes, so that one node
	// can leave.
	dnsReplicas = 2
	// dnsBeat is the time after which a failed write is retried.
	dnsBeat = 10 * time.Second
)

// keepDNS scales the cluster's DNS with the number of nodes. If there were always two replicas, its
// PodDisruptionBudget would block the drain of the last node.
func (m *local) keepDNS(ctx context.Context, group *errgroup.Group) error {
	if m.guest != guestFull {
		return nil
	}
	config := m.plane.RESTConfig()
	config.UserAgent = "millwright-dns"
	writer, err := connect.NewClient(config)
	if err != nil {
		return err
	}
	deployments := cache.ByObject{Namespaces: map[string]cache.Config{dnsKey.Namespace: {}}}
	options := cache.Options{Scheme: writer.Scheme(), ByObject: map[client.Object]cache.ByObject{&appsv1.Deployment{}: deployments}}
	follower, err := follow.Start(ctx, config, options, &corev1.Node{}, &appsv1.Deployment{})
	if err != nil {
		return err
	}
	group.Go(func() error {
		err := follower.Until(ctx, time.Second, dnsBeat, func() (bool, error) {
			if err := scaleDNS(ctx, follower, writer); err != nil && ctx.Err() == nil {
				m.log.Error(err, "scaling the DNS of the cluster failed; retrying")
			}
			return false, nil
		})
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return nil
}

// scaleDNS writes the number of replicas if it must change.
func scaleDNS(ctx context.Context, cluster client.Reader, writer client.Writer) error {
	nodes, dns := &corev1.NodeList{}, &appsv1.Deployment{}
	if err := cluster.List(ctx, nodes); err != nil {
		return fmt.Errorf("cannot read the nodes: %w", err)
	}
	if err := cluster.Get(ctx, dnsKey, dns); err != nil {
		// A user may have another DNS.
		return client.IgnoreNotFound(err)
	}
	desired := dnsReplicasFor(nodes.Items)
	if dns.Spec.Replicas != nil && *dns.Spec.Replicas == desired {
		return nil
	}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, desired))
	key := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: dnsKey.Namespace, Name: dnsKey.Name}}
	if err := writer.Patch(ctx, key, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot scale the DNS of the cluster: %w", err)
	}
	return nil
}

// dnsReplicasFor returns the number of replicas for the given nodes. It is at least one, which stays pending
// until there is a node.
func dnsReplicasFor(nodes []corev1.Node) int32 {
	var free int32
	for i := range nodes {
		if takesPods(&nodes[i]) {
			free++
		}
	}
	return max(1, min(free, dnsReplicas))
}

// takesPods reports whether a node accepts Pods without tolerations. A node that is temporarily not Ready does:
// its Pods stay there.
func takesPods(node *corev1.Node) bool {
	refuses := func(taint corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(taint.Key, "node.kubernetes.io/")
	}
	return !node.Spec.Unschedulable && node.DeletionTimestamp == nil && !slices.ContainsFunc(node.Spec.Taints, refuses)
}
