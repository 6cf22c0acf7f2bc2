package preservation

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

const (
	own  = v1alpha1.AnnotationKeyPreserve
	last = v1alpha1.AnnotationKeyLastAppliedPreserve

	running = v1alpha1.MachineRunning
	broken  = v1alpha1.MachineFailed
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(after time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(after)} }

// given describes a Machine and its node.
type given struct {
	own, last, node string
	// noNode and hidden set the fields of Facts with these names.
	noNode, hidden bool
	phase          v1alpha1.MachinePhase
	expiry         *metav1.Time
	// owned makes a MachineSet the owner of the Machine. stopped adds a condition to the node that reports the
	// preservation as stopped. template adds the annotation to the node template.
	owned, stopped, template bool
}

func (g given) facts() Facts {
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	for key, value := range map[string]string{own: g.own, last: g.last} {
		if value != "" {
			machine.Annotations[key] = value
		}
	}
	machine.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: g.phase, PreserveExpiryTime: g.expiry}
	if g.owned {
		yes := true
		machine.OwnerReferences = []metav1.OwnerReference{{Kind: "MachineSet", Name: "s", Controller: &yes}}
	}
	f := Facts{Machine: machine, Hidden: g.hidden, Timeout: time.Hour, Now: noon}
	if g.noNode || g.hidden {
		return f
	}
	f.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{}}}
	if g.node != "" {
		f.Node.Annotations[own] = g.node
	}
	if g.stopped {
		f.Node.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodePreserved, Status: corev1.ConditionFalse, Reason: v1alpha1.PreservationStopped}}
	}
	if g.template {
		machine.Spec.NodeTemplateSpec.Annotations = map[string]string{own: g.node}
	}
	return f
}

// TestDecide checks each value in each state, on the Machine and on its node.
func TestDecide(t *testing.T) {
	ahead, past, begun := at(time.Minute), at(0), at(time.Hour)
	for name, test := range map[string]struct {
		given given
		want  Plan
	}{
		"nothing":                             {given{phase: broken}, Plan{}},
		"an expiry without an annotation":     {given{phase: running, expiry: ahead}, Plan{Action: Stop}},
		"a past expiry without an annotation": {given{phase: running, expiry: past}, Plan{Action: Stop}},

		"false":                        {given{own: Never, phase: broken}, Plan{Value: Never, Own: Never}},
		"false, preserved":             {given{own: Never, phase: broken, expiry: ahead}, Plan{Action: Stop, Value: Never, Own: Never}},
		"false on the node":            {given{node: Never, phase: running}, Plan{Value: Never, LastApplied: Never}},
		"false on the node, preserved": {given{node: Never, last: Now, phase: running, expiry: ahead}, Plan{Action: Stop, Value: Never, LastApplied: Never}},

		"when failed, running":               {given{own: WhenFailed, phase: running}, Plan{Value: WhenFailed, Own: WhenFailed}},
		"when failed, unknown":               {given{own: WhenFailed, phase: v1alpha1.MachineUnknown}, Plan{Value: WhenFailed, Own: WhenFailed}},
		"when failed, failed":                {given{own: WhenFailed, phase: broken}, Plan{Action: Preserve, Value: WhenFailed, Own: WhenFailed, Expiry: begun}},
		"when failed, preserved":             {given{own: WhenFailed, phase: broken, expiry: ahead}, Plan{Action: Preserve, Value: WhenFailed, Own: WhenFailed, Expiry: ahead}},
		"when failed, recovered":             {given{own: WhenFailed, phase: running, expiry: ahead}, Plan{Action: Stop, Value: WhenFailed, Own: WhenFailed}},
		"when failed, expired":               {given{own: WhenFailed, phase: broken, expiry: past}, Plan{Action: Stop, Value: WhenFailed}},
		"when failed on the node, expired":   {given{node: WhenFailed, last: WhenFailed, phase: broken, expiry: past}, Plan{Action: Stop, Value: WhenFailed, RemoveAnnotation: true}},
		"when failed on the node, failed":    {given{node: WhenFailed, phase: broken}, Plan{Action: Preserve, Value: WhenFailed, LastApplied: WhenFailed, Expiry: begun}},
		"when failed on the node, running":   {given{node: WhenFailed, phase: running}, Plan{Value: WhenFailed, LastApplied: WhenFailed}},
		"when failed on the node, recovered": {given{node: WhenFailed, last: WhenFailed, phase: running, expiry: ahead}, Plan{Action: Stop, Value: WhenFailed, LastApplied: WhenFailed}},

		"now, running":             {given{own: Now, phase: running}, Plan{Action: Preserve, Value: Now, Own: Now, Expiry: begun}},
		"now, being created":       {given{own: Now, noNode: true}, Plan{Action: Preserve, Value: Now, Own: Now, Expiry: begun}},
		"now, failed":              {given{own: Now, phase: broken}, Plan{Action: Preserve, Value: Now, Own: Now, Expiry: begun}},
		"now, far in the future":   {given{own: Now, phase: running, expiry: at(24 * 365 * time.Hour)}, Plan{Action: Preserve, Value: Now, Own: Now, Expiry: at(24 * 365 * time.Hour)}},
		"now, expired":             {given{own: Now, phase: running, expiry: past}, Plan{Action: Stop, Value: Now}},
		"now on the node, expired": {given{node: Now, last: Now, phase: running, expiry: past}, Plan{Action: Stop, Value: Now, RemoveAnnotation: true}},

		"auto, failed":    {given{own: AutoPreserved, phase: broken}, Plan{Action: Preserve, Value: AutoPreserved, Own: AutoPreserved, Expiry: begun}},
		"auto, expired":   {given{own: AutoPreserved, phase: broken, expiry: past}, Plan{Action: Stop, Value: AutoPreserved}},
		"auto, recovered": {given{own: AutoPreserved, phase: running, expiry: ahead}, Plan{Action: Stop, Value: AutoPreserved}},
		"auto, recovered before its expiry is set": {given{own: AutoPreserved, phase: running}, Plan{Value: AutoPreserved}},

		"the node's value replaces the machine's":       {given{own: WhenFailed, node: Now, phase: running}, Plan{Action: Preserve, Value: Now, LastApplied: Now, Expiry: begun}},
		"the node's value changes":                      {given{node: WhenFailed, last: Now, phase: running, expiry: ahead}, Plan{Action: Stop, Value: WhenFailed, LastApplied: WhenFailed}},
		"the node's value was removed":                  {given{last: Now, phase: running, expiry: ahead}, Plan{Action: Stop}},
		"the node's value was removed, its own is left": {given{own: Now, last: Now, phase: running, expiry: ahead}, Plan{Action: Stop}},
		"the machine's value was removed":               {given{phase: running, expiry: ahead}, Plan{Action: Stop}},
		"the machine's value changes":                   {given{own: WhenFailed, phase: running, expiry: ahead}, Plan{Action: Stop, Value: WhenFailed, Own: WhenFailed}},
		"the node is gone, own value":                   {given{own: WhenFailed, noNode: true, phase: broken, expiry: ahead}, Plan{Action: Preserve, Value: WhenFailed, Own: WhenFailed, Expiry: ahead}},
		"the node is gone, its value was used":          {given{last: Now, noNode: true, phase: broken, expiry: ahead}, Plan{Action: Stop}},

		"invalid":                        {given{own: "please", phase: broken}, Plan{Own: "please", Invalid: "of the machine"}},
		"invalid, preserved":             {given{own: "NOW", phase: running, expiry: ahead}, Plan{Action: Stop, Own: "NOW", Invalid: "of the machine"}},
		"invalid on the node":            {given{node: "True", phase: broken}, Plan{Invalid: "of node n"}},
		"invalid on the node, own value": {given{own: WhenFailed, node: "True", phase: broken}, Plan{Action: Preserve, Value: WhenFailed, Own: WhenFailed, Expiry: begun, Invalid: "of node n"}},
		"invalid on the node, preserved": {given{node: "nwo", last: Now, phase: running, expiry: ahead}, Plan{Action: Preserve, Value: Now, LastApplied: Now, Expiry: ahead, Invalid: "of node n"}},
		"invalid on the node, expired":   {given{node: "nwo", last: Now, phase: running, expiry: past}, Plan{Action: Stop, Value: Now, RemoveAnnotation: true, Invalid: "of node n"}},

		"hidden, own value":            {given{own: Now, hidden: true, phase: running}, Plan{Action: Preserve, Value: Now, Own: Now, Expiry: begun}},
		"hidden, the node's value":     {given{last: Now, hidden: true, phase: running}, Plan{Action: Preserve, Value: Now, LastApplied: Now, Expiry: begun}},
		"hidden, nothing stops":        {given{own: Never, hidden: true, phase: running, expiry: ahead}, Plan{Value: Never, Own: Never, Expiry: ahead}},
		"hidden, expired":              {given{last: Now, hidden: true, phase: running, expiry: past}, Plan{Value: Now, LastApplied: Now, Expiry: past}},
		"in a set, expired":            {given{own: AutoPreserved, owned: true, phase: broken, expiry: past}, Plan{Action: Stop, Value: AutoPreserved, Expiry: past}},
		"in a set, expired, stopped":   {given{owned: true, stopped: true, phase: broken, expiry: past}, Plan{Expiry: past}},
		"in a set, recovered":          {given{owned: true, stopped: true, phase: running, expiry: past}, Plan{Action: Stop}},
		"in a set, expired, no node":   {given{own: WhenFailed, owned: true, noNode: true, phase: broken, expiry: past}, Plan{Value: WhenFailed, Expiry: past}},
		"the template's value is kept": {given{node: WhenFailed, last: WhenFailed, template: true, owned: true, phase: broken, expiry: past}, Plan{Action: Stop, Value: WhenFailed, Expiry: past}},
	} {
		t.Run(name, func(t *testing.T) {
			f := test.given.facts()
			before := f.Machine.DeepCopy()
			got := Decide(f)
			if !strings.Contains(got.Invalid, test.want.Invalid) || (got.Invalid == "") != (test.want.Invalid == "") {
				t.Errorf("invalid: %q, want %q", got.Invalid, test.want.Invalid)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(Plan{}, "Invalid")); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, f.Machine); diff != "" {
				t.Errorf("the facts changed:\n%s", diff)
			}
			if got.Action != None && !Concerns(f) {
				t.Error("Concerns is false")
			}
		})
	}
}

// TestConcerns checks that only Machines with a trace of a preservation need further work.
func TestConcerns(t *testing.T) {
	for name, test := range map[string]struct {
		given given
		want  bool
	}{
		"nothing":            {given{phase: broken}, false},
		"nothing, no node":   {given{phase: broken, noNode: true}, false},
		"own":                {given{own: Now}, true},
		"own, invalid":       {given{own: "please"}, true},
		"last applied":       {given{last: Now}, true},
		"of the node":        {given{node: Now}, true},
		"of the node, false": {given{node: Never}, true},
		"an expiry":          {given{expiry: at(0)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Concerns(test.given.facts()); got != test.want {
				t.Errorf("%t, want %t", got, test.want)
			}
		})
	}
}

// TestDecide_IsIdempotent checks that deciding again on the result of a plan changes nothing, whatever was
// requested.
func TestDecide_IsIdempotent(t *testing.T) {
	values := append([]string{"", "nonsense"}, Values...)
	for _, ownValue := range values {
		for _, lastValue := range values {
			for _, nodeValue := range values {
				for _, phase := range []v1alpha1.MachinePhase{running, broken} {
					for _, expiry := range []*metav1.Time{nil, at(0), at(time.Minute)} {
						for _, template := range []bool{false, true} {
							settles(t, given{own: ownValue, last: lastValue, node: nodeValue, phase: phase, expiry: expiry, owned: true, template: template})
						}
					}
				}
			}
		}
	}
}

func settles(t *testing.T, g given) {
	t.Helper()
	for range 3 {
		f := g.facts()
		p := Decide(f)
		next := g
		next.own, next.last = p.Own, p.LastApplied
		if p.Action != None {
			next.expiry = p.Expiry
		}
		if p.RemoveAnnotation {
			next.node = ""
		}
		next.stopped = g.stopped && p.Action != Preserve || p.Action == Stop
		if cmp.Equal(next, g, cmp.AllowUnexported(given{})) {
			return
		}
		g = next
	}
	t.Errorf("not settled: %+v", g)
}
