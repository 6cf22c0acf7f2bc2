package planner

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

func TestAPreservedNodeStaysProtected(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(1, fixture.OfClass("b")), sets{fixture.Set("a", 0), fixture.Set("b", 1)}, fixture.Noon)
	machine := fixture.Member(f.Current, "m")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{
		v1alpha1.AnnotationKeyScaleDownDisabled: "true", v1alpha1.AnnotationKeyScaleDownDisabledByMCM: "true",
	}}}
	f.Nodes = &Nodes{OfCurrent: []Node{{machine, node}}, Protect: true}
	if got := planNodes(f); len(got) != 1 || len(got[0].Nodes[0].New.Annotations) != 0 {
		t.Errorf("the marks of a rollout that is over stay: %+v", got)
	}
	machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: fixture.Noon.Add(1)}
	if got := planNodes(f); len(got) != 0 {
		t.Errorf("a preserved node is released: %+v", got)
	}
	if len(node.Annotations) != 2 {
		t.Error("the node of the cache was changed")
	}
}
