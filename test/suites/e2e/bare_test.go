package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// readyFactor is the permitted ratio of the time until a node is Ready to that with QEMU alone.
const readyFactor = 1.3

// TestFullGuest_JoinTimeAgainstBareQEMU creates nodes alternately from Machines, and from a QEMU that a user could have
// started for the same guest, and compares the median times until they are Ready.
func TestFullGuest_JoinTimeAgainstBareQEMU(t *testing.T) {
	tier.All(t)
	builtGuest(t, "guest-full")
	pairs, err := strconv.Atoi(os.Getenv("MILLWRIGHT_PAIRS"))
	if err != nil || pairs < 1 {
		t.Skip(`takes minutes for each pair; run "make bench-guests GUEST=full"`)
	}
	c := start(t)
	c.apply("pool.yaml", 0)
	if err := c.client.Create(t.Context(), bootstrapToken()); err != nil {
		t.Fatal(err)
	}
	var ours, alone []time.Duration
	for n := range pairs {
		t.Run("bare", func(t *testing.T) { alone = append(alone, c.in(t).readyBare(byte(30+n))) })
		t.Run("ours", func(t *testing.T) { ours = append(ours, c.in(t).readyMachine()) })
	}
	if len(ours) < pairs || len(alone) < pairs {
		return
	}
	us, bare := median(ours), median(alone)
	t.Logf("Ready after %v, with QEMU alone %v: %.2f times; budget %.1f times; all: %v and %v", us, bare, us.Seconds()/bare.Seconds(), readyFactor, ours, alone)
	if us.Seconds() > readyFactor*bare.Seconds() {
		t.Error("the time is over its budget")
	}
}

func median(all []time.Duration) time.Duration { return slices.Sorted(slices.Values(all))[len(all)/2] }

// readyMachine returns how long a new Machine takes until its node is Ready, and deletes the Machine.
func (c *cluster) readyMachine() time.Duration {
	c.t.Helper()
	began := time.Now()
	c.patch(&v1alpha1.MachineDeployment{}, "pool", `{"spec":{"replicas":1}}`)
	c.awaitNode(client.HasLabels{"example.org/pool"})
	took := time.Since(began).Round(100 * time.Millisecond)
	c.patch(&v1alpha1.MachineDeployment{}, "pool", `{"spec":{"replicas":0}}`)
	c.eventually(late, func(g gomega.Gomega) { g.Expect(c.machines(g)).To(gomega.BeEmpty()) })
	return took
}

// readyBare is like readyMachine with QEMU alone, on a network of its own. The time includes copying the disk.
func (c *cluster) readyBare(last byte) time.Duration {
	c.t.Helper()
	port, err := strconv.ParseUint(c.port(), 10, 16)
	if err != nil {
		c.t.Fatal(err)
	}
	name := fmt.Sprintf("bare-%d", last)
	b := &booted{
		machines: &machines{T: c.t, built: builtGuest(c.t, "guest-full"), dir: c.t.TempDir()},
		name:     name, uuid: fmt.Sprintf("6b0ff0b6-6a5f-4b8b-9c0a-0000000000%02x", last),
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	approved := make(chan struct{})
	go func() {
		defer close(approved)
		c.approve(ctx, name)
	}()
	defer func() {
		cancel()
		<-approved
		if err := c.client.Delete(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			c.t.Error(err)
		}
	}()
	began := time.Now()
	b.start(hardware{processors: 1, memoryMiB: 1024, card: &qemu.UserNetwork{
		MAC: net.HardwareAddr{2, 0, 10, 77, 0, last}, IPv4: netip.MustParsePrefix("10.77.0.0/16"), HostPorts: []uint16{uint16(port)},
	}}, strings.Join([]string{
		"#millwright-guest", "server: https://10.77.0.2:" + c.port(), "token: " + tokenID + "." + tokenSecret,
		"nodeName: " + name, "providerID: bare:///" + b.uuid, "labels: {bare: " + name + "}",
	}, "\n"))
	c.awaitNode(client.MatchingLabels{"bare": name})
	return time.Since(began).Round(100 * time.Millisecond)
}

// awaitNode waits until the only node with the labels is Ready.
func (c *cluster) awaitNode(labels client.ListOption) {
	c.t.Helper()
	gomega.NewWithT(c.t).Eventually(func(g gomega.Gomega) {
		nodes := &corev1.NodeList{}
		g.Expect(c.client.List(c.t.Context(), nodes, labels)).To(gomega.Succeed())
		g.Expect(nodes.Items).To(gomega.HaveLen(1))
		g.Expect(ready(&nodes.Items[0])).To(gomega.BeTrue(), readyCondition(&nodes.Items[0]).Message)
	}).WithTimeout(late).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// approve approves requests for the node's certificates manually, because the manager approves only those of
// Machines.
func (c *cluster) approve(ctx context.Context, node string) {
	_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		requests := &certificatesv1.CertificateSigningRequestList{}
		if err := c.client.List(ctx, requests); err != nil {
			return false, nil // retry
		}
		for i := range requests.Items {
			request := &requests.Items[i]
			if request.Spec.Username != "system:bootstrap:"+tokenID || len(request.Status.Conditions) > 0 {
				continue
			}
			request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
				Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Measured", Message: "The request of " + node + ".",
			}}
			_ = c.client.SubResource("approval").Update(ctx, request) // retried on failure
		}
		return false, nil
	})
}
