package sim_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
)

// after lets time pass in a synctest bubble, and all that is due happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantReady(t *testing.T, nodes *target, name string, want corev1.ConditionStatus) {
	t.Helper()
	if got := nodes.ready(t, name); got != want {
		t.Errorf("node %s is %s, want %s", name, got, want)
	}
}

func wantRequests(t *testing.T, nodes *target, want map[string]int) {
	t.Helper()
	if diff := cmp.Diff(want, nodes.counts()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

var (
	joined = map[string]int{"create node": 1, "patch node/status": 1}
	none   = map[string]int{}
)

func TestNodeJoinsAfterItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newWorld(t, sim.Config{Nodes: nodes}, object{
			"joinDelay": "1m", "nodeLabels": object{"x": "y"},
			"nodeTaints": []object{{"key": "k", "effect": "NoSchedule"}}})
		w.class.NodeTemplate = &v1alpha1.NodeTemplate{
			InstanceType: "big", Zone: "z", Capacity: corev1.ResourceList{
				"cpu": resource.MustParse("8"), "gpu": resource.MustParse("1")}}
		defer w.start()()
		id := w.mustCreate("m").ProviderID

		after(time.Minute - time.Nanosecond)
		wantRequests(t, nodes, none)
		after(time.Nanosecond)
		wantRequests(t, nodes, joined)
		after(24 * time.Hour)
		wantRequests(t, nodes, joined)

		node := nodes.node(t, "m")
		wantReady(t, nodes, "m", corev1.ConditionTrue)
		if node.Spec.ProviderID != id {
			t.Errorf("provider ID of the node is %s, want %s", node.Spec.ProviderID, id)
		}
		wantLabels := map[string]string{
			"kubernetes.io/hostname": "m", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"node.kubernetes.io/instance-type": "big", "topology.kubernetes.io/zone": "z", "x": "y"}
		if diff := cmp.Diff(wantLabels, node.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}, node.Spec.Taints); diff != "" {
			t.Errorf("taints (-want +got):\n%s", diff)
		}
		if got := node.Status.Capacity.Cpu().Value(); got != 8 {
			t.Errorf("node has %d processors, want 8", got)
		}
		if _, has := node.Status.Capacity["gpu"]; has {
			t.Error("node has a resource gpu")
		}
		var pressures []string
		for _, c := range node.Status.Conditions {
			if c.Status == corev1.ConditionFalse {
				pressures = append(pressures, string(c.Type))
			}
		}
		if diff := cmp.Diff([]string{"MemoryPressure", "DiskPressure", "PIDPressure"}, pressures); diff != "" {
			t.Errorf("conditions that are False (-want +got):\n%s", diff)
		}
	})
}

func TestNodesThatDoNotJoinWell(t *testing.T) {
	tests := map[string]struct {
		spec object
		// want is the Ready condition after 1s, 11s and 21s.
		want [3]corev1.ConditionStatus
	}{
		"never":    {object{"join": "never"}, [3]corev1.ConditionStatus{"absent", "absent", "absent"}},
		"notReady": {object{"join": "notReady"}, [3]corev1.ConditionStatus{"False", "False", "False"}},
		"flap":     {object{"join": "flap", "flapInterval": "10s"}, [3]corev1.ConditionStatus{"True", "False", "True"}},
		"ready":    {object{"join": "ready"}, [3]corev1.ConditionStatus{"True", "True", "True"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := newTarget()
				w := newWorld(t, sim.Config{Nodes: nodes}, tt.spec)
				defer w.start()()
				w.mustCreate("m")
				after(time.Second)
				for _, want := range tt.want {
					wantReady(t, nodes, "m", want)
					after(10 * time.Second)
				}
			})
		})
	}
}

func TestNoNodeForAVMThatIsGone(t *testing.T) {
	tests := map[string]struct {
		spec object
		end  func(w world)
	}{
		"deleted":       {object{"joinDelay": "1m"}, func(w world) { w.mustRemove("m", "") }},
		"being deleted": {object{"joinDelay": "1m", "deleteDelay": "1h"}, func(w world) { w.mustRemove("m", "") }},
		"vanished": {object{"joinDelay": "1m"}, func(w world) {
			if n, err := w.Cloud().Vanish("m"); n != 1 || err != nil {
				w.t.Errorf("Vanish: %d, %v", n, err)
			}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := newTarget()
				w := newWorld(t, sim.Config{Nodes: nodes}, tt.spec)
				defer w.start()()
				w.mustCreate("m")
				after(59 * time.Second)
				tt.end(w)
				after(time.Hour)
				if nodes.node(t, "m") != nil {
					t.Error("a node joined for a VM that is gone")
				}
			})
		})
	}
}

// TestDeletionWaitsForTheNodesWrite: when DeleteMachine has answered, no write of the
// node is under way that could bring it back after its deletion.
func TestDeletionWaitsForTheNodesWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		release := make(chan struct{})
		nodes.fail = func(string) error { <-release; return nil }
		w := newWorld(t, sim.Config{Nodes: nodes}, nil)
		defer w.start()()
		w.mustCreate("m")
		synctest.Wait()
		deleted := make(chan struct{})
		go func() {
			w.mustRemove("m", "")
			close(deleted)
		}()
		synctest.Wait()
		select {
		case <-deleted:
			t.Error("DeleteMachine answered while the node was being written")
		default:
		}
		close(release)
		<-deleted
		wantReady(t, nodes, "m", corev1.ConditionTrue)
		if err := nodes.Delete(t.Context(), nodes.node(t, "m")); err != nil {
			t.Fatal(err)
		}
		after(time.Hour)
		wantReady(t, nodes, "m", "absent")
	})
}

func TestVanishedVM(t *testing.T) {
	tests := map[string]struct {
		leave bool
		want  corev1.ConditionStatus
	}{"unknown": {false, corev1.ConditionUnknown}, "left": {true, corev1.ConditionTrue}}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := newTarget()
				w := newWorld(t, sim.Config{Nodes: nodes, LeaveVanishedNodes: tt.leave}, nil)
				defer w.start()()
				id := w.mustCreate("m-1").ProviderID
				w.mustCreate("n-1")
				synctest.Wait()
				if n, err := w.Cloud().Vanish("m-*"); n != 1 || err != nil {
					t.Errorf("Vanish: %d, %v", n, err)
				}
				synctest.Wait()
				wantReady(t, nodes, "m-1", tt.want)
				wantReady(t, nodes, "n-1", corev1.ConditionTrue)
				_, err := w.status("m-1", id)
				wantCode(t, err, codes.NotFound)
				if h := w.histories()["ns/m-1"]; h.Left != 0 {
					t.Errorf("history: %+v", h)
				}
			})
		})
	}
}

func TestScriptedReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newWorld(t, sim.Config{Nodes: nodes}, nil)
		defer w.start()()
		w.mustCreate("m")
		synctest.Wait()
		flap := func(times int) {
			if n, err := w.Cloud().FlapNode("m", times, time.Minute); n != 1 || err != nil {
				t.Fatalf("FlapNode: %d, %v", n, err)
			}
		}
		set := func(ready corev1.ConditionStatus) {
			if n, err := w.Cloud().SetNodeReady("m", ready); n != 1 || err != nil {
				t.Fatalf("SetNodeReady: %d, %v", n, err)
			}
		}
		flap(3)
		synctest.Wait()
		wantReady(t, nodes, "m", corev1.ConditionFalse)
		after(time.Minute)
		wantReady(t, nodes, "m", corev1.ConditionTrue)
		after(time.Minute)
		wantReady(t, nodes, "m", corev1.ConditionFalse)
		// The last of several orders at one moment stays.
		for range 10 {
			set(corev1.ConditionUnknown)
			set(corev1.ConditionFalse)
			set(corev1.ConditionTrue)
			synctest.Wait()
			wantReady(t, nodes, "m", corev1.ConditionTrue)
		}
	})
}

func TestWritesAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		var requests atomic.Int64
		nodes.fail = func(string) error {
			if requests.Add(1) <= 3 {
				return errors.New("no route to host")
			}
			return nil
		}
		w := newWorld(t, sim.Config{Nodes: nodes}, nil)
		defer w.start()()
		w.mustCreate("m")
		after(time.Minute)
		wantReady(t, nodes, "m", corev1.ConditionTrue)
	})
}

func TestExistingNodeIsPatchedOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{"old": "label"}}})
		w := newWorld(t, sim.Config{Nodes: nodes}, nil)
		defer w.start()()
		w.mustCreate("m")
		synctest.Wait()
		wantRequests(t, nodes, joined)
		wantReady(t, nodes, "m", corev1.ConditionTrue)
		if nodes.node(t, "m").Labels["old"] != "label" {
			t.Error("the existing node was replaced")
		}
	})
}

// TestRestart: nodes that had not joined when the process ended join in the next one,
// and those that had are left in peace.
func TestRestart(t *testing.T) {
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
				w := newWorld(t, sim.Config{Cloud: cloud, Nodes: nodes}, spec)
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
				w = newWorld(t, sim.Config{Cloud: cloud, Nodes: nodes}, spec)
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

func TestJoinThatIsPlannedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newWorld(t, sim.Config{Nodes: nodes}, nil)
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

// TestLifeGoesOnAfterARestart: nodes that had joined go on flapping and renewing.
func TestLifeGoesOnAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		config := sim.Config{Cloud: sim.NewCloud(sim.CloudOptions{}), Nodes: nodes, HeartbeatInterval: 10 * time.Second}
		spec := object{"join": "flap", "flapInterval": "1m"}
		w := newWorld(t, config, spec)
		stop := w.start()
		w.mustCreate("m")
		after(time.Second)
		stop()
		before := nodes.counts()
		after(time.Hour)
		wantRequests(t, nodes, before)
		wantReady(t, nodes, "m", corev1.ConditionTrue)

		defer newWorld(t, config, spec).start()()
		after(time.Minute)
		wantReady(t, nodes, "m", corev1.ConditionFalse)
		if renewed := nodes.counts()["patch lease"] - before["patch lease"]; renewed != 7 {
			t.Errorf("%d renewals in a minute, want 7", renewed)
		}
	})
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newWorld(t, sim.Config{Nodes: nodes, HeartbeatInterval: 10 * time.Second}, nil)
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
			t.Errorf("lease is %+v", lease.Spec)
		}
		wantRequests(t, nodes, map[string]int{"create node": 1, "patch node/status": 1, "create lease": 1, "patch lease": 4})
		w.mustRemove("m", "")
		after(time.Hour)
		if got := nodes.counts()["patch lease"]; got != 4 {
			t.Errorf("%d renewals, want none after the deletion", got-4)
		}
	})
}

func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sim.Config{}, object{"latency": "3s", "visibleAfter": "1m", "deleteDelay": "5m"})
		begin := time.Now()
		id := w.mustCreate("m").ProviderID
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("create took %s, want 3s", took)
		}
		_, err := w.status("m", "")
		wantCode(t, err, codes.NotFound)
		_, err = w.status("m", id)
		wantCode(t, err, codes.OK)
		if again := w.mustCreate("m").ProviderID; again != id {
			t.Error("an invisible VM was made a second time")
		}
		if list := w.list(); len(list) != 0 {
			t.Errorf("an invisible VM is listed: %v", list)
		}
		after(time.Minute)
		_, err = w.status("m", "")
		wantCode(t, err, codes.OK)

		w.mustRemove("m", id)
		w.mustRemove("m", id)
		_, err = w.status("m", id)
		wantCode(t, err, codes.OK)
		_, err = w.create("m")
		wantCode(t, err, codes.Aborted)
		if len(w.list()) != 1 {
			t.Error("a VM that is being deleted is not listed")
		}
		after(5 * time.Minute)
		_, err = w.status("m", id)
		wantCode(t, err, codes.NotFound)
		if len(w.list()) != 0 || len(w.vms()) != 0 {
			t.Error("the VM is still there after its delay")
		}
		if h := w.histories()["ns/m"]; h.MostAtOnce != 1 || h.Left != 0 {
			t.Errorf("history: %+v", h)
		}
	})
}

func TestCapacityIsFreedByADelayedDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sim.Config{}, object{"capacity": 1, "deleteDelay": "1m"})
		w.mustCreate("a")
		w.mustRemove("a", "")
		_, err := w.create("b")
		wantCode(t, err, codes.ResourceExhausted)
		after(time.Minute)
		w.mustCreate("b")
	})
}

func TestJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := func(seed uint64, name string) time.Duration {
			w := newWorld(t, sim.Config{Seed: seed}, object{"latency": "10s", "jitter": 0.5})
			begin := time.Now()
			w.mustCreate(name)
			return time.Since(begin)
		}
		seen := map[time.Duration]bool{}
		for i := range 20 {
			name := fmt.Sprintf("m-%d", i)
			d := took(7, name)
			if d < 5*time.Second || d > 15*time.Second {
				t.Errorf("latency %s is off by more than half", d)
			}
			if d != took(7, name) {
				t.Error("the same seed gives another latency")
			}
			seen[d] = true
		}
		if len(seen) < 15 {
			t.Errorf("only %d different latencies of 20", len(seen))
		}
	})
}

func TestManyNodesJoinAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, limit = 300, 20
		nodes := newTarget()
		w := newWorld(t, sim.Config{Nodes: &slow{Client: nodes, limit: limit, t: t}, JoinConcurrency: limit}, nil)
		defer w.start()()
		for i := range count {
			w.mustCreate(fmt.Sprintf("m-%d", i))
		}
		after(time.Hour)
		wantRequests(t, nodes, map[string]int{"create node": count, "patch node/status": count})
		list := &corev1.NodeList{}
		if err := nodes.List(t.Context(), list); err != nil || len(list.Items) != count {
			t.Errorf("%d nodes, want %d (%v)", len(list.Items), count, err)
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
			t.Errorf("%d addresses for %d nodes", len(ips), count)
		}
	})
}
