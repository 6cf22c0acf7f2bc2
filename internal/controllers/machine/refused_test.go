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
)

// refuseNode has the API server refuse patches of a node that contain one of the texts, and
// counts them.
func (w *world) refuseNode(texts ...string) *int {
	refused := 0
	w.refuse = func(made write) error {
		for _, text := range texts {
			if strings.HasSuffix(made.what, "Node") && strings.Contains(made.body, text) {
				refused++
				return apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, made.name, nil)
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
// wait for a template to be corrected. It is told once, and written once it is good.
func TestABadTemplateStopsNothing(t *testing.T) {
	for name, tc := range badTemplates {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.refuseNode(tc.refuse)
			w.declare(func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"}
				tc.spoil(&m.Spec.NodeTemplateSpec)
			})
			w.settle()
			w.join(ready)
			w.wait(time.Minute)
			wantStatus(t, w.machine(), joinedNow)
			n := w.node()
			if len(n.Finalizers) != 1 || n.Labels[v1alpha1.LabelKeyMachineName] != machineName {
				t.Errorf("the node is not marked: finalizers %v, labels %v", n.Finalizers, n.Labels)
			}
			if _, written := n.Labels["pool"]; written != tc.rest {
				t.Errorf("the rest of the template: labels %v", n.Labels)
			}
			if len(w.tokens()) != 0 {
				t.Error("the token is not revoked")
			}
			w.join(ready, condition("DiskPressure", "True"))
			w.wait(time.Minute)
			wantStatus(t, w.machine(), turnedUnknown)
			w.wait(healthTimeout)
			if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Errorf("phase %q, want Failed", got)
			}
			if told := warnings(w.told(), "InvalidNodeTemplate", "NodeTemplateRefused"); len(told) != 1 || !strings.Contains(told[0], tc.says) {
				t.Errorf("warnings %q, want one that says %q", told, tc.says)
			}
			change(w, w.machine(), func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{}
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "b"}
			})
			w.settle()
			if got := w.node().Labels["pool"]; got != "b" {
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
			w := newWorld(t)
			w.refuseNode(tc.refuse)
			w.declare(func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{}
				tc.spoil(&m.Spec.NodeTemplateSpec)
			})
			w.settle()
			w.join(notReady)
			w.wait(creationTimeout)
			wantStatus(t, w.machine(), failedToJoin)
		})
	}
}

// TestWhatAPolicyRefusesIsTriedLessAndLess: and written soon after the policy is gone, or at
// once when the template changes.
func TestWhatAPolicyRefusesIsTriedLessAndLess(t *testing.T) {
	label := func(value string) func(m *v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) { m.Spec.NodeTemplateSpec.Labels = map[string]string{"forbidden": value} }
	}
	w := newWorld(t)
	refused := w.refuseNode("forbidden")
	w.running(label("a"))
	w.wait(time.Hour)
	if *refused < 8 || *refused > 13 { // after 10 s, 20 s, … 10 min
		t.Errorf("tried %d times in an hour", *refused)
	}
	before := *refused
	change(w, w.machine(), label("b"))
	w.settle()
	if *refused != before+1 {
		t.Errorf("another template is tried %d times, want 1", *refused-before)
	}
	for range 20 {
		w.pass()
	}
	if *refused != before+1 {
		t.Errorf("further passes try it %d times more", *refused-before-1)
	}
	w.refuse = nil
	w.wait(refusalBackoff.Max)
	if got := w.node().Labels["forbidden"]; got != "b" {
		t.Errorf("the node has the label %q after the policy is gone", got)
	}
	w.refuseNode("forbidden")
	w.told()
	change(w, w.machine(), label("a"))
	w.settle()
	if told := warnings(w.told(), "NodeTemplateRefused"); len(told) != 1 {
		t.Errorf("warnings %q: the next refusal is told again", told)
	}
}

// TestRefusedCapacityStopsNothing: nor is it recorded as applied.
func TestRefusedCapacityStopsNothing(t *testing.T) {
	w := newWorld(t)
	w.refuseNode(`"` + device + `":"-1"`)
	change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(1) })
	w.running()
	change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) {
		c.NodeTemplate.VirtualCapacity[device] = resource.MustParse("-1")
	})
	w.wait(time.Minute)
	if told := warnings(w.told(), "VirtualCapacityRefused"); len(told) != 1 {
		t.Errorf("warnings %q, want 1", told)
	}
	w.join(lostTouch)
	w.wait(time.Minute)
	wantStatus(t, w.machine(), turnedUnknown)
	if got := w.node().Annotations[v1alpha1.AnnotationKeyLastAppliedVirtualCapacity]; !strings.Contains(got, `"1"`) {
		t.Errorf("recorded as applied: %s", got)
	}
	change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(3) })
	w.settle()
	if got := w.devices(); got != 3 {
		t.Errorf("corrected, the node has %d devices", got)
	}
}

// TestWhatIsWrongIsToldAlthoughAStatusIsNot: a pass whose status is not written sends no
// events, and the next one makes up for it.
func TestWhatIsWrongIsToldAlthoughAStatusIsNot(t *testing.T) {
	w := newWorld(t)
	w.declare(func(m *v1alpha1.Machine) {
		m.Spec.NodeTemplateSpec.Labels = map[string]string{"bad key": "v", "forbidden": "v"}
	})
	w.settle()
	w.join(ready)
	w.refuseNode("forbidden")
	policy, conflicts := w.refuse, 1
	w.refuse = func(made write) error {
		if made.what == "patch status of Machine" && conflicts > 0 {
			conflicts--
			return apierrors.NewConflict(schema.GroupResource{Resource: "machines"}, made.name, nil)
		}
		return policy(made)
	}
	w.wait(time.Minute)
	wantStatus(t, w.machine(), joinedNow)
	if told := warnings(w.told(), "InvalidNodeTemplate", "NodeTemplateRefused"); len(told) != 2 {
		t.Errorf("warnings %q, want one of each kind", told)
	}
}

// TestOutagesAreNoRefusals: a pass that could not write goes no further, as ever.
func TestOutagesAreNoRefusals(t *testing.T) {
	w := newWorld(t)
	w.declare(func(m *v1alpha1.Machine) { m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"} })
	w.settle()
	w.join(ready)
	w.refuse = func(made write) error {
		if made.what == "patch Node" {
			return apierrors.NewInternalError(errDown)
		}
		return nil
	}
	if _, err := w.controller.Reconcile(t.Context(), w.request()); err == nil {
		t.Error("a write that failed went by")
	}
	wantStatus(t, w.machine(), unchanged(v1alpha1.MachinePending))
	w.refuse = nil
	w.settle()
	wantStatus(t, w.machine(), joinedNow)
}

// TestServerTakesWhatFits: what is left out is what an API server refuses, and no more.
func TestServerTakesWhatFits(t *testing.T) {
	w := newServerWorld(t)
	w.declare(func(m *v1alpha1.Machine) {
		template := &m.Spec.NodeTemplateSpec
		template.Labels = map[string]string{"pool": "a", "Example.org/x": "A_b", "bad key": "v", "tier": "bad value", "-": "", "UPPER/x": "1"}
		template.Annotations = map[string]string{"note": "b c", "UPPER/x": "1", "bad key": "v"}
		template.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "Nope"}, {Key: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: "b", Value: "c d", Effect: corev1.TaintEffectNoExecute}}
	})
	w.settle()
	w.join(ready)
	w.settle()
	wantStatus(t, w.machine(), joinedNow)
	n := w.node()
	if n.Labels["pool"] != "a" || n.Annotations["note"] != "b c" || n.Annotations["UPPER/x"] != "1" || len(n.Spec.Taints) == 0 {
		t.Errorf("labels %q, annotations %q, taints %v", n.Labels, n.Annotations, n.Spec.Taints)
	}
	if told := warnings(w.told(), "NodeTemplateRefused"); len(told) != 0 {
		t.Errorf("refused by the server: %q", told)
	}
}
