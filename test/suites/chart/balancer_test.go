package chart

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestChart_LoadBalancerIsAdmitted checks that an API server accepts every object of its manifests, and its Pods
// with the Pod Security level "restricted".
func TestChart_LoadBalancerIsAdmitted(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	must(t, controlplane.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/crds")))
	must(t, client.IgnoreAlreadyExists(e.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "clusters"}})))
	for _, components := range [][]string{{"monitoring", "network-policy"}, {"one-namespace"}, {"node-port"}} {
		var places []string
		for _, component := range components {
			places = append(places, "../load-balancer/"+component)
		}
		for _, deployment := range apply(t, e.Cluster, kustomized(t, "../load-balancer/base", places...)) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "pod-", Labels: deployment.Spec.Template.Labels}, Spec: deployment.Spec.Template.Spec}
			must(t, e.Client.Create(t.Context(), pod, client.DryRunAll))
			if pod.Spec.HostNetwork || !*pod.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("%v: the Pod has more than it needs", components)
			}
		}
	}
}

// TestChart_LoadBalancersShareWork runs two replicas as the chart's Deployment specifies, with the installed
// permissions. Both forward connections. When one stops, the other one assigns ports.
func TestChart_LoadBalancersShareWork(t *testing.T) {
	tier.All(t)
	t.Parallel()
	i := &installation{Env: env.New(t), t: t}
	coretest.Install(t, i.Admin)
	var err error
	i.Client, err = client.New(i.Admin, client.Options{Scheme: manager.Scheme()})
	must(t, err)
	first := 20000 + rand.IntN(12000)
	all := charted(t, i.Namespace, values{
		"mode": "load-balancer", "image": values{"repository": "registry.example.com/millwright"},
		"loadBalancer": values{"host": "clusters.example.com", "namespace": i.Namespace, "firstPort": first, "ports": 5, "extraArgs": []any{"--max-ports-per-namespace=2"}},
	})
	deployments := apply(t, i.Cluster, all)
	spec := deployments[0].Spec.Template.Spec
	kubeconfig := i.kubeconfig(spec.ServiceAccountName)
	addresses := []string{"127.0.0.2", "127.0.0.3"}
	one := i.startBalancer(addresses[0], spec.Containers[0], kubeconfig)
	i.startBalancer(addresses[1], spec.Containers[0], kubeconfig)

	port := i.endpoint(i.createCluster("a"))
	if port < first || port >= first+5 {
		t.Errorf("the port is %d", port)
	}
	for _, address := range addresses {
		i.listens(address, port)
	}
	one.Stop()
	if other := i.endpoint(i.createCluster("b")); other == port {
		t.Errorf("both have port %d", port)
	}
	refused := i.createCluster("c")
	i.eventually(func(g gomega.Gomega) {
		g.Expect(i.Client.Get(t.Context(), client.ObjectKeyFromObject(refused), refused)).To(gomega.Succeed())
		g.Expect(refused.Status.Conditions).To(gomega.ContainElement(gomega.HaveField("Reason", infrav1.ReasonTooManyInNamespace)))
	})
	i.listens(addresses[1], port)
}

// startBalancer starts a replica with an address that replaces that of its Pod.
func (i *installation) startBalancer(address string, container corev1.Container, kubeconfig string) *program.Process {
	i.t.Helper()
	port, err := i.ControlPlane.PortFor(i.Namespace+"-"+address, 0)
	must(i.t, err)
	inside := strings.NewReplacer("$(POD_NAMESPACE)", i.Namespace, "$(POD_IP)", address, "--health-address=:10272", fmt.Sprintf("--health-address=127.0.0.1:%d", port))
	args := []string{container.Command[len(container.Command)-1], "--kubeconfig=" + kubeconfig}
	for _, arg := range container.Args {
		args = append(args, inside.Replace(arg))
	}
	return i.startProbed("load-balancer", container, port, args)
}

// createCluster creates a Cluster whose MillwrightCluster requests the load balancer.
func (i *installation) createCluster(name string) *infrav1.MillwrightCluster {
	i.t.Helper()
	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"})
	cluster.SetNamespace(i.Namespace)
	cluster.SetName(name)
	must(i.t, unstructured.SetNestedStringMap(cluster.Object, map[string]string{"apiGroup": infrav1.GroupName, "kind": infrav1.MillwrightClusterKind, "name": name}, "spec", "infrastructureRef"))
	must(i.t, i.Client.Create(i.t.Context(), cluster))
	infra := &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: name}}
	infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: cluster.GetAPIVersion(), Kind: cluster.GetKind(), Name: name, UID: cluster.GetUID()}}
	infra.Spec.ControlPlaneLoadBalancer = &infrav1.ControlPlaneLoadBalancer{}
	must(i.t, i.Client.Create(i.t.Context(), infra))
	return infra
}

// endpoint waits for the port of a MillwrightCluster.
func (i *installation) endpoint(infra *infrav1.MillwrightCluster) int {
	i.t.Helper()
	i.eventually(func(g gomega.Gomega) {
		g.Expect(i.Client.Get(i.t.Context(), client.ObjectKeyFromObject(infra), infra)).To(gomega.Succeed())
		g.Expect(infra.Spec.ControlPlaneEndpoint).NotTo(gomega.BeNil())
	})
	if host := infra.Spec.ControlPlaneEndpoint.Host; host != "clusters.example.com" {
		i.t.Errorf("the host is %s", host)
	}
	return int(infra.Spec.ControlPlaneEndpoint.Port)
}

// listens waits until a port is open at an address.
func (i *installation) listens(address string, port int) {
	i.t.Helper()
	i.eventually(func(g gomega.Gomega) {
		conn, err := (&net.Dialer{}).DialContext(i.t.Context(), "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(conn.Close()).To(gomega.Succeed())
	})
}
