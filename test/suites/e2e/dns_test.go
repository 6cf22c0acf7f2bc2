package e2e

import (
	"slices"
	"strings"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// names runs a Pod that resolves Services by name, and accesses the API server with its service account.
func names(c *cluster) {
	c.awaitSettled()
	web, api := c.clusterIP("web"), c.clusterIP("kubernetes")
	c.eventually(late, func(g gomega.Gomega) {
		dns := &appsv1.Deployment{}
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "coredns"}, dns)).To(gomega.Succeed())
		g.Expect(*dns.Spec.Replicas).To(gomega.BeEquivalentTo(2), "one for each node")
		g.Expect(dns.Status.AvailableReplicas).To(gomega.Equal(*dns.Spec.Replicas))
	})
	const inPod = "kubernetes.default.svc.cluster.local"
	for container, printed := range c.output(map[string][]string{
		"short":   {"lookup", "web"},
		"long":    {"lookup", "web.default.svc.cluster.local"},
		"srv":     {"lookup", "_https._tcp." + inPod},
		"service": {"get", "http://web/"},
		"api":     {"get", "https://kubernetes.default.svc/version"},
		"address": {"lookup", inPod},
	}) {
		want := map[string]string{
			"short": web, "long": web, "srv": inPod + ":443", "service": "web-", "api": `"gitVersion"`, "address": api,
		}[container]
		if !strings.Contains(printed, want) {
			c.t.Errorf("%s: %q, want %q", container, printed, want)
		}
	}
}

func (c *cluster) clusterIP(name string) string {
	c.t.Helper()
	service := &corev1.Service{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, service); err != nil {
		c.t.Fatal(err)
	}
	return service.Spec.ClusterIP
}

// output runs the containers of a Pod, given by their arguments, until each has succeeded once, and returns their
// output.
func (c *cluster) output(containers map[string][]string) map[string]string {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "names"},
		// A node may observe a Service later than this test.
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure},
	}
	for name, args := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: name, Image: image, ImagePullPolicy: corev1.PullNever, Args: args,
		})
	}
	slices.SortFunc(pod.Spec.Containers, func(a, b corev1.Container) int { return strings.Compare(a.Name, b.Name) })
	if err := c.client.Create(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(late, func(g gomega.Gomega) {
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKeyFromObject(pod), pod)).To(gomega.Succeed())
		g.Expect(pod.Status.Phase).To(gomega.Equal(corev1.PodSucceeded), "%+v", pod.Status.ContainerStatuses)
	})
	api, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	printed := map[string]string{}
	for name := range containers {
		text, err := api.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: name}).DoRaw(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		printed[name] = string(text)
	}
	if err := c.client.Delete(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
	}
	return printed
}
