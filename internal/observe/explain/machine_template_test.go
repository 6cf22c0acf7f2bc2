package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// template changes the Machine's node template.
func template(change func(*v1alpha1.NodeTemplateSpec)) given {
	return func(f *MachineFacts) { change(&f.Machine.Spec.NodeTemplateSpec) }
}

func nodeLabels(labels map[string]string) given {
	return template(func(t *v1alpha1.NodeTemplateSpec) { t.Labels = labels })
}

func badTemplate(t *v1alpha1.NodeTemplateSpec) {
	t.Labels = map[string]string{"bad key": "v"}
	t.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "Nope"}}
}

func capacity(devices string) given {
	return func(f *MachineFacts) {
		f.Class.NodeTemplate = &v1alpha1.NodeTemplate{VirtualCapacity: corev1.ResourceList{"example.com/device": resource.MustParse(devices)}}
	}
}

// TestMachine_ReportsInvalidTemplate checks that problems with the node template are reported in each phase.
func TestMachine_ReportsInvalidTemplate(t *testing.T) {
	refusal := func(reason string) given {
		return event("Machine", "pool-a-x7k2p", reason, "The API server rejects it: denied by a policy", time.Minute)
	}
	pending := phase(v1alpha1.MachinePending, 7*time.Minute)
	unhealthy := nodeCondition(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "", time.Minute)
	for name, tc := range map[string]struct {
		given  given
		want   []string // of findings of this cause
		advice string
	}{
		"Running":            {template(badTemplate), []string{`label "bad key"`, `taint "a:Nope"`}, "in the template of MachineDeployment pool"},
		"Pending, healthy":   {all(pending, lastCreating, template(badTemplate)), []string{`label "bad key"`, `taint "a:Nope"`}, ""},
		"Pending, unhealthy": {all(pending, lastCreating, unhealthy, template(badTemplate)), []string{`label "bad key"`, `taint "a:Nope"`}, ""},
		"Unknown":            {all(phase(v1alpha1.MachineUnknown, time.Minute), unhealthy, template(badTemplate)), []string{`label "bad key"`, `taint "a:Nope"`}, ""},
		"no owner":           {all(noOwner, template(badTemplate)), []string{`label "bad key"`, `taint "a:Nope"`}, "spec.nodeTemplate of the machine"},
		"no node":            {all(pending, lastCreating, noNode, template(badTemplate)), nil, ""},
		"not applied yet":    {nodeLabels(map[string]string{"tier": "a"}), []string{"labels of Node node-1 do not match spec.nodeTemplate yet"}, ""},
		"rejected":           {all(nodeLabels(map[string]string{"tier": "a"}), refusal("NodeTemplateRefused")), []string{"by a policy"}, "policies and webhooks"},
		"rejected before":    {refusal("NodeTemplateRefused"), nil, ""},
		"capacity, rejected": {all(capacity("2"), refusal("VirtualCapacityRefused")), []string{"by a policy"}, "MachineClass pool-v1"},
		"capacity, missing":  {capacity("2"), []string{"capacity of Node node-1"}, ""},
		"capacity, present": {all(capacity("2"), func(f *MachineFacts) {
			f.Target.Node.Status.Capacity = corev1.ResourceList{"example.com/device": resource.MustParse("2")}
		}), nil, ""},
		"copied": {all(nodeLabels(map[string]string{"tier": "a"}), capacity("2"), func(f *MachineFacts) { f.Target.Copied = true }), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Machine(facts(tc.given), now)
			var found []string
			for _, finding := range got.Why {
				if finding.Cause == report.NodeTemplateNotApplied {
					found = append(found, finding.Text)
				}
			}
			if len(found) != len(tc.want) {
				t.Fatalf("found %q, want %q", found, tc.want)
			}
			for i, want := range tc.want {
				if !strings.Contains(found[i], want) {
					t.Errorf("found %q, want %q", found[i], want)
				}
			}
			if advice := strings.Join(got.Advice, "\n"); !strings.Contains(advice, tc.advice) {
				t.Errorf("advice %q, want %q", advice, tc.advice)
			}
			if running := facts(tc.given).Machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning; running != (got.Verdict == report.Healthy) {
				t.Errorf("verdict %s", got.Verdict)
			}
		})
	}
}
