package sim_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver/sim"
)

func TestNode_ScriptedReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newTestDriver(t, sim.Config{Nodes: nodes}, nil)
		defer w.start()()
		w.mustCreate("m")
		synctest.Wait()
		set := func(ready corev1.ConditionStatus) {
			if n, err := w.Cloud().SetNodeReady("m", ready); n != 1 || err != nil {
				t.Fatalf("SetNodeReady: %d, %v", n, err)
			}
		}
		// The last of several calls at the same time takes effect.
		for range 10 {
			set(corev1.ConditionUnknown)
			set(corev1.ConditionFalse)
			set(corev1.ConditionTrue)
			synctest.Wait()
			wantReady(t, nodes, "m", corev1.ConditionTrue)
		}
	})
}

// TestNode_JoinsAfterRestart: nodes that had not joined when the process exited join in the next process, and nodes that had
// joined are not written again.
func TestNode_JoinsAfterRestart(t *testing.T) {
	for _, kind := range []string{"memory", "directory"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				nodes := newTarget()
				cloud := sim.NewCloud(sim.CloudOptions{})
				if kind == "directory" {
					cloud = openCloud(t, dir)
				}
				spec := object{"joinDelay": "1m"}
				w := newTestDriver(t, sim.Config{Cloud: cloud, Nodes: nodes}, spec)
				stop := w.start()
				w.mustCreate("early")
				after(time.Minute)
				w.mustCreate("late")
				after(30 * time.Second)
				stop()
				w.mustCreate("unattended")
				after(time.Hour)
				wantRequests(t, nodes, joined)

				if kind == "directory" {
					cloud = openCloud(t, dir)
				}
				w = newTestDriver(t, sim.Config{Cloud: cloud, Nodes: nodes}, spec)
				defer w.start()()
				synctest.Wait()
				wantRequests(t, nodes, map[string]int{"create node": 3, "patch node/status": 3})
				for _, name := range []string{"early", "late", "unattended"} {
					wantReady(t, nodes, name, corev1.ConditionTrue)
				}
				after(time.Hour)
				wantRequests(t, nodes, map[string]int{"create node": 3, "patch node/status": 3})
			})
		})
	}
}

func TestNode_JoinIsPlannedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newTestDriver(t, sim.Config{Nodes: nodes}, nil)
		defer w.start()()
		w.mustCreate("m")
		outdated := w.vms()[0]
		synctest.Wait()
		outdated.Node.Joined = false
		w.PlanJoin(outdated)
		synctest.Wait()
		wantRequests(t, nodes, joined)
	})
}

// TestNode_ContinuesAfterRestart: nodes that had joined continue to flap and to renew their Leases.
func TestNode_ContinuesAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		config := sim.Config{Cloud: sim.NewCloud(sim.CloudOptions{}), Nodes: nodes, HeartbeatInterval: 10 * time.Second}
		spec := object{"join": "flap", "flapInterval": "1m"}
		w := newTestDriver(t, config, spec)
		stop := w.start()
		w.mustCreate("m")
		after(time.Second)
		stop()
		before := nodes.counts()
		after(time.Hour)
		wantRequests(t, nodes, before)
		wantReady(t, nodes, "m", corev1.ConditionTrue)

		defer newTestDriver(t, config, spec).start()()
		after(time.Minute)
		wantReady(t, nodes, "m", corev1.ConditionFalse)
		if renewed := nodes.counts()["patch lease"] - before["patch lease"]; renewed != 7 {
			t.Errorf("got %d renewals in a minute, want 7", renewed)
		}
	})
}

func TestNode_RenewsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newTestDriver(t, sim.Config{Nodes: nodes, HeartbeatInterval: 10 * time.Second}, nil)
		defer w.start()()
		w.mustCreate("m")
		after(35 * time.Second)
		lease := &coordinationv1.Lease{}
		if err := nodes.Get(t.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: "m"}, lease); err != nil {
			t.Fatal(err)
		}
		if age := time.Since(lease.Spec.RenewTime.Time); age != 5*time.Second {
			t.Errorf("lease was renewed %s ago, want 5s", age)
		}
		if *lease.Spec.HolderIdentity != "m" || *lease.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("got lease %+v", lease.Spec)
		}
		wantRequests(t, nodes, map[string]int{"create node": 1, "patch node/status": 1, "create lease": 1, "patch lease": 4})
		w.mustRemove("m", "")
		after(time.Hour)
		if got := nodes.counts()["patch lease"]; got != 4 {
			t.Errorf("got %d renewals after the deletion, want none", got-4)
		}
	})
}

func TestNode_JoinsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, limit = 300, 50
		nodes := newTarget()
		w := newTestDriver(t, sim.Config{Nodes: &slow{Client: nodes, limit: limit, t: t}}, nil)
		defer w.start()()
		for i := range count {
			w.mustCreate(fmt.Sprintf("m-%d", i))
		}
		after(time.Hour)
		wantRequests(t, nodes, map[string]int{"create node": count, "patch node/status": count})
		list := &corev1.NodeList{}
		if err := nodes.List(t.Context(), list); err != nil || len(list.Items) != count {
			t.Errorf("got %d nodes, want %d (%v)", len(list.Items), count, err)
		}
		ips := map[string]bool{}
		for _, n := range list.Items {
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					ips[a.Address] = true
				}
				if strings.TrimSpace(a.Address) == "" {
					t.Errorf("node %s has an empty address", n.Name)
				}
			}
		}
		if len(ips) != count {
			t.Errorf("got %d addresses for %d nodes", len(ips), count)
		}
	})
}
