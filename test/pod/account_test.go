package pod

import (
	"io"
	"strings"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (p *place) log(pod *corev1.Pod) string {
	p.Helper()
	text, err := io.ReadAll(p.node.Logs(pod.Namespace, pod.Name, string(pod.UID)))
	if err != nil {
		p.Fatal(err)
	}
	return string(text)
}

// explains runs another command of the image, which finds the cluster and the namespace that it is in.
func (p *place) explains(machine string) {
	p.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "explain", Namespace: p.env.Namespace},
		Spec:       p.deployment("explain", 1, nil).Spec.Template.Spec,
	}
	container := &pod.Spec.Containers[0]
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	container.Args = []string{"explain", "machine", machine, "--target-kubeconfig=inClusterConfig"}
	container.ReadinessProbe, container.LivenessProbe, container.Env = nil, nil, nil
	p.create(pod)
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.env.Client.Get(p.Context(), client.ObjectKeyFromObject(pod), pod)).To(gomega.Succeed())
		g.Expect(pod.Status.Phase).To(gomega.BeElementOf(corev1.PodSucceeded, corev1.PodFailed))
	})
	if text := p.log(pod); pod.Status.Phase != corev1.PodSucceeded || !strings.Contains(text, "Running") {
		p.Errorf("explain in a Pod, which %s, printed:\n%s", pod.Status.Phase, text)
	}
}
