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

// refuseNode has the API server refuse patches of a node that contain one of the texts, and
// counts them.
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

// badTemplates are node templates with something that no node can have, or that a policy does
// not let any have. Each has a label that fits.
var badTemplates = map[string]struct {
	spoil  func(*v1alpha1.NodeTemplateSpec)
	refuse string
	says   string
	rest   bool // is written
}{
	"key of a label":        {func(t *v1alpha1.NodeTemplateSpec) { t.Labels["bad key"] = "v" }, "bad key", `label "bad key"`, true},
	"value of a label":      {func(t *v1alpha1.NodeTemplateSpec) { t.Labels["tier"] = "bad value" }, "bad value", `"bad value"`, true},
	"key of an annotation":  {func(t *v1alpha1.NodeTemplateSpec) { t.Annotations = map[string]string{"bad key": "v"} }, "bad key", `annotation "bad key"`, true},
	"effect of a taint":     {func(t *v1alpha1.NodeTemplateSpec) { t.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "Nope"}} }, "Nope", `taint "a:Nope"`, true},
	"a policy's own reason": {func(t *v1alpha1.NodeTemplateSpec) { t.Labels["forbidden"] = "v" }, "forbidden", "is invalid", false},
}

// TestABadTemplateStopsNothing: neither the revocation of the token nor health nor timeouts
// wait for a template to be corrected. It makes one event, and is written once it is good.
func TestABadTemplateStopsNothing(t *testing.T) {
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
				t.Errorf("the rest of the template: labels %v", n.Labels)
			}
			if len(h.tokens()) != 0 {
				t.Error("the token is not revoked")
			}
			h.join(ready, condition("DiskPressure", "True"))
			h.wait(time.Minute)
			wantStatus(t, h.machine(), turnedUnknown)
			h.wait(healthTimeout)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Errorf("phase %q, want Failed", got)
			}
			if sent := warnings(h.takeEvents(), "InvalidNodeTemplate", "NodeTemplateRefused"); len(sent) != 1 || !strings.Contains(sent[0], tc.says) {
				t.Errorf("warnings %q, want one that says %q", sent, tc.says)
			}
			change(h, h.machine(), func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{}
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "b"}
			})
			h.Settle()
			if got := h.node().Labels["pool"]; got != "b" {
				t.Errorf("corrected, the node has the label %q", got)
			}
		})
	}
}

// warnings are the events with one of the reasons.
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

// TestABadTemplateDoesNotStopTheCreationTimeout: a node that never becomes ready is given up.
func TestABadTemplateDoesNotStopTheCreationTimeout(t *testing.T) {
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

// TestWhatAPolicyRefusesIsTriedLessAndLess: and written soon after the policy is gone, or at
// once when the template changes.
func TestWhatAPolicyRefusesIsTriedLessAndLess(t *testing.T) {
	label := func(value string) func(m *v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) { m.Spec.NodeTemplateSpec.Labels = map[string]string{"forbidden": value} }
	}
	h := newHarness(t)
	refused := h.refuseNode("forbidden")
	h.running(label("a"))
	h.wait(time.Hour)
	if *refused < 8 || *refused > 13 { // after 10 s, 20 s, … 10 min
		t.Errorf("tried %d times in an hour", *refused)
	}
	before := *refused
	change(h, h.machine(), label("b"))
	h.Settle()
	if *refused != before+1 {
		t.Errorf("another template is tried %d times, want 1", *refused-before)
	}
	for range 20 {
		h.Pass()
	}
	if *refused != before+1 {
		t.Errorf("further passes try it %d times more", *refused-before-1)
	}
	h.Refuse = nil
	h.wait(refusalBackoff.Cap)
	if got := h.node().Labels["forbidden"]; got != "b" {
		t.Errorf("the node has the label %q after the policy is gone", got)
	}
	h.refuseNode("forbidden")
	h.takeEvents()
	change(h, h.machine(), label("a"))
	h.Settle()
	if sent := warnings(h.takeEvents(), "NodeTemplateRefused"); len(sent) != 1 {
		t.Errorf("warnings %q: the next refusal makes another event", sent)
	}
}

// TestRefusedCapacityStopsNothing: nor is it recorded as applied.
func TestRefusedCapacityStopsNothing(t *testing.T) {
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
		t.Errorf("corrected, the node has %d devices", got)
	}
}

// TestWhatIsWrongIsToldAlthoughAStatusIsNot: a pass whose status is not written sends no
// events, and the next one makes up for it.
func TestWhatIsWrongIsToldAlthoughAStatusIsNot(t *testing.T) {
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

// TestOutagesAreNoRefusals: a pass that could not write goes no further, as ever.
func TestOutagesAreNoRefusals(t *testing.T) {
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
		t.Error("a write that failed went by")
	}
	wantStatus(t, h.machine(), unchanged(v1alpha1.MachinePending))
	h.Refuse = nil
	h.Settle()
	wantStatus(t, h.machine(), joinedNow)
}

// TestServerTakesWhatFits: what is left out is what an API server refuses, and no more.
func TestServerTakesWhatFits(t *testing.T) {
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
		t.Errorf("refused by the server: %q", sent)
	}
}
