package machine

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// refuseNode makes the API server refuse patches of a node that contain one of the texts, and counts them.
func (h *harness) refuseNode(texts ...string) *int {
	refused := 0
	h.Refuse = func(made lockstep.Write) error {
		for _, text := range texts {
			if strings.HasSuffix(made.What, "Node") && strings.Contains(made.Body, text) {
				refused++
				return apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, made.Name, nil)
			}
		}
		return nil
	}
	return &refused
}

// badTemplates contains node templates with a part that is invalid or that a policy forbids. Each has a valid
// label, too.
var badTemplates = map[string]struct {
	spoil   func(*v1alpha1.NodeTemplateSpec)
	refuse  string
	message string
	rest    bool // whether the valid parts are written
}{
	"key of a label":       {func(t *v1alpha1.NodeTemplateSpec) { t.Labels["bad key"] = "v" }, "bad key", `label "bad key"`, true},
	"value of a label":     {func(t *v1alpha1.NodeTemplateSpec) { t.Labels["tier"] = "bad value" }, "bad value", `"bad value"`, true},
	"key of an annotation": {func(t *v1alpha1.NodeTemplateSpec) { t.Annotations = map[string]string{"bad key": "v"} }, "bad key", `annotation "bad key"`, true},
	"effect of a taint":    {func(t *v1alpha1.NodeTemplateSpec) { t.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "Nope"}} }, "Nope", `taint "a:Nope"`, true},
	"refused by a policy":  {func(t *v1alpha1.NodeTemplateSpec) { t.Labels["forbidden"] = "v" }, "forbidden", "is invalid", false},
}

// TestMachine_InvalidNodeTemplateBlocksNothing checks that an invalid template delays neither the revocation of the token, nor
// health checks or timeouts. It causes one event, and the template is written after it is corrected.
func TestMachine_InvalidNodeTemplateBlocksNothing(t *testing.T) {
	for name, tc := range badTemplates {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.refuseNode(tc.refuse)
			h.declare(func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"}
				tc.spoil(&m.Spec.NodeTemplateSpec)
			})
			h.Settle()
			h.join(ready)
			h.wait(time.Minute)
			wantStatus(t, h.machine(), joinedNow)
			n := h.node()
			if len(n.Finalizers) != 1 || n.Labels[v1alpha1.LabelKeyMachineName] != machineName {
				t.Errorf("the node is not marked: finalizers %v, labels %v", n.Finalizers, n.Labels)
			}
			if _, written := n.Labels["pool"]; written != tc.rest {
				t.Errorf("labels %v, want the valid label: %v", n.Labels, tc.rest)
			}
			if len(h.tokens()) != 0 {
				t.Error("the token was not revoked")
			}
			h.join(ready, condition("DiskPressure", "True"))
			h.wait(time.Minute)
			wantStatus(t, h.machine(), turnedUnknown)
			h.wait(healthTimeout)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Errorf("phase %q, want Failed", got)
			}
			if sent := warnings(h.takeEvents(), "InvalidNodeTemplate", "NodeTemplateRefused"); len(sent) != 1 || !strings.Contains(sent[0], tc.message) {
				t.Errorf("warnings %q, want one with %q", sent, tc.message)
			}
			change(h, h.machine(), func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{}
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "b"}
			})
			h.Settle()
			if got := h.node().Labels["pool"]; got != "b" {
				t.Errorf("label %q after the template was corrected", got)
			}
		})
	}
}

// warnings returns the events with one of the reasons.
func warnings(events []string, reasons ...string) []string {
	var found []string
	for _, event := range events {
		for _, reason := range reasons {
			if strings.HasPrefix(event, corev1.EventTypeWarning+" "+reason+" ") {
				found = append(found, event)
			}
		}
	}
	return found
}

// TestMachine_InvalidNodeTemplateKeepsCreationTimeout checks that a Machine whose node never becomes ready becomes
// Failed.
func TestMachine_InvalidNodeTemplateKeepsCreationTimeout(t *testing.T) {
	for name, tc := range badTemplates {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.refuseNode(tc.refuse)
			h.declare(func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{}
				tc.spoil(&m.Spec.NodeTemplateSpec)
			})
			h.Settle()
			h.join(notReady)
			h.wait(creationTimeout)
			wantStatus(t, h.machine(), failedToJoin)
		})
	}
}

// TestMachine_RefusedNodeWriteBacksOff checks that a refused write is retried with back-off, and that it
// succeeds soon after the policy was removed, or immediately after the template changed.
func TestMachine_RefusedNodeWriteBacksOff(t *testing.T) {
	label := func(value string) func(m *v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) { m.Spec.NodeTemplateSpec.Labels = map[string]string{"forbidden": value} }
	}
	h := newHarness(t)
	refused := h.refuseNode("forbidden")
	h.running(label("a"))
	h.wait(time.Hour)
	if *refused < 8 || *refused > 13 { // after 10 s, 20 s, … 10 min
		t.Errorf("%d attempts in an hour", *refused)
	}
	before := *refused
	change(h, h.machine(), label("b"))
	h.Settle()
	if *refused != before+1 {
		t.Errorf("%d attempts with another template, want 1", *refused-before)
	}
	for range 20 {
		h.Pass()
	}
	if *refused != before+1 {
		t.Errorf("%d more attempts in further passes", *refused-before-1)
	}
	h.Refuse = nil
	h.wait(refusalBackoff.Cap)
	if got := h.node().Labels["forbidden"]; got != "b" {
		t.Errorf("label %q after the policy was removed", got)
	}
	h.refuseNode("forbidden")
	h.takeEvents()
	change(h, h.machine(), label("a"))
	h.Settle()
	if sent := warnings(h.takeEvents(), "NodeTemplateRefused"); len(sent) != 1 {
		t.Errorf("warnings %q, want one about the next refusal", sent)
	}
}

// TestMachine_RefusedCapacityBlocksNothing checks that a refused virtual capacity delays nothing and is not recorded as
// applied.
func TestMachine_RefusedCapacityBlocksNothing(t *testing.T) {
	h := newHarness(t)
	h.refuseNode(`"` + device + `":"-1"`)
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(1) })
	h.running()
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) {
		c.NodeTemplate.VirtualCapacity[device] = resource.MustParse("-1")
	})
	h.wait(time.Minute)
	if sent := warnings(h.takeEvents(), "VirtualCapacityRefused"); len(sent) != 1 {
		t.Errorf("warnings %q, want 1", sent)
	}
	h.join(lostTouch)
	h.wait(time.Minute)
	wantStatus(t, h.machine(), turnedUnknown)
	if got := h.node().Annotations[v1alpha1.AnnotationKeyLastAppliedVirtualCapacity]; !strings.Contains(got, `"1"`) {
		t.Errorf("recorded as applied: %s", got)
	}
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(3) })
	h.Settle()
	if got := h.devices(); got != 3 {
		t.Errorf("%d devices after the class was corrected", got)
	}
}

// TestMachine_EventsAreSentAfterStatusConflict checks that a pass that cannot write the status sends no events, and
// that the next pass sends them.
func TestMachine_EventsAreSentAfterStatusConflict(t *testing.T) {
	h := newHarness(t)
	h.declare(func(m *v1alpha1.Machine) {
		m.Spec.NodeTemplateSpec.Labels = map[string]string{"bad key": "v", "forbidden": "v"}
	})
	h.Settle()
	h.join(ready)
	h.refuseNode("forbidden")
	policy, conflicts := h.Refuse, 1
	h.Refuse = func(made lockstep.Write) error {
		if made.What == "patch status of Machine" && conflicts > 0 {
			conflicts--
			return apierrors.NewConflict(schema.GroupResource{Resource: "machines"}, made.Name, nil)
		}
		return policy(made)
	}
	h.wait(time.Minute)
	wantStatus(t, h.machine(), joinedNow)
	if sent := warnings(h.takeEvents(), "InvalidNodeTemplate", "NodeTemplateRefused"); len(sent) != 2 {
		t.Errorf("warnings %q, want one of each kind", sent)
	}
}

// TestMachine_ServerErrorIsNotRefusal checks that a pass stops at a write that fails for another reason.
func TestMachine_ServerErrorIsNotRefusal(t *testing.T) {
	h := newHarness(t)
	h.declare(func(m *v1alpha1.Machine) { m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"} })
	h.Settle()
	h.join(ready)
	h.Refuse = func(made lockstep.Write) error {
		if made.What == "patch Node" {
			return apierrors.NewInternalError(errDown)
		}
		return nil
	}
	if _, err := h.controller.Reconcile(t.Context(), h.Request()); err == nil {
		t.Error("a failed write caused no error")
	}
	wantStatus(t, h.machine(), unchanged(v1alpha1.MachinePending))
	h.Refuse = nil
	h.Settle()
	wantStatus(t, h.machine(), joinedNow)
}

// TestMachine_OmitsOnlyInvalidTemplateParts checks that exactly those parts of the template are left out that an API server would
// refuse.
func TestMachine_OmitsOnlyInvalidTemplateParts(t *testing.T) {
	h := newServerHarness(t)
	h.declare(func(m *v1alpha1.Machine) {
		template := &m.Spec.NodeTemplateSpec
		template.Labels = map[string]string{"pool": "a", "Example.org/x": "A_b", "bad key": "v", "tier": "bad value", "-": "", "UPPER/x": "1"}
		template.Annotations = map[string]string{"note": "b c", "UPPER/x": "1", "bad key": "v"}
		template.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "Nope"}, {Key: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: "b", Value: "c d", Effect: corev1.TaintEffectNoExecute}}
	})
	h.Settle()
	h.join(ready)
	h.Settle()
	wantStatus(t, h.machine(), joinedNow)
	n := h.node()
	if n.Labels["pool"] != "a" || n.Annotations["note"] != "b c" || n.Annotations["UPPER/x"] != "1" || len(n.Spec.Taints) == 0 {
		t.Errorf("labels %q, annotations %q, taints %v", n.Labels, n.Annotations, n.Spec.Taints)
	}
	if sent := warnings(h.takeEvents(), "NodeTemplateRefused"); len(sent) != 0 {
		t.Errorf("unexpected warnings: %q", sent)
	}
}
