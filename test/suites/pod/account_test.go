package pod

import (
	"io"
	"slices"
	"strings"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
)

// accountDir is the directory of a Pod's service account.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// misconfigurations are misconfigured Pods of a machine-controller, and their messages.
var misconfigurations = map[string]struct {
	change func(*corev1.PodSpec)
	// wantText is expected in the log. terminated is the exit status. If it is 0, the program keeps waiting.
	wantText   string
	terminated int32
}{
	"no-permission": {
		change:   func(pod *corev1.PodSpec) { pod.ServiceAccountName = "default" },
		wantText: `leases.coordination.k8s.io \"machine-controller\" is forbidden`,
	},
	"no-token": {
		change:     func(pod *corev1.PodSpec) { pod.AutomountServiceAccountToken = ptr.To(false) },
		wantText:   "--target-kubeconfig: open " + accountDir + "/token: no such file or directory",
		terminated: 1,
	},
	"foreign-token": {
		change:     withForeignToken,
		wantText:   "denies access to the user of the kubeconfig",
		terminated: 1,
	},
}

// withForeignToken mounts a token for another API server.
func withForeignToken(pod *corev1.PodSpec) {
	pod.AutomountServiceAccountToken = ptr.To(false)
	pod.Volumes = []corev1.Volume{{Name: "account", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "elsewhere", Path: "token"}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
	}}}}}
	pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "account", MountPath: accountDir, ReadOnly: true}}
}

func (p *place) createMisconfigured() {
	p.Helper()
	for name, wrong := range misconfigurations {
		p.create(p.deployment(name, func(pod *corev1.PodSpec) {
			pod.Containers = pod.Containers[1:]
			wrong.change(pod)
		}))
	}
}

// misconfigured checks that each of those Pods reports the mistake and is not ready, and removes them.
func (p *place) misconfigured() {
	p.Helper()
	for name, wrong := range misconfigurations {
		p.eventually(func(g gomega.Gomega) {
			pods := p.pods(name)
			g.Expect(pods).To(gomega.HaveLen(1))
			g.Expect(pods[0].Status.ContainerStatuses).To(gomega.HaveLen(1))
			state := pods[0].Status.ContainerStatuses[0]
			g.Expect(state.Ready).To(gomega.BeFalse())
			if wrong.terminated == 0 {
				g.Expect(state.State.Running).NotTo(gomega.BeNil(), "%+v", state)
				g.Expect(state.RestartCount).To(gomega.BeZero())
			} else {
				g.Expect(state.LastTerminationState.Terminated).NotTo(gomega.BeNil(), "%+v", state)
				g.Expect(state.LastTerminationState.Terminated.ExitCode).To(gomega.Equal(wrong.terminated))
			}
			g.Expect(p.log(&pods[0])).To(gomega.ContainSubstring(wrong.wantText))
		})
	}
	for name := range misconfigurations {
		p.kubectl("", "delete", "deployment", name, "-n", p.env.Namespace)
		p.eventually(func(g gomega.Gomega) { g.Expect(p.pods(name)).To(gomega.BeEmpty()) })
	}
}

// pods returns the Pods of a Deployment.
func (p *place) pods(of string) []corev1.Pod {
	p.Helper()
	pods := &corev1.PodList{}
	if err := p.env.Client.List(p.Context(), pods, client.InNamespace(p.env.Namespace), client.MatchingLabels{"role": of}); err != nil {
		p.Fatal(err)
	}
	return pods.Items
}

func (p *place) log(pod *corev1.Pod) string {
	p.Helper()
	text, err := io.ReadAll(p.node.Logs(pod.Namespace, pod.Name, string(pod.UID)))
	if err != nil {
		p.Fatal(err)
	}
	return string(text)
}

// explains runs another command of the image, which uses the cluster and the namespace of its Pod.
func (p *place) explains(machine string) {
	p.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "explain", Namespace: p.env.Namespace},
		Spec:       p.template().Spec,
	}
	pod.Spec.Containers = pod.Spec.Containers[:1]
	container := &pod.Spec.Containers[0]
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	container.Command, container.Args = nil, []string{"explain", "machine", machine, "--target-kubeconfig=inClusterConfig"}
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

// readsItsTokenAgain checks that the programs continue with a new token when the old one is rejected. A program
// reads its token again every minute. A kubelet that has the old one in memory would request a new one only after
// 48 minutes.
func (p *place) readsItsTokenAgain() {
	p.Helper()
	before := p.processes()
	old := p.readProc(before[0].PID, "root"+accountDir+"/token")
	serviceAccount := metav1.ObjectMeta{Name: account, Namespace: p.env.Namespace}
	if err := p.env.Client.Delete(p.Context(), &corev1.ServiceAccount{ObjectMeta: serviceAccount}); err != nil {
		p.Fatal(err)
	}
	p.create(&corev1.ServiceAccount{ObjectMeta: serviceAccount})
	p.node.KillKubelet()
	p.isRefused(old)
	p.makesMachine("third")
	if now := p.processes(); !slices.Equal(before, now) {
		p.Errorf("the processes were %v, and are %v", before, now)
	}
}

// isRefused waits until the API server rejects a token. It caches valid tokens for 10 s.
func (p *place) isRefused(token string) {
	p.Helper()
	config := rest.AnonymousClientConfig(p.env.Admin)
	config.BearerToken = token
	c, err := client.New(config, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		p.Fatal(err)
	}
	p.eventually(func(g gomega.Gomega) {
		err := c.List(p.Context(), &corev1.SecretList{}, client.InNamespace(p.env.Namespace))
		g.Expect(apierrors.IsUnauthorized(err)).To(gomega.BeTrue(), "with the old token: %v", err)
	})
}
