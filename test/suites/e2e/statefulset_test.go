package e2e

import (
	"context"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/manager"
)

// statefulSet replaces all nodes of a StatefulSet with local volumes. At most one of its Pods is unavailable at a
// time: a drain continues only when the disruption budget permits it, after the other Pod is available again.
func statefulSet(c *cluster) {
	before := c.awaitSettled()
	set, budget := stores()
	for _, object := range []client.Object{set, budget} {
		if err := c.client.Create(c.t.Context(), object); err != nil {
			c.t.Fatal(err)
		}
	}
	first := c.storesOn(before)
	end := c.watchStores(set)
	c.run("rollout", "restart", "pool")
	var after []string
	c.eventually(late, func(g gomega.Gomega) {
		after = c.settled(g)
		for _, name := range after {
			g.Expect(before).NotTo(gomega.ContainElement(name))
		}
	})
	second := c.storesOn(after)
	least := end()
	if want := *set.Spec.Replicas - 1; least != want {
		c.t.Errorf("at the worst moment %d Pods were available, want %d", least, want)
	}
	for name, pod := range second {
		if pod.UID == first[name].UID {
			c.t.Errorf("%s is the same Pod on another node", name)
		}
		if len(pod.Status.ContainerStatuses) != 1 || pod.Status.ContainerStatuses[0].RestartCount > 0 {
			c.t.Errorf("%s was more than moved: %+v", name, pod.Status.ContainerStatuses)
		}
	}
	for _, object := range []client.Object{budget, set} {
		if err := c.client.Delete(c.t.Context(), object); err != nil {
			c.t.Fatal(err)
		}
	}
}

// stores creates a StatefulSet with a Pod on each of two nodes, whose volumes are local (emptyDir: there is no
// CSI driver here), and a disruption budget that permits one disruption.
func stores() (*appsv1.StatefulSet, *policyv1.PodDisruptionBudget) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "store"}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "store"}}
	apart := []corev1.PodAffinityTerm{{LabelSelector: selector, TopologyKey: corev1.LabelHostname}}
	set := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](2), Selector: selector, ServiceName: "store",
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: selector.MatchLabels},
			Spec: corev1.PodSpec{
				Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: apart}},
				Containers: []corev1.Container{{
					Name: "store", Image: image, ImagePullPolicy: corev1.PullNever, Args: []string{"pause"},
					VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				}},
				Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			},
		},
	}}
	one := intstr.FromInt32(1)
	return set, &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: selector}}
}

// storesOn waits until each node of the machines has a Pod of the StatefulSet, and returns the Pods by name.
func (c *cluster) storesOn(machines []string) map[string]corev1.Pod {
	c.t.Helper()
	var pods map[string]corev1.Pod
	c.eventually(late, func(g gomega.Gomega) {
		list, nodes := &corev1.PodList{}, []string(nil)
		g.Expect(c.client.List(c.t.Context(), list, client.MatchingLabels{"app": "store"})).To(gomega.Succeed())
		pods = map[string]corev1.Pod{}
		for _, pod := range list.Items {
			g.Expect(pod.Status.Phase).To(gomega.Equal(corev1.PodRunning), pod.Name)
			pods[pod.Name] = pod
			nodes = append(nodes, pod.Spec.NodeName)
		}
		g.Expect(nodes).To(gomega.ConsistOf(machines))
		set := &appsv1.StatefulSet{}
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: namespace, Name: "store"}, set)).To(gomega.Succeed())
		g.Expect(set.Status.AvailableReplicas).To(gomega.Equal(*set.Spec.Replicas))
	})
	return pods
}

// watchStores records how many Pods of the StatefulSet are available until end is called, which returns the
// minimum.
func (c *cluster) watchStores(set *appsv1.StatefulSet) (end func() (least int32)) {
	c.t.Helper()
	watching, err := client.NewWithWatch(c.config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	events, err := watching.Watch(ctx, &appsv1.StatefulSetList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": set.Name})
	if err != nil {
		c.t.Fatal(err)
	}
	least, ended := *set.Spec.Replicas, make(chan struct{})
	go func() {
		defer close(ended)
		for event := range events.ResultChan() {
			if seen, ok := event.Object.(*appsv1.StatefulSet); ok {
				least = min(least, seen.Status.AvailableReplicas)
			}
		}
	}()
	return func() int32 {
		cancel()
		<-ended
		return least
	}
}
