package dns

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) {
	program.Main()
	os.Exit(m.Run())
}

// cluster is a running "millwright up --guest full".
type cluster struct {
	*gomega.WithT
	t      *testing.T
	client client.Client
	// nodes are the names of the added nodes.
	nodes []string
}

// up starts a cluster without guests.
func up(t *testing.T, flags ...string) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	dir, err := os.MkdirTemp("", "dns-") // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	process := program.Start(t, append([]string{
		"up", "--guest", "full", "--hosts", "1", "--dir", dir, "--images", dir, "--api-port", "0", "--image-port", "0", "--unsafe-no-fsync",
	}, flags...)...)
	t.Cleanup(process.Stop)
	c := &cluster{WithT: gomega.NewWithT(t), t: t}
	c.eventually(func(g gomega.Gomega) {
		g.Expect(process.Output.String()).To(gomega.ContainSubstring("Ready after"))
	})
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if c.client, err = client.New(config, client.Options{Scheme: manager.Scheme()}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) eventually(check func(gomega.Gomega)) {
	c.t.Helper()
	c.Eventually(func(g gomega.Gomega) {
		c.heartbeat(g)
		check(g)
	}).WithTimeout(env.WaitTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// addNode adds a Node with capacity for Pods. No kubelet runs them.
func (c *cluster) addNode(name string) {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	c.Expect(c.client.Create(c.t.Context(), node)).To(gomega.Succeed())
	before := node.DeepCopy()
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("10"),
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	c.Expect(c.client.Status().Patch(c.t.Context(), node, client.MergeFrom(before))).To(gomega.Succeed())
	c.nodes = append(c.nodes, name)
}

// heartbeat renews the Ready condition of the Nodes. After 50 seconds without an update, they would get a taint.
func (c *cluster) heartbeat(g gomega.Gomega) {
	for _, name := range c.nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
		g.Expect(c.client.Status().Patch(c.t.Context(), node, client.RawPatch(types.StrategicMergePatchType, patch))).To(gomega.Succeed())
	}
}

// pods returns the Pods of the DNS that are not being deleted.
func (c *cluster) pods(g gomega.Gomega) []corev1.Pod {
	list := &corev1.PodList{}
	g.Expect(c.client.List(c.t.Context(), list, client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{"k8s-app": "kube-dns"})).To(gomega.Succeed())
	var there []corev1.Pod
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			there = append(there, pod)
		}
	}
	return there
}

// run marks the Pods of the DNS as ready, like kubelets.
func (c *cluster) run(pods []corev1.Pod) {
	c.t.Helper()
	for i := range pods {
		before := pods[i].DeepCopy()
		pods[i].Status.Phase = corev1.PodRunning
		pods[i].Status.Conditions = append(pods[i].Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		c.Expect(c.client.Status().Patch(c.t.Context(), &pods[i], client.MergeFrom(before))).To(gomega.Succeed())
	}
}

func (c *cluster) evict(pod *corev1.Pod) error {
	return c.client.SubResource("eviction").Create(c.t.Context(), pod, &policyv1.Eviction{})
}

// TestDNS_AllNodesAreReplaced checks that each of two nodes has a replica and the budget permits one eviction, and that
// without nodes, the budget permits both evictions, and one replica waits for the next node.
func TestDNS_AllNodesAreReplaced(t *testing.T) {
	tier.All(t)
	c := up(t)
	c.eventually(func(g gomega.Gomega) { g.Expect(c.pods(g)).To(gomega.HaveLen(1)) })
	c.addNode("one")
	c.addNode("two")
	var pods []corev1.Pod
	c.eventually(func(g gomega.Gomega) {
		pods = c.pods(g)
		g.Expect([]string{pods[0].Spec.NodeName, pods[len(pods)-1].Spec.NodeName}).To(gomega.ConsistOf("one", "two"))
	})
	c.run(pods)
	for _, name := range []string{"one", "two"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		cordon := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":true}}`))
		c.Expect(c.client.Patch(t.Context(), node, cordon)).To(gomega.Succeed())
	}
	for i := range pods {
		// The budget must not permit this before one replica is sufficient.
		c.eventually(func(g gomega.Gomega) { g.Expect(client.IgnoreNotFound(c.evict(&pods[i]))).To(gomega.Succeed()) })
	}
	c.eventually(func(g gomega.Gomega) {
		dns := &appsv1.Deployment{}
		g.Expect(c.client.Get(t.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "coredns"}, dns)).To(gomega.Succeed())
		g.Expect(*dns.Spec.Replicas).To(gomega.BeEquivalentTo(1))
		left := c.pods(g)
		g.Expect(left).To(gomega.HaveLen(1))
		g.Expect(left[0].Spec.NodeName).To(gomega.BeEmpty())
	})
}

// TestDNS_Addresses checks that Pods reach the API server through the Service kubernetes, at the address of the
// guests' gateway. With --ipv6, nodes and Services have addresses of both IP versions.
func TestDNS_Addresses(t *testing.T) {
	tier.All(t)
	c := up(t, "--ipv6")
	c.eventually(func(g gomega.Gomega) {
		slice := &discoveryv1.EndpointSlice{}
		g.Expect(c.client.Get(t.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}, slice)).To(gomega.Succeed())
		g.Expect(slice.Endpoints).To(gomega.HaveLen(1))
		g.Expect(slice.Endpoints[0].Addresses).To(gomega.Equal([]string{"10.77.0.2"}))
	})
	c.addNode("one")
	c.eventually(func(g gomega.Gomega) {
		node := &corev1.Node{}
		g.Expect(c.client.Get(t.Context(), client.ObjectKey{Name: "one"}, node)).To(gomega.Succeed())
		g.Expect(node.Spec.PodCIDRs).To(gomega.HaveLen(2))
		four, six := netip.MustParsePrefix(node.Spec.PodCIDRs[0]), netip.MustParsePrefix(node.Spec.PodCIDRs[1])
		g.Expect(four.Bits()).To(gomega.Equal(24))
		g.Expect(netip.MustParsePrefix("fd6d:696c:6c77:100::/56").Contains(six.Addr())).To(gomega.BeTrue(), six.String())
	})
	both := corev1.IPFamilyPolicyRequireDualStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "both"},
		Spec:       corev1.ServiceSpec{IPFamilyPolicy: &both, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	c.Expect(c.client.Create(t.Context(), service)).To(gomega.Succeed())
	c.Expect(service.Spec.ClusterIPs).To(gomega.HaveLen(2))
}
