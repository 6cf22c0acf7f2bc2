package crash

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// givenPod creates a running Machine whose node has a Pod, with a disruption budget that permits its eviction.
func givenPod(ctx context.Context, r *run) error {
	if err := givenDeployment(1)(ctx, r); err != nil {
		return err
	}
	node, err := r.anyNode(ctx)
	if err != nil {
		return err
	}
	labels := map[string]string{"app": "guest"}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "budget"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		},
	}
	pod := podOn(node, "guest", labels)
	if err := r.createIn(ctx, r.target, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, budget, pod); err != nil {
		return err
	}
	if err := r.count(ctx, budget, policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 1, ExpectedPods: 1}); err != nil {
		return err
	}
	return r.makeReady(ctx, pod)
}

// podOn returns a Pod on a node.
func podOn(node, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "guest", Image: "none"}},
			// There is no kubelet, so the Pod must be deleted immediately.
			TerminationGracePeriodSeconds: ptr.To[int64](0), AutomountServiceAccountToken: ptr.To(false),
		},
	}
}

// count sets the status that the disruption controller would set.
func (r *run) count(ctx context.Context, budget *policyv1.PodDisruptionBudget, status policyv1.PodDisruptionBudgetStatus) error {
	budget.Status = status
	budget.Status.ObservedGeneration = budget.Generation
	if err := r.target.Client.Status().Update(ctx, budget); err != nil {
		return fmt.Errorf("counting disruptions: %w", err)
	}
	return nil
}

func (r *run) makeReady(ctx context.Context, pod *corev1.Pod) error {
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return r.target.Client.Status().Update(ctx, pod)
}

func (r *run) anyNode(ctx context.Context) (string, error) {
	nodes := &corev1.NodeList{}
	if err := r.target.Client.List(ctx, nodes, client.Limit(1)); err != nil {
		return "", err
	}
	if len(nodes.Items) == 0 {
		return "", errors.New("there is no node")
	}
	return nodes.Items[0].Name, nil
}
