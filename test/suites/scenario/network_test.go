package scenario

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// surging creates a MachineDeployment of four Machines of the class "v1" that is updated one machine at a time.
// Its nodes are identified by its name.
func (w *scenario) surging(name string) *v1alpha1.MachineDeployment {
	w.t.Helper()
	const joining = `{"latency":"200ms","joinDelay":"1s"}`
	w.create(secret(w.Namespace, "v1"), class(w.Namespace, "v1", joining), class(w.Namespace, "v2", joining))
	w.patch(class(w.Namespace, "v2", ""), `{"secretRef":{"name":"v1"}}`)
	deployment := deploymentOf(w.Namespace, name, 4)
	deployment.Spec.Template.Spec.Class.Name = "v1"
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type:          v1alpha1.RollingUpdateMachineDeploymentStrategyType,
		RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxUnavailable: &none, MaxSurge: &one}},
	}
	w.create(deployment)
	return deployment
}

// inBounds checks that a MachineDeployment has its Machines and at most one more, and returns how many have the
// class "v2".
func (w *scenario) inBounds(g gomega.Gomega) int {
	machines := &v1alpha1.MachineList{}
	g.Expect(w.Client.List(w.t.Context(), machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
	running, updated := 0, 0
	for _, machine := range machines.Items {
		if machine.DeletionTimestamp.IsZero() && machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
			running++
		}
		if machine.Spec.Class.Name == "v2" {
			updated++
		}
	}
	if running < 4 || len(machines.Items) > 5 {
		w.t.Errorf("%d machines exist, of which %d are running", len(machines.Items), running)
	}
	return updated
}

// TestManager_LeaderIsPartitioned partitions the leader, in its own network namespace, from both clusters in the middle of a
// rollout, for longer than its lease lasts. Packets are dropped, and no connection is reset.
func TestManager_LeaderIsPartitioned(t *testing.T) {
	tier.All(t)
	for name, cut := range map[string]struct {
		fault     string
		off, back func(*netns)
	}{
		"link": {
			"The leader's network link is down",
			func(n *netns) { n.ip("link", "set", n.name, "down") },
			func(n *netns) { n.ip("link", "set", n.name, "up") },
		},
		"loss": {
			"All packets from the leader are lost",
			func(n *netns) {
				n.ip("-n", n.name, "neigh", "replace", n.here, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
			},
			func(n *netns) { n.ip("-n", n.name, "neigh", "del", n.here, "dev", "eth0") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			apart := newNetns(t)
			w := newScenario(t)
			t.Attr("fault", cut.fault+" during a rollout, for longer than the lease duration")
			_, control := w.through("control", apart.here)
			_, target := w.through("target", apart.here)
			deployment := w.surging("cut-" + apart.name)
			short := []string{"--leader-elect-lease-duration", "6s", "--leader-elect-renew-deadline", "4s", "--leader-elect-retry-period", "500ms"}
			leader := apart.start(append(w.managerArgs(), append(short, "--control-kubeconfig", control, "--target-kubeconfig", target)...)...)
			w.leads(leader)
			other := w.longLeases() // it leads until the end, however slow this machine is
			w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })

			w.patch(deployment, `{"spec":{"template":{"spec":{"class":{"name":"v2"}}}}}`)
			w.eventually(func(g gomega.Gomega) { g.Expect(w.inBounds(g)).To(gomega.BeNumerically(">=", 2)) })
			began := time.Now()
			cut.off(apart)
			ended := make(chan time.Duration, 1)
			go func() {
				<-leader.Done()
				ended <- time.Since(began)
			}()
			w.leads(other)
			taken := time.Since(began)
			var gone time.Duration
			select {
			case gone = <-ended:
			case <-time.After(time.Minute):
				t.Fatal("the leader does not end")
			}
			if leader.ExitCode() == 0 {
				t.Error("the exit status of the leader that lost its lease is 0")
			}
			cut.back(apart)
			again := apart.start(append(w.managerArgs(), "--control-kubeconfig", control, "--target-kubeconfig", target)...)
			w.eventually(func(g gomega.Gomega) {
				g.Expect(w.inBounds(g)).To(gomega.Equal(4))
				w.settled(t.Context(), g, deployment)
			})
			w.oneVMEach(4)
			again.Stop()
			select {
			case <-other.Done():
				t.Error("the second leader has ended")
			default:
			}
			t.Attr("outcome", fmt.Sprintf("With a lease of 6 s, the leader exits after %.0f s, and another manager leads after %.0f s; the number of Machines "+
				"stays between the desired number and one more, and no Machine has two VMs; the rollout completes", gone.Seconds(), taken.Seconds()))
		})
	}
}

// mostSilent is the maximum time until a silent connection is closed. client-go sends a ping after 30 seconds,
// and waits 15 seconds for the response. Nothing else would ever close it; the remaining time is for slow
// machines.
const mostSilent = env.WaitTimeout

// TestManager_ConnectionsAreSilent makes connections of the leader silent, without closing them. For the target cluster,
// watches and requests recover within a minute; for the control cluster, the manager loses its leadership.
func TestManager_ConnectionsAreSilent(t *testing.T) {
	tier.All(t)
	t.Run("target", func(t *testing.T) {
		w := newScenario(t)
		t.Attr("fault", "Connections to the target cluster become silent without being closed")
		l, target := w.through("target", "127.0.0.1")
		deployment := w.surging("silent-target")
		manager := w.manager("--target-kubeconfig", target)
		w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
		l.silence()
		began := time.Now()
		w.patch(deployment, `{"spec":{"template":{"spec":{"class":{"name":"v2"}}}}}`)
		stalled := time.Duration(0)
		w.eventually(func(g gomega.Gomega) {
			updated := w.inBounds(g)
			if nodes := w.nodesOf(t.Context(), g, deployment.Name); stalled == 0 && len(nodes) > 4 {
				stalled = time.Since(began)
			}
			g.Expect(updated).To(gomega.Equal(4))
			w.settled(t.Context(), g, deployment)
		})
		w.oneVMEach(4)
		if stalled == 0 || stalled > mostSilent {
			t.Errorf("the first node joined after %v, want at most %v", stalled, mostSilent)
		}
		manager.Stop()
		t.Attr("outcome", fmt.Sprintf("The manager remains the leader; the first Node joins after %.0f s, and the rollout completes after %.0f s", stalled.Seconds(), time.Since(began).Seconds()))
	})
	t.Run("control", func(t *testing.T) {
		w := newScenario(t)
		t.Attr("fault", "Connections to the control cluster become silent without being closed, and the manager is restarted when it exits")
		l, control := w.through("control", "127.0.0.1")
		deployment := w.surging("silent-control")
		manager := w.manager("--control-kubeconfig", control)
		w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
		w.patch(deployment, `{"spec":{"template":{"spec":{"class":{"name":"v2"}}}}}`)
		w.eventually(func(g gomega.Gomega) { g.Expect(w.inBounds(g)).To(gomega.BeNumerically(">=", 1)) })
		l.silence()
		began := time.Now()
		select {
		case <-manager.Done():
		case <-time.After(mostSilent):
			t.Fatal("the manager neither exits nor continues")
		}
		ended := time.Since(began)
		again := w.manager("--control-kubeconfig", control)
		w.eventually(func(g gomega.Gomega) {
			g.Expect(w.inBounds(g)).To(gomega.Equal(4))
			w.settled(t.Context(), g, deployment)
		})
		w.oneVMEach(4)
		again.Stop()
		t.Attr("outcome", fmt.Sprintf("The manager exits after %.0f s because it cannot renew its lease; the next manager completes the rollout after %.0f s", ended.Seconds(), time.Since(began).Seconds()))
	})
}
