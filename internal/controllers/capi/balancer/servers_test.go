package balancer

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
)

// machineAt returns a control plane machine of Cluster a with an internal address.
func machineAt(name, address string, created time.Time) *infrav1.MillwrightMachine {
	machine := machineOf("a", name, infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: address})
	machine.CreationTimestamp = metav1.NewTime(created)
	return machine
}

// wantMessage checks a part of the message of the condition; "" means that there is no message.
func wantMessage(t *testing.T, infra *infrav1.MillwrightCluster, want string) {
	t.Helper()
	condition := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionLoadBalancerReady)
	if condition == nil || !strings.Contains(condition.Message, want) || want == "" && condition.Message != "" {
		t.Errorf("the condition is %+v, want the message %q", condition, want)
	}
}

// settleReady is like settle, after each server has been checked and is ready.
func (h *harness) settleReady(name string) *infrav1.MillwrightCluster {
	h.mu.Lock()
	h.health = loadbalancer.Ready
	h.mu.Unlock()
	h.settle(name)
	synctest.Wait()
	return h.settle(name)
}

// A load balancer checks and uses only a few machines of a Cluster, however many there are: the oldest ones.
func TestServers_AreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := clusterOf("a")
		for i := range 500 {
			address := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()
			created := time.Unix(int64(1000-i), 0) // the last one is the oldest
			objects = append(objects, machineAt(fmt.Sprintf("m%03d", i), address, created), machineAt(fmt.Sprintf("same%03d", i), "10.1.0.1", created))
		}
		h := newHarness(t, objects...)
		infra := h.settleReady("a")
		h.wantStatus(infra, at(100), infrav1.ReasonForwarding)
		wantMessage(t, infra, "501 addresses, and at most 32 of them are used")
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.dialed) != maxServers || !h.dialed["10.0.1.243:6443"] || !h.dialed["10.1.0.1:6443"] || h.dialed["10.0.0.0:6443"] {
			t.Errorf("%d servers were dialed, want the %d of the oldest machines", len(h.dialed), maxServers)
		}
	})
}

// Addresses at which no machine can be are not used, and do not take the place of others. The condition names one.
func TestServers_SpecialAddressesAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := clusterOf("a")
		for i, address := range []string{"127.0.0.1", "169.254.169.254", "fe80::1", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "fd00:ec2::254", "0.0.0.0"} {
			objects = append(objects, machineAt(fmt.Sprintf("m%d", i), address, time.Unix(1, 0)))
		}
		h := newHarness(t, objects...)
		infra := h.settleReady("a")
		h.wantStatus(infra, at(100), infrav1.ReasonNoHealthyMachine)
		wantMessage(t, infra, "MillwrightMachine m0 has the address 127.0.0.1, which is a loopback address")
		if err := h.client.Create(t.Context(), machineAt("good", "10.0.0.1", time.Unix(2, 0))); err != nil {
			t.Fatal(err)
		}
		infra = h.settleReady("a")
		h.wantStatus(infra, at(100), infrav1.ReasonForwarding)
		wantMessage(t, infra, "MillwrightMachine m0 has the address 127.0.0.1")
		h.mu.Lock()
		if len(h.dialed) != 1 || !h.dialed["10.0.0.1:6443"] {
			t.Errorf("dialed %v", h.dialed)
		}
		h.mu.Unlock()
		for i := range 7 {
			if err := h.client.Delete(t.Context(), machineOf("a", fmt.Sprintf("m%d", i))); client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
		}
		wantMessage(t, h.settle("a"), "")
	})
}
