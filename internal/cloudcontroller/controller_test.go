package cloudcontroller

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cloud"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/serverfault"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) { env.Main(m) }

const (
	firstUUID  = "0b4c3f6e-1111-4111-8111-000000000001"
	secondUUID = "0b4c3f6e-2222-4222-8222-000000000002"
)

// cloudTest has two clusters: the infrastructure cluster, and a workload cluster, with the shipped roles.
type cloudTest struct {
	*env.Env
	t                        *testing.T
	infrastructure, workload client.Client
	usedThere, usedHere      env.Used
	// away makes the API server of the infrastructure cluster unavailable to cloud controllers.
	away    atomic.Bool
	refused *serverfault.Fault
	cfg     Config
}

func newCloudTest(t *testing.T) *cloudTest {
	t.Helper()
	c := &cloudTest{Env: env.NewPair(t, env.WithOwn()), t: t}
	for at, admin := range map[*client.Client]*env.Cluster{&c.infrastructure: c.Cluster, &c.workload: c.Target} {
		var err error
		if *at, err = client.New(admin.Admin, client.Options{Scheme: manager.Scheme()}); err != nil {
			t.Fatal(err)
		}
	}
	there := c.UserWith(t, "config/rbac/cloud-controller-infrastructure-role.yaml", "config/rbac/cloud-controller-hosts-role.yaml")
	here := c.Target.UserWith(t, "config/rbac/cloud-controller-role.yaml")
	c.usedThere.Record(there)
	c.usedHere.Record(here)
	c.refused = &serverfault.Fault{
		Every:    1,
		Concerns: func(*http.Request) bool { return c.away.Load() },
		Respond:  func(http.ResponseWriter, *http.Request, http.HandlerFunc) { panic(http.ErrAbortHandler) },
	}
	c.cfg = Config{
		Workload: here, Infrastructure: c.refused.Before(t, there), Namespace: c.Namespace, Cluster: "demo",
		Election:      manager.Election{Enabled: true, Namespace: c.Target.Namespace, LeaseDuration: 6 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: 500 * time.Millisecond},
		MonitorPeriod: 200 * time.Millisecond, Log: testr.New(t),
	}
	return c
}

// start runs a cloud controller until stop is called.
func (c *cloudTest) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, c.cfg) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("the cloud controller returned %v", err)
		}
	}
	c.t.Cleanup(stop)
	return stop
}

func (c *cloudTest) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cloudTest) eventually(check func(gomega.Gomega)) {
	c.t.Helper()
	gomega.NewWithT(c.t).Eventually(check).WithTimeout(env.WaitTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// refuse makes the API server of the infrastructure cluster unavailable while it calls change, and afterwards until the
// cloud controller has failed to reach it several times. The returned function makes it available again.
func (c *cloudTest) refuse(change func()) (end func()) {
	c.t.Helper()
	c.away.Store(true)
	change()
	before, _ := c.refused.Counts()
	c.eventually(func(g gomega.Gomega) {
		now, _ := c.refused.Counts()
		g.Expect(now).To(gomega.BeNumerically(">=", before+3))
	})
	return func() { c.away.Store(false) }
}

// createVM creates a running VM of the cluster.
func (c *cloudTest) createVM(name, uuid string) *vmv1alpha1.VirtualMachine {
	c.t.Helper()
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Labels: map[string]string{cloud.LabelCluster: "demo"}}}
	vm.Spec.UUID, vm.Spec.Ports = uuid, []vmv1alpha1.Port{
		{Name: "node-port-30001", Port: 30001}, {Name: "node-port-30002", Port: 30002}, {Name: "node-udp-30002", Port: 30002, Protocol: corev1.ProtocolUDP},
	}
	c.must(c.infrastructure.Create(c.t.Context(), vm))
	vm.Status.Phase, vm.Status.NodeName, vm.Status.Addresses = vmv1alpha1.PhaseRunning, "host", []string{"10.77.0.16"}
	c.must(c.infrastructure.Status().Update(c.t.Context(), vm))
	return vm
}

// createNode creates a Node as a kubelet with an external cloud provider does.
func (c *cloudTest) createNode(name, providerID string) *corev1.Node {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Spec.ProviderID = providerID
	node.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	c.must(c.workload.Create(c.t.Context(), node))
	return node
}

// setReady sets the condition Ready of a Node.
func (c *cloudTest) setReady(name string, status corev1.ConditionStatus) {
	c.t.Helper()
	node := &corev1.Node{}
	c.must(c.workload.Get(c.t.Context(), client.ObjectKey{Name: name}, node))
	before := node.DeepCopy()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	c.must(c.workload.Status().Patch(c.t.Context(), node, client.StrategicMergeFrom(before)))
}

// expectNode waits until a Node is initialized with the provider ID of a VM.
func (c *cloudTest) expectNode(name, uuid string) *corev1.Node {
	c.t.Helper()
	node := &corev1.Node{}
	c.eventually(func(g gomega.Gomega) {
		g.Expect(c.workload.Get(c.t.Context(), client.ObjectKey{Name: name}, node)).To(gomega.Succeed())
		g.Expect(taints(node)).NotTo(gomega.ContainElement(cloudproviderapi.TaintExternalCloudProvider))
		g.Expect(node.Spec.ProviderID).To(gomega.Equal("millwright:///" + c.Namespace + "/" + uuid))
		g.Expect(node.Status.Addresses).To(gomega.ContainElements(
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.77.0.16"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name}))
	})
	return node
}

func taints(node *corev1.Node) (keys []string) {
	for _, taint := range node.Spec.Taints {
		keys = append(keys, taint.Key)
	}
	return keys
}

// expectGone waits until an object does not exist.
func (c *cloudTest) expectGone(from client.Client, object client.Object) {
	c.t.Helper()
	c.eventually(func(g gomega.Gomega) {
		err := from.Get(c.t.Context(), client.ObjectKeyFromObject(object), object)
		g.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue(), "%v", err)
	})
}

// TestCloudController_WaitsForInfrastructure checks that a cloud controller whose infrastructure cluster is not available
// waits, and reports why.
func TestCloudController_WaitsForInfrastructure(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close() // nothing listens there now
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logged := ""
	log := funcr.New(func(_, line string) { logged = line; cancel() }, funcr.Options{})
	_, err := connect(ctx, Config{Infrastructure: &rest.Config{Host: server.URL}, Namespace: "vms", Cluster: "demo", Log: log})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	if !strings.Contains(logged, "waiting for the API server of the infrastructure cluster") || !strings.Contains(logged, "connection refused") {
		t.Errorf("got log %q", logged)
	}
}

// TestCloudController is the life of a cluster. It uses every permission of the roles.
func TestCloudController(t *testing.T) {
	tier.All(t)
	c := newCloudTest(t)
	stop := c.start()
	c.lifeOfNode()
	c.lifeOfService()
	c.failover(stop)
	c.usedHere.Check(t, nil, "config/rbac/cloud-controller-role.yaml")
	c.usedThere.Check(t, nil, "config/rbac/cloud-controller-infrastructure-role.yaml", "config/rbac/cloud-controller-hosts-role.yaml")
}

func (c *cloudTest) lifeOfNode() {
	ctx := c.t.Context()
	host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host", Labels: map[string]string{corev1.LabelTopologyZone: "zone-1"}}}
	c.must(c.infrastructure.Create(ctx, host))
	foreign := c.createNode("foreign", "other://foreign")
	vm := c.createVM("a", firstUUID)
	c.createNode("a", "")
	node := c.expectNode("a", firstUUID)
	if node.Labels[corev1.LabelTopologyZone] != "zone-1" {
		c.t.Errorf("got labels %v", node.Labels)
	}

	vm.Status.Phase = vmv1alpha1.PhaseStopped
	c.must(c.infrastructure.Status().Update(ctx, vm))
	c.setReady("a", corev1.ConditionFalse)
	shutDown := func(matcher func(any) gomega.OmegaMatcher) {
		c.eventually(func(g gomega.Gomega) {
			g.Expect(c.workload.Get(ctx, client.ObjectKeyFromObject(node), node)).To(gomega.Succeed())
			g.Expect(taints(node)).To(matcher(cloudproviderapi.TaintNodeShutdown))
		})
	}
	shutDown(func(key any) gomega.OmegaMatcher { return gomega.ContainElement(key) })
	vm.Status.Phase = vmv1alpha1.PhaseRunning
	c.must(c.infrastructure.Status().Update(ctx, vm))
	c.setReady("a", corev1.ConditionTrue)
	shutDown(func(key any) gomega.OmegaMatcher { return gomega.Not(gomega.ContainElement(key)) })

	// The VM is replaced by another one with its name. While the API server cannot confirm this, the Node stays.
	end := c.refuse(func() {
		c.must(c.infrastructure.Delete(ctx, vm))
		c.createVM("a", secondUUID)
		c.setReady("a", corev1.ConditionUnknown)
	})
	c.must(c.workload.Get(ctx, client.ObjectKeyFromObject(node), node))
	end()
	c.expectGone(c.workload, node)
	c.createNode("a", "")
	c.expectNode("a", secondUUID)

	now := &corev1.Node{}
	c.must(c.workload.Get(ctx, client.ObjectKeyFromObject(foreign), now))
	if now.ResourceVersion != foreign.ResourceVersion {
		c.t.Errorf("a Node of another provider was changed: %+v", now)
	}
}

func (c *cloudTest) lifeOfService() {
	ctx := c.t.Context()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: c.Target.Namespace, Name: "web"}}
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30001}}}
	c.must(c.workload.Create(ctx, service))
	loadBalancer := c.expectLoadBalancer("node-port-30001")

	loadBalancer.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
	c.must(c.infrastructure.Status().Update(ctx, loadBalancer))
	c.eventually(func(g gomega.Gomega) {
		g.Expect(c.workload.Get(ctx, client.ObjectKeyFromObject(service), service)).To(gomega.Succeed())
		g.Expect(service.Status.LoadBalancer.Ingress).To(gomega.HaveLen(1))
		g.Expect(service.Status.LoadBalancer.Ingress[0].IP).To(gomega.Equal("198.51.100.7"))
		g.Expect(service.Finalizers).To(gomega.ContainElement("service.kubernetes.io/load-balancer-cleanup"))
	})

	service.Spec.Ports[0].NodePort = 30002
	c.must(c.workload.Update(ctx, service))
	c.expectLoadBalancer("node-port-30002")
	service.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	c.must(c.workload.Update(ctx, service))
	loadBalancer = c.expectLoadBalancer("node-udp-30002")
	c.must(c.infrastructure.Delete(ctx, loadBalancer)) // by an administrator
	c.eventually(func(g gomega.Gomega) {
		again := &corev1.Service{}
		g.Expect(c.infrastructure.Get(ctx, client.ObjectKeyFromObject(loadBalancer), again)).To(gomega.Succeed())
		g.Expect(again.UID).NotTo(gomega.Equal(loadBalancer.UID))
	})

	end := c.refuse(func() { c.must(c.workload.Delete(ctx, service)) })
	c.must(c.workload.Get(ctx, client.ObjectKeyFromObject(service), service))
	c.must(c.infrastructure.Get(ctx, client.ObjectKeyFromObject(loadBalancer), loadBalancer))
	end()
	c.expectGone(c.workload, service)
	c.expectGone(c.infrastructure, loadBalancer)
}

// expectLoadBalancer waits for the only Service in the infrastructure cluster of the cluster, and its target port.
func (c *cloudTest) expectLoadBalancer(port string) *corev1.Service {
	c.t.Helper()
	loadBalancers := &corev1.ServiceList{}
	c.eventually(func(g gomega.Gomega) {
		g.Expect(c.infrastructure.List(c.t.Context(), loadBalancers, client.InNamespace(c.Namespace), client.MatchingLabels{cloud.LabelCluster: "demo"})).To(gomega.Succeed())
		g.Expect(loadBalancers.Items).To(gomega.HaveLen(1))
		g.Expect(loadBalancers.Items[0].Spec.Ports[0].TargetPort.StrVal).To(gomega.Equal(port))
	})
	return &loadBalancers.Items[0]
}

// failover stops the leader. A second cloud controller, which has stood by, continues.
func (c *cloudTest) failover(stop func()) {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: c.Target.Namespace, Name: Lease}
	c.must(c.workload.Get(c.t.Context(), key, lease))
	first := *lease.Spec.HolderIdentity
	c.start()
	stop()
	c.createVM("b", "0b4c3f6e-3333-4333-8333-000000000003")
	c.createNode("b", "")
	c.expectNode("b", "0b4c3f6e-3333-4333-8333-000000000003")
	c.must(c.workload.Get(c.t.Context(), key, lease))
	if *lease.Spec.HolderIdentity == first {
		c.t.Error("the lease has the holder that was stopped")
	}
}
