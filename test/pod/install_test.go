package pod

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/node"
)

const (
	// shipped is the namespace in the manifests.
	shipped = "millwright-system"
	// account and installed are names in the manifests.
	account   = "machine-controller-manager"
	installed = "machine-controller-manager"
)

// overlay is a user's kustomization of a folder of manifests, with an image. It chooses the driver and a
// node, as others are simulated. Leases last longer than a program uses a token
// before it reads it again, a minute.
const overlay = `resources:
- %s
images:
- {name: millwright, newName: %s, newTag: %s}
patches:
- target: {kind: Deployment}
  patch: |-
    - {op: add, path: /spec/template/spec/nodeSelector, value: {kubernetes.io/hostname: %s}}
    - {op: replace, path: /spec/template/spec/containers/1/args/4, value: --driver=sim}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --leader-elect-lease-duration=300s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --leader-elect-renew-deadline=240s}
    - {op: add, path: /spec/template/spec/containers/1/args/-, value: --leader-elect-lease-duration=300s}
    - {op: add, path: /spec/template/spec/containers/1/args/-, value: --leader-elect-renew-deadline=240s}
`

// install applies manifests for both clusters, which are one here, as docs/install.md says. The chart has
// the same objects, by a test of its own.
func (p *place) install() {
	p.Helper()
	for _, folder := range []string{"one-pod", "target"} {
		manifests := strings.ReplaceAll(p.kustomize(folder), shipped, p.env.Namespace)
		p.kubectl(manifests, "apply", "--server-side", "-f", "-")
	}
	p.env.Grant(p.T, fmt.Sprintf("system:serviceaccount:%s:%s", p.env.Namespace, account), "config/rbac/target-role-sim.yaml")
}

// kustomize renders a folder of config/machine.
func (p *place) kustomize(folder string) string {
	p.Helper()
	root, err := env.Root()
	if err != nil {
		p.Fatal(err)
	}
	dir := p.TempDir()
	resource, err := filepath.Rel(dir, filepath.Join(root, "config", "machine", folder))
	if err != nil {
		p.Fatal(err)
	}
	text := fmt.Sprintf(overlay, resource, image, version, node.Name)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
	return p.kubectl("", "kustomize", "--load-restrictor=LoadRestrictionsNone", dir)
}

// kubectl runs it as an administrator, and returns what it prints.
func (p *place) kubectl(stdin string, args ...string) string {
	p.Helper()
	binaries, err := env.Binaries()
	if err != nil {
		p.Fatal(err)
	}
	kubeconfig := filepath.Join(p.TempDir(), "kubeconfig")
	if err := p.env.ControlPlane.WriteKubeconfig(kubeconfig, "admin", "system:masters"); err != nil {
		p.Fatal(err)
	}
	var complaints strings.Builder
	command := exec.CommandContext(p.Context(), filepath.Join(binaries, "kubectl"), append(args, "--kubeconfig="+kubeconfig)...)
	command.Stdin, command.Stderr = strings.NewReader(stdin), &complaints
	out, err := command.Output()
	if err != nil {
		p.Fatalf("kubectl %v: %v\n%s", args, err, &complaints)
	}
	return string(out)
}

// template is that of the Pods that were installed.
func (p *place) template() corev1.PodTemplateSpec {
	p.Helper()
	deployment := &appsv1.Deployment{}
	if err := p.env.Client.Get(p.Context(), client.ObjectKey{Namespace: p.env.Namespace, Name: installed}, deployment); err != nil {
		p.Fatal(err)
	}
	return deployment.Spec.Template
}

// deployment is one of a Pod like those that were installed, with a change.
func (p *place) deployment(name string, change func(*corev1.PodSpec)) *appsv1.Deployment {
	p.Helper()
	labels := map[string]string{"role": name}
	template := p.template()
	template.Labels = labels
	change(&template.Spec)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: p.env.Namespace},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}
}
