package scenario

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/autoscaler"
	"github.com/millwright-dev/millwright/internal/ca"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// autoscaling has the provider that an autoscaler calls. The test acts as the autoscaler.
type autoscaling struct {
	*scenario
	autoscalerpb.CloudProviderClient
	provider *program.Process
	address  string
	trusted  *x509.CertPool
}

// newAutoscaling starts a manager, and the provider with the shipped roles.
func newAutoscaling(t *testing.T) *autoscaling {
	w := newScenario(t)
	w.manager("--resource-exhausted-retry", "1h")
	env.WriteKubeconfig(t, w.path("autoscaler-control"), w.NamedUserWith(t, "autoscaler", "config/rbac/autoscaler-provider-role.yaml"))
	env.WriteKubeconfig(t, w.path("autoscaler-target"), w.Target.NamedUserWith(t, "autoscaler", "config/rbac/autoscaler-provider-target-role.yaml"))
	port, err := w.ControlPlane.PortFor("autoscaler-of-"+w.Namespace, 0)
	if err != nil {
		t.Fatal(err)
	}
	a := &autoscaling{scenario: w, address: fmt.Sprintf("127.0.0.1:%d", port), trusted: x509.NewCertPool()}
	authority, err := ca.New(x509.Certificate{Subject: pkix.Name{CommonName: "autoscaler"}, KeyUsage: x509.KeyUsageCertSign}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a.trusted.AddCert(authority.Cert)
	a.write("ca.crt", authority.CertPEM())
	server := a.certificate(authority, x509.ExtKeyUsageServerAuth)
	a.write("tls.crt", server.CertPEM())
	a.write("tls.key", server.KeyPEM())
	a.provider = millwright(t, "autoscaler-provider", "--namespace", w.Namespace, "--listen", a.address,
		"--control-kubeconfig", w.path("autoscaler-control"), "--target-kubeconfig", w.path("autoscaler-target"),
		"--tls-cert-file", a.file("tls.crt"), "--tls-private-key-file", a.file("tls.key"), "--client-ca-file", a.file("ca.crt"))
	own := a.certificate(authority, x509.ExtKeyUsageClientAuth)
	a.CloudProviderClient = a.connect(tls.Certificate{Certificate: [][]byte{own.Cert.Raw}, PrivateKey: own.Key})
	return a
}

func (a *autoscaling) file(name string) string { return filepath.Join(a.dir, name) }

func (a *autoscaling) write(name string, content []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), content, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *autoscaling) certificate(authority ca.Pair, usage x509.ExtKeyUsage) ca.Pair {
	a.t.Helper()
	key, err := ca.NewKey()
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := authority.Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: "one"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}, key.Public())
	if err != nil {
		a.t.Fatal(err)
	}
	return ca.Pair{Cert: cert, Key: key}
}

// connect connects with these certificates. Calls wait until the server is listening.
func (a *autoscaling) connect(own ...tls.Certificate) autoscalerpb.CloudProviderClient {
	a.t.Helper()
	conn, err := grpc.NewClient(a.address, grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: a.trusted, Certificates: own})))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = conn.Close() })
	return autoscalerpb.NewCloudProviderClient(conn)
}

// group creates a pool without Machines that may have up to max of them.
func (a *autoscaling) group(name, providerSpec, most string) *v1alpha1.MachineDeployment {
	a.t.Helper()
	made := class(a.Namespace, name, providerSpec)
	made.NodeTemplate = &v1alpha1.NodeTemplate{
		InstanceType: "small", Region: "here", Zone: "here-1",
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"), "gpu": resource.MustParse("0")},
	}
	deployment := deploymentOf(a.Namespace, name, 0)
	deployment.Annotations = map[string]string{autoscaler.AnnotationMaxSize: most}
	a.create(secret(a.Namespace, name), made, deployment)
	return deployment
}

// grow requests more nodes, and checks the response and the size after it.
func (a *autoscaling) grow(group string, delta int32, code codes.Code, size int32) {
	a.t.Helper()
	_, err := a.NodeGroupIncreaseSize(a.t.Context(), &autoscalerpb.NodeGroupIncreaseSizeRequest{Id: group, Delta: delta})
	a.succeeded(group, err, code, size)
}

// remove deletes nodes by name, and checks the response and the size after it.
func (a *autoscaling) remove(group string, code codes.Code, size int32, nodes ...*autoscalerpb.ExternalGrpcNode) {
	a.t.Helper()
	_, err := a.NodeGroupDeleteNodes(a.t.Context(), &autoscalerpb.NodeGroupDeleteNodesRequest{Id: group, Nodes: nodes})
	a.succeeded(group, err, code, size)
}

func (a *autoscaling) succeeded(group string, err error, code codes.Code, size int32) {
	a.t.Helper()
	if status.Code(err) != code {
		a.t.Fatalf("group %s: %v, want %v", group, err, code)
	}
	if got, err := a.NodeGroupTargetSize(a.t.Context(), &autoscalerpb.NodeGroupTargetSizeRequest{Id: group}); err != nil || got.GetTargetSize() != size {
		a.t.Fatalf("group %s has the size %d, want %d: %v", group, got.GetTargetSize(), size, err)
	}
}

// instances waits until a group has that many instances in a state, and returns them.
func (a *autoscaling) instances(group string, want int, state autoscalerpb.InstanceStatus_InstanceState, holds func(*autoscalerpb.Instance) bool) []*autoscalerpb.Instance {
	a.t.Helper()
	var found []*autoscalerpb.Instance
	a.eventually(func(g gomega.Gomega) {
		all, err := a.NodeGroupNodes(a.t.Context(), &autoscalerpb.NodeGroupNodesRequest{Id: group})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		found = slices.DeleteFunc(slices.Clone(all.GetInstances()), func(i *autoscalerpb.Instance) bool {
			return i.GetStatus().GetInstanceState() != state || !holds(i)
		})
		g.Expect(found).To(gomega.HaveLen(want), "of %v", all.GetInstances())
	})
	return found
}

// nodes waits until a group has that many running instances, each with a node of the group, and returns the
// nodes.
func (a *autoscaling) nodes(group string, want int) []*autoscalerpb.ExternalGrpcNode {
	a.t.Helper()
	instances := a.instances(group, want, autoscalerpb.InstanceStatus_INSTANCE_STATE_RUNNING, func(i *autoscalerpb.Instance) bool {
		return !strings.HasPrefix(i.GetId(), "requested:")
	})
	var nodes []*autoscalerpb.ExternalGrpcNode
	for _, node := range a.nodesOf(a.t.Context(), gomega.NewWithT(a.t), group) {
		known := slices.ContainsFunc(instances, func(i *autoscalerpb.Instance) bool { return i.GetId() == node.Spec.ProviderID })
		asked := &autoscalerpb.ExternalGrpcNode{Name: node.Name, ProviderId: node.Spec.ProviderID}
		of, err := a.NodeGroupForNode(a.t.Context(), &autoscalerpb.NodeGroupForNodeRequest{Node: asked})
		if err != nil || of.GetNodeGroup().GetId() != group || !known {
			a.t.Errorf("node %s is in %v, among the instances: %v, %v", node.Name, of, known, err)
		}
		nodes = append(nodes, asked)
	}
	if len(nodes) < want {
		a.t.Fatalf("%d nodes, want %d", len(nodes), want)
	}
	return nodes
}

// TestAutoscaler_ScalesFromZero is the lifecycle of a group whose provider has capacity for two, as the autoscaler
// observes it.
func TestAutoscaler_ScalesFromZero(t *testing.T) {
	tier.All(t)
	a := newAutoscaling(t)
	pool := a.Namespace // other tests have nodes in the same cluster
	if err := a.cloud.SetZones("narrow"); err != nil {
		t.Fatal(err)
	}
	a.group(pool, `{"zone": "narrow", "zoneCapacity": 2}`, "3")
	a.pool("unscaled", 0, `{}`)
	a.eventually(func(g gomega.Gomega) {
		groups, err := a.NodeGroups(t.Context(), &autoscalerpb.NodeGroupsRequest{})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(groups.GetNodeGroups()).To(gomega.HaveLen(1), "a deployment without bounds is not a node group")
		g.Expect(groups.GetNodeGroups()[0].GetMaxSize()).To(gomega.BeEquivalentTo(3))
	})
	a.isLikeItsTemplate(pool)

	a.grow(pool, 2, codes.OK, 2)
	a.nodes(pool, 2)
	a.grow(pool, 2, codes.FailedPrecondition, 2) // above its maximum

	a.grow(pool, 1, codes.OK, 3) // the zone has no capacity
	failed := a.instances(pool, 1, autoscalerpb.InstanceStatus_INSTANCE_STATE_CREATING, func(i *autoscalerpb.Instance) bool {
		return i.GetStatus().GetErrorInfo().GetErrorCode() == "ResourceExhausted" && i.GetStatus().GetErrorInfo().GetInstanceErrorClass() == 1
	})[0]
	a.remove(pool, codes.OK, 2, &autoscalerpb.ExternalGrpcNode{Name: failed.GetId(), ProviderId: failed.GetId()})
	a.eventually(func(g gomega.Gomega) { // and those with a node are kept
		machines := &v1alpha1.MachineList{}
		g.Expect(a.Client.List(t.Context(), machines, client.InNamespace(a.Namespace))).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.HaveLen(2))
	})
	both := a.nodes(pool, 2)

	a.remove(pool, codes.OK, 1, both[1])
	_, err := a.NodeGroupDeleteNodes(t.Context(), &autoscalerpb.NodeGroupDeleteNodesRequest{Id: pool, Nodes: both[1:2]})
	if status.Code(err) == codes.NotFound { // it is gone already
		err = nil
	}
	a.succeeded(pool, err, codes.OK, 1) // a duplicate counts once
	if left := a.onlyNode(pool); left != both[0].GetName() {
		t.Errorf("%s was deleted, and %s was named", both[0].GetName(), both[1].GetName())
	}
	a.remove(pool, codes.OK, 0, both[0])
	a.eventually(func(g gomega.Gomega) { // to zero
		g.Expect(a.nodesOf(t.Context(), g, pool)).To(gomega.BeEmpty())
	})
	a.remove(pool, codes.NotFound, 0, &autoscalerpb.ExternalGrpcNode{Name: "stranger", ProviderId: "stranger"})
}

// onlyNode waits until a pool has one node, and returns its name.
func (a *autoscaling) onlyNode(pool string) (name string) {
	a.t.Helper()
	a.eventually(func(g gomega.Gomega) {
		nodes := a.nodesOf(a.t.Context(), g, pool)
		g.Expect(nodes).To(gomega.HaveLen(1))
		name = nodes[0].Name
	})
	return name
}

// isLikeItsTemplate checks the template of a new node of a group.
func (a *autoscaling) isLikeItsTemplate(group string) {
	a.t.Helper()
	info, err := a.NodeGroupTemplateNodeInfo(a.t.Context(), &autoscalerpb.NodeGroupTemplateNodeInfoRequest{Id: group})
	if err != nil {
		a.t.Fatal(err)
	}
	for _, encoded := range [][]byte{info.GetNodeBytes(), info.GetNodeInfo()} { // of both versions of the protocol
		node := &corev1.Node{}
		if err := node.Unmarshal(encoded); err != nil {
			a.t.Fatal(err)
		}
		if node.Labels["pool"] != group || len(node.Spec.Taints) != 1 || node.Status.Allocatable.Memory().String() != "4Gi" || node.Labels[corev1.LabelTopologyZone] != "here-1" {
			a.t.Errorf("a new node is like %+v", node)
		}
	}
}

// TestAutoscaler_RequiresCertificate checks that clients without a certificate are rejected. A pending call gets its
// response before the provider exits, which it does without an error.
func TestAutoscaler_RequiresCertificate(t *testing.T) {
	tier.All(t)
	a := newAutoscaling(t)
	if _, err := a.Refresh(t.Context(), &autoscalerpb.RefreshRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := a.PricingNodePrice(t.Context(), &autoscalerpb.PricingNodePriceRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("prices: %v", err)
	}
	_, err = a.connect().Refresh(t.Context(), &autoscalerpb.RefreshRequest{}, grpc.WaitForReady(false))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate: %v", err)
	}
	if err := syscall.Kill(a.provider.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-a.provider.Done()
	if code := a.provider.ExitCode(); code != 0 {
		t.Errorf("it ended with status %d", code)
	}
}
