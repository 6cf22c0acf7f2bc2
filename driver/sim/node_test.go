package sim_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
)

// after advances the clock in a synctest bubble and waits until all due jobs are done.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantReady(t *testing.T, nodes *target, name string, want corev1.ConditionStatus) {
	t.Helper()
	if got := nodes.ready(t, name); got != want {
		t.Errorf("node %s has Ready=%s, want %s", name, got, want)
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

func TestNode_JoinsAfterDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newTestDriver(t, sim.Config{Nodes: nodes}, object{
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
			t.Errorf("got provider ID %s of the node, want %s", node.Spec.ProviderID, id)
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
			t.Errorf("got %d processors, want 8", got)
		}
		if _, has := node.Status.Capacity["gpu"]; has {
			t.Error("node has a gpu resource")
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

func TestNode_JoinFailures(t *testing.T) {
	tests := map[string]struct {
		spec object
		// want is the status of the Ready condition after 1s, 11s and 21s.
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
				w := newTestDriver(t, sim.Config{Nodes: nodes}, tt.spec)
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

func TestNode_IsNotCreatedForDeletedVM(t *testing.T) {
	tests := map[string]struct {
		spec object
		end  func(w testDriver)
	}{
		"deleted":       {object{"joinDelay": "1m"}, func(w testDriver) { w.mustRemove("m", "") }},
		"being deleted": {object{"joinDelay": "1m", "deleteDelay": "1h"}, func(w testDriver) { w.mustRemove("m", "") }},
		"vanished": {object{"joinDelay": "1m"}, func(w testDriver) {
			if n, err := w.Cloud().Vanish("m"); n != 1 || err != nil {
				w.t.Errorf("Vanish: %d, %v", n, err)
			}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := newTarget()
				w := newTestDriver(t, sim.Config{Nodes: nodes}, tt.spec)
				defer w.start()()
				w.mustCreate("m")
				after(59 * time.Second)
				tt.end(w)
				after(time.Hour)
				if nodes.node(t, "m") != nil {
					t.Error("a node joined for a deleted VM")
				}
			})
		})
	}
}

// TestDelete_WaitsForNodeWrite: when DeleteMachine has returned, no write to the node is in progress that
// could recreate the node after its deletion.
func TestDelete_WaitsForNodeWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		release := make(chan struct{})
		nodes.fail = func(string) error { <-release; return nil }
		w := newTestDriver(t, sim.Config{Nodes: nodes}, nil)
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
			t.Error("DeleteMachine returned while the node was being written")
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

func TestVM_Vanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		w := newTestDriver(t, sim.Config{Nodes: nodes}, nil)
		defer w.start()()
		id := w.mustCreate("m-1").ProviderID
		w.mustCreate("n-1")
		synctest.Wait()
		vanished := w.vms()[0]
		if n, err := w.Cloud().Vanish("m-*"); n != 1 || err != nil {
			t.Errorf("Vanish: %d, %v", n, err)
		}
		synctest.Wait()
		wantReady(t, nodes, "m-1", corev1.ConditionUnknown)
		wantReady(t, nodes, "n-1", corev1.ConditionTrue)
		_, err := w.status("m-1", id)
		wantCode(t, err, codes.NotFound)
		if h := w.histories()["ns/m-1"]; h.Left != 0 {
			t.Errorf("got history %+v", h)
		}

		if _, err := w.Cloud().Add(vanished); err != nil {
			t.Error(err)
		}
		_, err = w.status("m-1", id)
		wantCode(t, err, codes.OK)
	})
}

// TestVM_VanishesAfterLifetime: VMs vanish after a lifetime that depends on the seed, even after a restart.
func TestVM_VanishesAfterLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		died := func(seed uint64) (lifetimes []time.Duration) {
			nodes := newTarget()
			config := sim.Config{Cloud: sim.NewCloud(sim.CloudOptions{Seed: seed}), Nodes: nodes}
			spec := object{"joinDelay": "1m", "lifetime": "1h", "jitter": 0.5}
			w := newTestDriver(t, config, spec)
			stop := w.start()
			begin := time.Now()
			for i := range 10 {
				w.mustCreate(fmt.Sprintf("m-%d", i))
			}
			for step := range 40 {
				if step == 20 { // about half of the VMs remain
					stop()
					stop = newTestDriver(t, config, spec).start()
				}
				after(3 * time.Minute)
				for len(lifetimes) < 10-len(w.vms()) {
					lifetimes = append(lifetimes, time.Since(begin))
				}
			}
			stop()
			wantReady(t, nodes, "m-0", corev1.ConditionUnknown)
			return lifetimes
		}
		first := died(7)
		if len(first) != 10 || first[0] < 30*time.Minute || first[9] > 94*time.Minute || first[0] == first[9] {
			t.Errorf("VMs vanished after %v", first)
		}
		if again := died(7); !slices.Equal(first, again) {
			t.Errorf("with the same seed, VMs vanished after %v and %v", first, again)
		}
		if other := died(8); slices.Equal(first, other) {
			t.Errorf("with another seed, VMs also vanished after %v", other)
		}
	})
}

func TestNode_WritesAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget()
		var requests atomic.Int64
		nodes.fail = func(string) error {
			if requests.Add(1) <= 3 {
				return errors.New("no route to host")
			}
			return nil
		}
		w := newTestDriver(t, sim.Config{Nodes: nodes}, nil)
		defer w.start()()
		w.mustCreate("m")
		after(time.Minute)
		wantReady(t, nodes, "m", corev1.ConditionTrue)
	})
}

func TestNode_ExistingIsOnlyPatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newTarget(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{"old": "label"}}})
		w := newTestDriver(t, sim.Config{Nodes: nodes}, nil)
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
