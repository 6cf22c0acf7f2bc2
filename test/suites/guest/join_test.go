package guest

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// cluster is a control plane that nodes can join, and a token for it.
type cluster struct {
	*env.Env
	server string // as guests reach it
	port   uint16
	token  string
	node   string
}

func newCluster(t *testing.T, id string) *cluster {
	t.Helper()
	e := env.New(t, env.WithControllerManager())
	must(t, e.ControlPlane.AllowJoining(t.Context()))
	must(t, approveAll(t, e))
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": "0123456789abcdef",
			"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		},
	}
	must(t, e.Client.Create(t.Context(), secret))
	address, err := url.Parse(e.Admin.Host)
	must(t, err)
	port, err := strconv.ParseUint(address.Port(), 10, 16)
	must(t, err)
	return &cluster{
		port: uint16(port),
		Env:  e, server: "https://10.0.2.2:" + address.Port(), token: id + ".0123456789abcdef", node: "vm-" + e.Namespace,
	}
}

// reachable lets the guest connect to the API server.
func (c *cluster) reachable(config qemu.Config) qemu.Config {
	config.Network.HostPorts = []uint16{c.port}
	return config
}

// approveAll makes the controller manager approve all nodes. There are no Machines, so the node of a token is
// unknown.
func approveAll(t *testing.T, e *env.Env) error {
	return client.IgnoreAlreadyExists(e.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "approve-all-nodes"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:bootstrappers"}},
	}))
}

// userData returns the guest's user data. Without a CA, the guest must discover that of the cluster.
func (c *cluster) userData(withAuthority bool) string {
	authority := ""
	if withAuthority {
		authority = "certificateAuthority: |\n  " + strings.ReplaceAll(strings.TrimSpace(string(c.Admin.CAData)), "\n", "\n  ") + "\n"
	}
	return fmt.Sprintf(`#millwright-guest
server: %s
%stoken: %s
nodeName: %s
providerID: millwright:///default/${uuid}
labels:
  example.com/pool: small
taints:
- {key: example.com/small, value: "true", effect: NoSchedule}
`, c.server, authority, c.token, c.node)
}

// awaitReady waits until the Node is Ready, and returns it.
func (c *cluster) awaitReady(t *testing.T) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		g.Expect(c.Client.Get(t.Context(), types.NamespacedName{Name: c.node}, node)).To(gomega.Succeed())
		g.Expect(isReady(node)).To(gomega.BeTrue())
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
	return node
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// TestGuest_JoinsByToken checks that a guest that discovers the CA by itself becomes a Ready Node with everything in its
// user data, and renews a Lease.
func TestGuest_JoinsByToken(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t, "aaaaaa")
	guest := boot(t, withSeed(t, c.reachable(direct(t)), c.userData(false)))
	guest.until("join: found the cluster's certificate authority")
	guest.until("node " + c.node + " is Ready")
	checkNode(t, c.awaitReady(t))

	lease := &coordinationv1.Lease{}
	first := renewal(t, c, lease, nil)
	if second := renewal(t, c, lease, &first); !second.After(first) {
		t.Errorf("lease renewed at %s after %s", second, first)
	}
	if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].Name != c.node {
		t.Errorf("owners of the lease = %v, want the node", lease.OwnerReferences)
	}
}

func checkNode(t *testing.T, node *corev1.Node) {
	t.Helper()
	if want := "millwright:///default/" + uuid; node.Spec.ProviderID != want {
		t.Errorf("provider ID = %q, want %q", node.Spec.ProviderID, want)
	}
	if node.Labels["example.com/pool"] != "small" {
		t.Errorf("labels = %v, want that of the user data", node.Labels)
	}
	taint := corev1.Taint{Key: "example.com/small", Value: "true", Effect: corev1.TaintEffectNoSchedule}
	if !hasTaint(node.Spec.Taints, taint) {
		t.Errorf("taints = %v, want %v", node.Spec.Taints, taint)
	}
	internal := ""
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			internal += a.Address
		}
	}
	if internal != address.String() {
		t.Errorf("internal addresses = %q, want %q", internal, address)
	}
	if node.Status.NodeInfo.SystemUUID != uuid || node.Status.NodeInfo.BootID == "" {
		t.Errorf("node info = %+v, want the UUID and a boot ID", node.Status.NodeInfo)
	}
}

func hasTaint(taints []corev1.Taint, want corev1.Taint) bool {
	for _, taint := range taints {
		if taint.MatchTaint(&want) && taint.Value == want.Value {
			return true
		}
	}
	return false
}

// renewal waits for the next renewal of the Lease.
func renewal(t *testing.T, c *cluster, lease *coordinationv1.Lease, before *time.Time) time.Time {
	t.Helper()
	key := types.NamespacedName{Namespace: corev1.NamespaceNodeLease, Name: c.node}
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		g.Expect(c.Client.Get(t.Context(), key, lease)).To(gomega.Succeed())
		g.Expect(lease.Spec.RenewTime).NotTo(gomega.BeNil())
		g.Expect(before == nil || !lease.Spec.RenewTime.Time.Equal(*before)).To(gomega.BeTrue())
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
	return lease.Spec.RenewTime.Time
}

// TestGuest_RejoinsWithoutToken checks that a guest that booted from its disk rejoins after a reset with the
// certificate on the disk, although its token is gone.
func TestGuest_RejoinsWithoutToken(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t, "bbbbbb")
	guest := boot(t, withSeed(t, c.reachable(fromDisk(t)), c.userData(true)))
	guest.until("node " + c.node + " is Ready")
	before := c.awaitReady(t).Status.NodeInfo.BootID

	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-bbbbbb"}}
	must(t, c.Client.Delete(t.Context(), token))
	must(t, guest.Reset(bounded(t)))
	guest.until("join: with the certificate on the disk")
	guest.until("node " + c.node + " is Ready")
	gomega.NewWithT(t).Eventually(func() string {
		return c.awaitReady(t).Status.NodeInfo.BootID
	}).WithTimeout(waitTimeout).ShouldNot(gomega.Equal(before))
	checkNode(t, c.awaitReady(t))
}

// TestInPlaceUpdate_NodeIsUpdated checks that when the node is drained for an in-place update, the guest restarts once and
// reports that.
func TestInPlaceUpdate_NodeIsUpdated(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t, "cccccc")
	guest := boot(t, withSeed(t, c.reachable(fromDisk(t)), c.userData(true)))
	guest.until("node " + c.node + " is Ready")
	node := c.awaitReady(t)
	before := node.Status.NodeInfo.BootID
	was := client.StrategicMergeFrom(node.DeepCopy()) // the guest writes the status, too
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
		Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: v1alpha1.ReadyForUpdate, LastTransitionTime: metav1.Now(),
	})
	must(t, c.Client.Status().Patch(t.Context(), node, was))
	guest.until("update: the node is drained, restarting")
	gomega.NewWithT(t).Eventually(func() string {
		must(t, c.Client.Get(t.Context(), types.NamespacedName{Name: c.node}, node))
		return node.Labels[v1alpha1.LabelKeyNodeUpdateResult]
	}).WithTimeout(waitTimeout).Should(gomega.Equal(v1alpha1.LabelValueNodeUpdateSuccessful))
	after := node.Status.NodeInfo.BootID
	if after == before {
		t.Error("it reports an update without a restart")
	}
	lease := &coordinationv1.Lease{}
	first := renewal(t, c, lease, nil)
	renewal(t, c, lease, &first)
	if now := c.awaitReady(t).Status.NodeInfo.BootID; now != after {
		t.Errorf("it restarts again: boot %s, then %s", after, now)
	}
}
