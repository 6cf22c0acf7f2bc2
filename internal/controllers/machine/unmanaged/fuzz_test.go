package unmanaged

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/absurd"
)

// FuzzReconcile checks that for any nodes and Machines, a node is marked if and only if it has had no Machine for
// the grace period, and that nothing else changes except the finalizer.
func FuzzReconcile(f *testing.F) {
	f.Add([]byte(nil), []byte(nil), true)
	absurd.Seed(f, func(data []byte) {
		f.Add(data, data, len(data)%2 == 0)
	})
	f.Fuzz(func(t *testing.T, ofNode, ofMachine []byte, has bool) {
		node := newNode(24 * time.Hour)
		absurd.Objects(ofNode, node)
		h := newHarness(t, node)
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "shoot", Name: "m", Labels: map[string]string{v1alpha1.NodeLabelKey: "n"}}}
		absurd.Objects(ofMachine, machine)
		machine.DeletionTimestamp = nil // objects cannot be created with it
		if !has {
			machine.Labels = nil
		}
		if err := h.machines.Create(t.Context(), machine); err != nil {
			t.Skip(err) // an API server would reject it
		}
		before := h.node()
		for range 4 {
			absurd.Within("a pass", func() {
				if _, err := h.controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "n"}}); err != nil {
					t.Error(err)
				}
			})
			h.clock.Step(grace)
		}
		if h.writes > 1 {
			t.Errorf("%d writes", h.writes)
		}
		after := &corev1.Node{}
		if err := h.nodes.Get(t.Context(), client.ObjectKey{Name: "n"}, after); err != nil {
			if before.DeletionTimestamp == nil || len(kept(before).Finalizers) > 0 {
				t.Errorf("cannot read the node: %v", err)
			}
			return
		}
		checkMark(t, before, after, machine.Labels[v1alpha1.NodeLabelKey] == "n")
		if diff := cmp.Diff(kept(before), kept(after)); diff != "" {
			t.Errorf("unexpected changes (-before +after):\n%s", diff)
		}
	})
}

// checkMark checks whether a node is marked if it should be.
func checkMark(t *testing.T, before, after *corev1.Node, owned bool) {
	t.Helper()
	_, marked := after.Annotations[v1alpha1.AnnotationKeyNotManaged]
	if owned && marked {
		t.Error("the node has a Machine but is marked")
	} else if young := before.CreationTimestamp.After(begin); !owned && !young && !marked {
		t.Error("the node has no Machine but is not marked")
	}
}

// kept returns a copy of the node that contains only what must not change.
func kept(node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	node.ResourceVersion = ""
	node.Finalizers = slices.DeleteFunc(node.Finalizers, func(name string) bool { return name == v1alpha1.FinalizerNode })
	maps.DeleteFunc(node.Annotations, func(key, _ string) bool { return key == v1alpha1.AnnotationKeyNotManaged })
	if len(node.Finalizers) == 0 {
		node.Finalizers = nil
	}
	if len(node.Annotations) == 0 {
		node.Annotations = nil
	}
	return node
}
