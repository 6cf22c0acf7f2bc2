package noderef_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const record = v1alpha1.AnnotationKeyLastAppliedNodeTemplate

func newMachine(template v1alpha1.NodeTemplateSpec) *v1alpha1.Machine {
	m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "machine-1"}}
	m.Spec.NodeTemplateSpec = template
	return m
}

// fatal is implemented by *testing.T and *rapid.T.
type fatal interface {
	Helper()
	Fatal(args ...any)
}

func adopt(t fatal, n *corev1.Node, template v1alpha1.NodeTemplateSpec) {
	t.Helper()
	if err := noderef.Adopt(n, newMachine(template)); err != nil {
		t.Fatal(err)
	}
}

func labelled(labels map[string]string) v1alpha1.NodeTemplateSpec {
	return v1alpha1.NodeTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
}

func tainted(taints ...corev1.Taint) v1alpha1.NodeTemplateSpec {
	return v1alpha1.NodeTemplateSpec{Spec: corev1.NodeSpec{Taints: taints}}
}

func TestAdopt_MarksNode(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Finalizers: []string{"theirs"}, Labels: map[string]string{"user": "x"}}}
	adopt(t, n, v1alpha1.NodeTemplateSpec{})
	want := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "node-1", Finalizers: []string{"theirs", v1alpha1.FinalizerNode},
		Labels: map[string]string{"user": "x", v1alpha1.LabelKeyMachineName: "machine-1"},
	}}
	if diff := cmp.Diff(want, n); diff != "" {
		t.Errorf("record of an empty template (-want +got):\n%s", diff)
	}
	noderef.Release(n)
	if !slices.Equal(n.Finalizers, []string{"theirs"}) {
		t.Errorf("finalizers after Release: %v", n.Finalizers)
	}
}

func TestAdopt_Taints(t *testing.T) {
	taint := func(key, value string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Value: value, Effect: effect}
	}
	since := metav1.Now()
	evicting := taint("a", "1", corev1.TaintEffectNoExecute)
	evicting.TimeAdded = &since
	cases := map[string]struct {
		reason        string
		before        []corev1.Taint
		applied, want []corev1.Taint
		after         []corev1.Taint
	}{
		"added": {
			"new taints are appended", []corev1.Taint{taint("user", "", "NoSchedule")},
			nil, []corev1.Taint{taint("a", "1", "NoSchedule")},
			[]corev1.Taint{taint("user", "", "NoSchedule"), taint("a", "1", "NoSchedule")},
		},
		"put right": {
			"a changed value is reset to the template's, in its place",
			[]corev1.Taint{taint("a", "2", "NoSchedule"), taint("user", "", "NoSchedule")},
			[]corev1.Taint{taint("a", "1", "NoSchedule")}, []corev1.Taint{taint("a", "1", "NoSchedule")},
			[]corev1.Taint{taint("a", "1", "NoSchedule"), taint("user", "", "NoSchedule")},
		},
		"removed": {
			"a taint that the template no longer contains is removed",
			[]corev1.Taint{taint("a", "1", "NoSchedule"), taint("user", "", "NoSchedule")},
			[]corev1.Taint{taint("a", "1", "NoSchedule")}, nil,
			[]corev1.Taint{taint("user", "", "NoSchedule")},
		},
		"effect": {
			"a key with another effect is another taint",
			[]corev1.Taint{taint("a", "1", "NoSchedule")},
			[]corev1.Taint{taint("a", "1", "NoExecute")}, nil,
			[]corev1.Taint{taint("a", "1", "NoSchedule")},
		},
		"time": {
			"the time at which a taint was added determines when Pods are evicted",
			[]corev1.Taint{evicting}, nil, []corev1.Taint{taint("a", "1", "NoExecute")}, []corev1.Taint{evicting},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{}
			adopt(t, n, tainted(tc.applied...))
			n.Spec.Taints = tc.before
			adopt(t, n, tainted(tc.want...))
			if diff := cmp.Diff(tc.after, n.Spec.Taints); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestAdopt_CorruptRecord(t *testing.T) {
	for name, text := range map[string]string{"not JSON": "oops", "other JSON": `{"metadata":{"labels":["x"]}}`, "half of it": `{"metadata":{"labels":{"old":"template's"},"annotations":1}}`, "a number": "1", "null": "null", "empty": ""} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"user": "x", "old": "template's"}, Annotations: map[string]string{record: text},
			}}
			adopt(t, n, labelled(map[string]string{"new": "1"}))
			want := map[string]string{"user": "x", "old": "template's", "new": "1", v1alpha1.LabelKeyMachineName: "machine-1"}
			if diff := cmp.Diff(want, n.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			adopt(t, n, labelled(nil))
			if _, left := n.Labels["new"]; left {
				t.Error("the new record does not contain what was applied")
			}
		})
	}
}

func TestAdopt_EquivalentRecordIsKept(t *testing.T) {
	const older = `{"spec":{},"metadata":{"creationTimestamp":null,"labels":{"a":"1"}}}`
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "1"}, Annotations: map[string]string{record: older}}}
	adopt(t, n, labelled(map[string]string{"a": "1"}))
	if got := n.Annotations[record]; got != older {
		t.Errorf("an equivalent record was rewritten: %s", got)
	}
}

func TestAdopt_TemplateCannotSetOwnMetadata(t *testing.T) {
	n := &corev1.Node{}
	forged := v1alpha1.NodeTemplateSpec{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{record: "forged"}, Labels: map[string]string{v1alpha1.LabelKeyMachineName: "forged"},
	}}
	adopt(t, n, forged)
	once := n.DeepCopy()
	adopt(t, n, forged)
	if diff := cmp.Diff(once, n); diff != "" {
		t.Errorf("the node is rewritten in every pass (-once +twice):\n%s", diff)
	}
	adopt(t, n, v1alpha1.NodeTemplateSpec{})
	if n.Annotations[record] == "forged" || n.Labels[v1alpha1.LabelKeyMachineName] != "machine-1" {
		t.Errorf("annotations %v, labels %v", n.Annotations, n.Labels)
	}
}

// modelled is a node, its template, and a model of the metadata and taints that the node must have.
type modelled struct {
	node     *corev1.Node
	template v1alpha1.NodeTemplateSpec
	// users holds what users added to the node. Only users may remove it.
	users v1alpha1.NodeTemplateSpec
}

var (
	templateKeys = rapid.SampledFrom([]string{"t/a", "t/b", "t/c", "t/d"})
	userKeys     = rapid.SampledFrom([]string{"u/a", "u/b", "u/c"})
	values       = rapid.SampledFrom([]string{"", "1", "2"})
	effects      = rapid.SampledFrom([]corev1.TaintEffect{"NoSchedule", "NoExecute", "PreferNoSchedule"})
)

func drawTemplate(rt *rapid.T) v1alpha1.NodeTemplateSpec {
	return v1alpha1.NodeTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      rapid.MapOf(templateKeys, values).Draw(rt, "labels"),
			Annotations: rapid.MapOf(templateKeys, values).Draw(rt, "annotations"),
		},
		Spec: corev1.NodeSpec{Taints: rapid.SliceOfDistinct(drawTaints(templateKeys), identity).Draw(rt, "taints")},
	}
}

func drawTaints(keys *rapid.Generator[string]) *rapid.Generator[corev1.Taint] {
	return rapid.Custom(func(rt *rapid.T) corev1.Taint {
		return corev1.Taint{Key: keys.Draw(rt, "key"), Value: values.Draw(rt, "value"), Effect: effects.Draw(rt, "effect")}
	})
}

func identity(taint corev1.Taint) string { return taint.Key + ":" + string(taint.Effect) }

// TestAdopt_ThreeWayMerge checks that, after any sequence of templates and of changes by users, the node has exactly
// the content of its template and what users added, and that a second Adopt changes nothing.
func TestAdopt_ThreeWayMerge(t *testing.T) {
	tier.Check(t, func(rt *rapid.T) {
		w := &modelled{node: &corev1.Node{}}
		w.node.Labels, w.node.Annotations = map[string]string{}, map[string]string{}
		w.users.Labels, w.users.Annotations = map[string]string{}, map[string]string{}
		rt.Repeat(map[string]func(*rapid.T){
			"template":        func(rt *rapid.T) { w.template = drawTemplate(rt); w.adopt(rt) },
			"user labels":     func(rt *rapid.T) { put(rt, w.node.Labels, w.users.Labels) },
			"user annotates":  func(rt *rapid.T) { put(rt, w.node.Annotations, w.users.Annotations) },
			"user taints":     w.userTaints,
			"user interferes": w.interfere,
			"again":           func(rt *rapid.T) { w.adopt(rt) },
		})
	})
}

func put(rt *rapid.T, maps ...map[string]string) {
	key, value := userKeys.Draw(rt, "key"), values.Draw(rt, "value")
	for _, m := range maps {
		m[key] = value
	}
}

func (w *modelled) userTaints(rt *rapid.T) {
	taint := drawTaints(userKeys).Draw(rt, "taint")
	if !slices.ContainsFunc(w.node.Spec.Taints, func(other corev1.Taint) bool { return identity(other) == identity(taint) }) {
		w.node.Spec.Taints = append(w.node.Spec.Taints, taint)
		w.users.Spec.Taints = append(w.users.Spec.Taints, taint)
	}
}

// interfere changes values that the template owns.
func (w *modelled) interfere(rt *rapid.T) {
	key := templateKeys.Draw(rt, "key")
	delete(w.node.Labels, key)
	if _, ok := w.node.Annotations[key]; ok {
		w.node.Annotations[key] = "changed"
	}
	w.node.Spec.Taints = slices.DeleteFunc(w.node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
}

func (w *modelled) adopt(rt *rapid.T) {
	before := w.node.DeepCopy()
	adopt(rt, w.node, w.template)
	once := w.node.DeepCopy()
	adopt(rt, w.node, w.template)
	if diff := cmp.Diff(once, w.node); diff != "" {
		rt.Fatalf("a second Adopt changes the node (-once +twice):\n%s", diff)
	}
	labels := both(w.users.Labels, w.template.Labels)
	labels[v1alpha1.LabelKeyMachineName] = "machine-1"
	if diff := cmp.Diff(labels, w.node.Labels); diff != "" {
		rt.Fatalf("labels (-want +got):\n%s", diff)
	}
	annotations := maps.Clone(w.node.Annotations)
	delete(annotations, record)
	if diff := cmp.Diff(both(w.users.Annotations, w.template.Annotations), annotations); diff != "" {
		rt.Fatalf("annotations (-want +got):\n%s", diff)
	}
	w.checkTaints(rt, before.Spec.Taints)
}

func both(a, b map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

func (w *modelled) checkTaints(rt *rapid.T, before []corev1.Taint) {
	describe := func(taints []corev1.Taint) []string {
		var list []string
		for _, taint := range taints {
			list = append(list, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
		}
		return slices.Sorted(slices.Values(list))
	}
	want := slices.Concat(w.users.Spec.Taints, w.template.Spec.Taints)
	if diff := cmp.Diff(describe(want), describe(w.node.Spec.Taints)); diff != "" {
		rt.Fatalf("taints (-want +got):\n%s", diff)
	}
	// The taints that remain come first, in their old order.
	var stayed []string
	for _, taint := range before {
		if slices.ContainsFunc(want, func(other corev1.Taint) bool { return identity(other) == identity(taint) }) {
			stayed = append(stayed, identity(taint))
		}
	}
	for i, is := range stayed {
		if identity(w.node.Spec.Taints[i]) != is {
			rt.Fatalf("taints changed their order: %v, want %v first", w.node.Spec.Taints, stayed)
		}
	}
}
