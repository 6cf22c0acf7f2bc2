package hostrunner

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

func (b *testHost) nodeReady() (bool, any) {
	node, err := b.client.CoreV1().Nodes().Get(b.t.Context(), b.config.Name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue, node.Status
		}
	}
	return false, node.Status
}

// requireHost checks a Node with 7 CPUs and 5 GiB.
func requireHost(t *testing.T, node *corev1.Node) {
	t.Helper()
	if value, ok := node.Labels[vmv1alpha1.HostKey]; !ok || value != "" {
		t.Errorf("the labels are %v", node.Labels)
	}
	want := corev1.Taint{Key: vmv1alpha1.HostKey, Effect: corev1.TaintEffectNoSchedule}
	tainted := false
	for _, taint := range node.Spec.Taints {
		tainted = tainted || taint == want
	}
	if !tainted {
		t.Errorf("the taints are %v, want %v among them", node.Spec.Taints, want)
	}
	for name, want := range map[corev1.ResourceName]string{"cpu": "7", "memory": "5Gi", "pods": "110"} {
		if have := node.Status.Allocatable[name]; have.Cmp(*quantity(want)) != 0 {
			t.Errorf("it offers %s of %s, want %s", have.String(), name, want)
		}
	}
	if storage := node.Status.Allocatable[corev1.ResourceEphemeralStorage]; storage.Sign() <= 0 {
		t.Errorf("it offers %s of storage", storage.String())
	}
}

func TestHost_Node(t *testing.T) {
	b := newTestHost(t)
	b.config.Capacity = corev1.ResourceList{corev1.ResourceCPU: *quantity("7"), corev1.ResourceMemory: *quantity("5Gi")}
	b.start()
	b.eventually("the Node", b.nodeReady)
	nodes := b.client.CoreV1().Nodes()
	node, err := nodes.Get(t.Context(), b.config.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	requireHost(t, node)
	t.Run("Lease", func(t *testing.T) {
		b.eventually("the lease", func() (bool, any) {
			lease, err := b.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), b.config.Name, metav1.GetOptions{})
			return err == nil && lease.Spec.RenewTime != nil, err
		})
	})
	t.Run("Labels", func(t *testing.T) {
		if _, err := nodes.Patch(t.Context(), node.Name, types.StrategicMergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		b.eventually("the label's return", func() (bool, any) {
			have, err := nodes.Get(t.Context(), node.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return cmp.Equal(node.Labels, have.Labels), have.Labels
		})
	})
	t.Run("Deleted", func(t *testing.T) {
		if err := nodes.Delete(t.Context(), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.eventually("another Node", func() (bool, any) {
			have, err := nodes.Get(t.Context(), node.Name, metav1.GetOptions{})
			return err == nil && have.UID != node.UID, err
		})
	})
}
