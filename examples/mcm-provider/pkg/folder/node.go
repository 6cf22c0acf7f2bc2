package folder

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodesMade counts created nodes. It is registered with the default registerer, as in most programs.
var nodesMade = prometheus.NewCounter(prometheus.CounterOpts{Name: "folder_nodes_total", Help: "Number of created nodes."})

func init() { prometheus.MustRegister(nodesMade) }

// join acts as the kubelet of a VM: it creates a node that is ready.
func (d *Driver) join(ctx context.Context, v *vm) error {
	ready := []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: v.Machine},
		Spec:       corev1.NodeSpec{ProviderID: scheme + v.ID},
	}
	node, err := d.nodes.Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		node, err = d.nodes.Get(ctx, v.Machine, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	node.Status.Conditions = ready
	if _, err = d.nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err == nil {
		nodesMade.Inc()
	}
	return err
}
