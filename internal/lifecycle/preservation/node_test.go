package preservation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

var (
	ours  = map[string]string{v1alpha1.AnnotationKeyScaleDownDisabled: "true", v1alpha1.AnnotationKeyScaleDownDisabledByMCM: "true"}
	users = map[string]string{v1alpha1.AnnotationKeyScaleDownDisabled: "false"}
	other = corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoSchedule}
	taint = corev1.Taint{Key: v1alpha1.TaintKeyPreserved, Effect: corev1.TaintEffectNoSchedule, TimeAdded: at(0)}
)

func node(annotations map[string]string, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{}}}
	for key, value := range annotations {
		n.Annotations[key] = value
	}
	n.Spec.Taints = taints
	return n
}

// TestNode_PreservationMarks checks what a preservation adds to a node, and what it removes. A cordon belongs to the user.
func TestNode_PreservationMarks(t *testing.T) {
	untimed, tomorrows := taint, taint
	untimed.TimeAdded, tomorrows.TimeAdded = nil, at(24*time.Hour)
	mark := func(failed bool) func(*corev1.Node) {
		return func(n *corev1.Node) { Mark(n, failed, noon) }
	}
	unmark := func(removeAnnotation bool) func(*corev1.Node) {
		return func(n *corev1.Node) { Unmark(n, removeAnnotation) }
	}
	for name, test := range map[string]struct {
		given  *corev1.Node
		change func(*corev1.Node)
		want   *corev1.Node
	}{
		"running":                            {node(nil, other), mark(false), node(ours, other)},
		"failed":                             {node(nil, other), mark(true), node(ours, other, taint)},
		"failed again":                       {node(ours, other, taint), mark(true), node(ours, other, taint)},
		"a user's taint without a time":      {node(ours, untimed), mark(true), node(ours, taint)},
		"a user's taint with a future time":  {node(ours, tomorrows), mark(true), node(ours, taint)},
		"recovered":                          {node(ours, other, taint), mark(false), node(ours, other)},
		"autoscaling is the user's":          {node(users), mark(true), node(users, taint)},
		"stopped":                            {node(ours, other, taint), unmark(false), node(nil, other)},
		"stopped, autoscaling is a user's":   {node(users, taint), unmark(false), node(users)},
		"stopped, the annotation is kept":    {node(map[string]string{own: WhenFailed}), unmark(false), node(map[string]string{own: WhenFailed})},
		"stopped, the annotation is removed": {node(map[string]string{own: Now}), unmark(true), node(nil)},
		"never marked":                       {node(nil), unmark(true), node(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, cordoned := range []bool{false, true} {
				got, want := test.given.DeepCopy(), test.want.DeepCopy()
				got.Spec.Unschedulable, want.Spec.Unschedulable = cordoned, cordoned
				test.change(got)
				if diff := cmp.Diff(want.ObjectMeta, got.ObjectMeta); diff != "" {
					t.Errorf("metadata (-want +got):\n%s", diff)
				}
				if len(want.Spec.Taints)+len(got.Spec.Taints) > 0 && !cmp.Equal(want.Spec.Taints, got.Spec.Taints) || cordoned != got.Spec.Unschedulable {
					t.Errorf("spec (-want +got):\n%s", cmp.Diff(want.Spec, got.Spec))
				}
			}
		})
	}
}

// TestNode_PreservationCondition checks that the condition of the node states, in the same words as MCM's, who preserves it, how
// its drain went, and until when it is preserved.
func TestNode_PreservationCondition(t *testing.T) {
	const until = "Machine preserved until 2026-01-02 13:00:00 +0000 UTC."
	by := func(value string) Plan { return Plan{Value: value, Expiry: at(time.Hour)} }
	set := func(p Plan, drain Drain) func(*corev1.Node) {
		return func(n *corev1.Node) { SetPreserved(n, p, drain, noon) }
	}
	is := func(status corev1.ConditionStatus, reason, message string, since time.Duration) *corev1.NodeCondition {
		return &corev1.NodeCondition{Type: v1alpha1.NodePreserved, Status: status, Reason: reason, Message: message, LastTransitionTime: *at(since)}
	}
	stop := func(n *corev1.Node) { SetStopped(n, noon) }
	for name, test := range map[string]struct {
		given  *corev1.NodeCondition
		change func(*corev1.Node)
		want   *corev1.NodeCondition
	}{
		"by a user, running":       {nil, set(by(Now), NotNeeded), is("True", "Preserved by user.", until, 0)},
		"by a user, drained":       {nil, set(by(WhenFailed), Done), is("True", "Preserved by user.", "Preserved node drained successfully. "+until, 0)},
		"by a set":                 {nil, set(by(AutoPreserved), Done), is("True", "Preserved by MCM.", "Preserved node drained successfully. "+until, 0)},
		"drain fails":              {nil, set(by(Now), Failing), is("False", "Preserved by user.", "Preserved node could not be drained. "+until, 0)},
		"drain succeeds later":     {is("False", "Preserved by user.", "Preserved node could not be drained. "+until, -time.Minute), set(by(Now), Done), is("True", "Preserved by user.", "Preserved node drained successfully. "+until, 0)},
		"unchanged":                {is("True", "Preserved by user.", until, -time.Minute), set(by(Now), NotNeeded), is("True", "Preserved by user.", until, -time.Minute)},
		"another expiry":           {is("True", "Preserved by user.", "Machine preserved until tomorrow.", -time.Minute), set(by(Now), NotNeeded), is("True", "Preserved by user.", until, -time.Minute)},
		"failed later":             {is("True", "Preserved by user.", until, -time.Minute), set(by(Now), Done), is("True", "Preserved by user.", "Preserved node drained successfully. "+until, 0)},
		"drained before":           {is("True", "Preserved by user.", "Preserved node drained successfully. "+until, -time.Minute), set(by(Now), Earlier), is("True", "Preserved by user.", "Preserved node drained successfully. "+until, -time.Minute)},
		"stopped":                  {is("True", "Preserved by user.", until, -time.Minute), stop, is("False", "Preservation stopped.", "", 0)},
		"stopped, drain failed":    {is("False", "Preserved by user.", "Preserved node could not be drained.", -time.Minute), stop, is("False", "Preservation stopped.", "", -time.Minute)},
		"stopped, never preserved": {nil, stop, nil},
		"stopped twice":            {is("False", "Preservation stopped.", "", -time.Minute), stop, is("False", "Preservation stopped.", "", -time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(nil)
			if test.given != nil {
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}, *test.given}
			}
			test.change(n)
			if diff := cmp.Diff(test.want, noderef.Condition(n.Status.Conditions, v1alpha1.NodePreserved)); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDrained checks that a node is drained once for each failure of its Machine, whoever preserved it before.
func TestDrained(t *testing.T) {
	is := func(status corev1.ConditionStatus, since time.Duration) *corev1.NodeCondition {
		return &corev1.NodeCondition{Type: v1alpha1.NodePreserved, Status: status, LastTransitionTime: *at(since)}
	}
	untimed := taint
	untimed.TimeAdded = nil
	for name, test := range map[string]struct {
		condition *corev1.NodeCondition
		taints    []corev1.Taint
		want      bool
	}{
		"nothing":                       {nil, nil, false},
		"tainted":                       {nil, []corev1.Taint{taint}, false},
		"preserved before it failed":    {is("True", -time.Minute), []corev1.Taint{taint}, false},
		"drained":                       {is("True", time.Minute), []corev1.Taint{taint}, true},
		"drained in the same second":    {is("True", 0), []corev1.Taint{taint}, true},
		"could not be drained":          {is("False", time.Minute), []corev1.Taint{taint}, false},
		"drained, and recovered since":  {is("True", time.Minute), nil, false},
		"a user's taint without a time": {is("True", time.Minute), []corev1.Taint{untimed}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(nil, test.taints...)
			if test.condition != nil {
				n.Status.Conditions = []corev1.NodeCondition{*test.condition}
			}
			if got := Drained(n); got != test.want {
				t.Errorf("%t, want %t", got, test.want)
			}
		})
	}
}
