package sim_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
)

// readyForUpdate marks the node as waiting for its agent.
func readyForUpdate(t *testing.T, nodes *target, name string) {
	t.Helper()
	node := nodes.node(t, name)
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
		Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: v1alpha1.ReadyForUpdate,
	})
	if err := nodes.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

func TestAgent_UpdatesNodes(t *testing.T) {
	const successful, failed = v1alpha1.LabelValueNodeUpdateSuccessful, v1alpha1.LabelValueNodeUpdateFailed
	cases := map[string]struct {
		spec           object
		set            sim.Agent
		during, then   corev1.ConditionStatus
		result, reason string
	}{
		"none":     {spec: object{}, during: corev1.ConditionTrue, then: corev1.ConditionTrue},
		"succeeds": {spec: object{"agent": "succeed", "updateTime": "1m"}, during: corev1.ConditionFalse, then: corev1.ConditionTrue, result: successful},
		"fails":    {spec: object{"agent": "fail", "updateTime": "1m"}, during: corev1.ConditionFalse, then: corev1.ConditionTrue, result: failed, reason: "the simulated agent fails"},
		"silent":   {spec: object{"agent": "silent", "updateTime": "1m"}, during: corev1.ConditionTrue, then: corev1.ConditionTrue},
		"dies":     {spec: object{"agent": "die", "updateTime": "1m"}, during: corev1.ConditionUnknown, then: corev1.ConditionUnknown},
		"set":      {spec: object{"agent": "silent"}, set: sim.AgentSucceeds, during: corev1.ConditionFalse, then: corev1.ConditionTrue, result: successful},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := newTarget()
				w := newTestDriver(t, sim.Config{Nodes: nodes}, tc.spec)
				defer w.start()()
				w.mustCreate("m")
				after(time.Hour)
				wantReady(t, nodes, "m", corev1.ConditionTrue)
				if tc.set != "" {
					if n, err := w.Cloud().SetAgent("m", tc.set, time.Minute); n != 1 || err != nil {
						t.Fatalf("SetAgent: %d, %v", n, err)
					}
				}
				readyForUpdate(t, nodes, "m")
				after(30 * time.Second)
				wantReady(t, nodes, "m", tc.during)
				if got := nodes.node(t, "m").Labels[v1alpha1.LabelKeyNodeUpdateResult]; got != "" {
					t.Errorf("got result %q before the update is complete", got)
				}
				after(time.Hour)
				wantReady(t, nodes, "m", tc.then)
				node := nodes.node(t, "m")
				if got := node.Labels[v1alpha1.LabelKeyNodeUpdateResult]; got != tc.result {
					t.Errorf("got result %q, want %q", got, tc.result)
				}
				if got := node.Annotations[v1alpha1.AnnotationKeyMachineUpdateFailedReason]; got != tc.reason {
					t.Errorf("got reason %q, want %q", got, tc.reason)
				}
			})
		})
	}
}

func TestAgent_RejectsUnknownBehavior(t *testing.T) {
	if _, err := sim.NewCloud(sim.CloudOptions{}).SetAgent("", "perhaps", 0); err == nil {
		t.Error("SetAgent accepted an unknown agent")
	}
}
