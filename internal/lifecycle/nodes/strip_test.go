package nodes_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
)

// stored is a node as its kubelet reports it.
func stored() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "uid"},
		Spec:       corev1.NodeSpec{ProviderID: "sim:///node"},
		Status: corev1.NodeStatus{
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Images:          []corev1.ContainerImage{{Names: []string{"image"}, SizeBytes: 1}},
			VolumesInUse:    []corev1.UniqueVolumeName{"volume"},
			VolumesAttached: []corev1.AttachedVolume{{Name: "volume"}},
			RuntimeHandlers: []corev1.NodeRuntimeHandler{{Name: "runc"}},
			NodeInfo:        corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
		},
	}
}

// TestStrip_RemovesOnlyUnusedLists checks what is left of a node, and that a stripped node is not written to again.
func TestStrip_RemovesOnlyUnusedLists(t *testing.T) {
	got, want := stored(), stored()
	want.Status.Images, want.Status.VolumesInUse, want.Status.RuntimeHandlers = nil, nil, nil
	if nodes.Strip(got) != got {
		t.Error("the stripped node is a copy")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stripped node, -want +got:\n%s", diff)
	}
	read := make(chan struct{})
	go func() { // the race detector would notice a write
		defer close(read)
		_ = got.Status.Images
	}()
	nodes.Strip(got)
	<-read
	if pod := (&corev1.Pod{}); nodes.Strip(pod) != pod {
		t.Error("a Pod is replaced")
	}
}

// TestWriter_KeepsWhatIsStripped checks that writes that begin with a stripped node keep everything that the API server has.
func TestWriter_KeepsWhatIsStripped(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(stored()).WithStatusSubresource(&corev1.Node{}).Build()
	node := &corev1.Node{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "node"}, node); err != nil {
		t.Fatal(err)
	}
	nodes.Strip(node)
	writer := &nodes.Writer{}
	if err := writer.Patch(t.Context(), c, &node, func(n *corev1.Node) error {
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{{Key: "key", Effect: corev1.TaintEffectNoSchedule}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	nodes.Strip(node)
	if err := writer.PatchStatus(t.Context(), c, &node, func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Terminating", Status: corev1.ConditionTrue})
	}); err != nil {
		t.Fatal(err)
	}
	after := &corev1.Node{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "node"}, after); err != nil {
		t.Fatal(err)
	}
	if !after.Spec.Unschedulable || len(after.Spec.Taints) != 1 || len(after.Status.Conditions) != 2 {
		t.Errorf("the changes were not written: %+v", after)
	}
	want := stored().Status
	want.Conditions = after.Status.Conditions
	if diff := cmp.Diff(want, after.Status); diff != "" {
		t.Errorf("status, -want +got:\n%s", diff)
	}
}
