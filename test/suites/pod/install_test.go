package pod

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
)

const (
	// shipped is the namespace in the manifests.
	shipped = "millwright-system"
	// account and installed are names in the manifests.
	account   = "machine-controller-manager"
	installed = "machine-controller-manager"
)

// leaseDuration and renewDeadline are longer than a minute, the time for which a program uses a token before it
// reads it again.
const (
	leaseDuration = 2 * time.Minute
	renewDeadline = 100 * time.Second
)

// overlay is the beginning of a user's kustomization of a directory of manifests, with an image. It selects the
// node, because other nodes are simulated.
const overlay = `resources:
- %[1]s/%[2]s
images:
- {name: millwright, newName: %[3]s, newTag: %[4]s}
- {name: millwright-driver, newName: %[5]s, newTag: %[4]s}
patches:
- target: {kind: Deployment}
  patch: |-
    - {op: add, path: /spec/template/spec/nodeSelector, value: {kubernetes.io/hostname: %[6]s}}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --leader-elect-lease-duration=%[8]v}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --leader-elect-renew-deadline=%[9]v}
    - {op: add, path: /spec/template/spec/containers/1/args/-, value: --leader-elect-lease-duration=%[8]v}
    - {op: add, path: /spec/template/spec/containers/1/args/-, value: --leader-elect-renew-deadline=%[9]v}
`

// The last parts of a kustomization: one with a built-in driver, and one with a driver in a separate container, which
// names its installation.
const (
	withinOverlay = `    - {op: replace, path: /spec/template/spec/containers/1/args/4, value: --driver=sim}
`
	sidecarOverlay = `    - {op: add, path: /spec/template/spec/containers/2/args/-, value: --installation=%[7]s}
components:
- %[1]s/driver-sidecar/%[2]s
`
)

// install applies the manifests for both clusters, which are one here, as docs/get-started/install.md describes.
// Another test checks that the chart contains the same objects.
func (p *place) install() {
	p.Helper()
	p.apply("one-pod", withinOverlay)
	p.apply("target", "")
	p.env.Grant(p.T, fmt.Sprintf("system:serviceaccount:%s:%s", p.env.Namespace, account), "config/rbac/target-role-sim.yaml")
}

// apply applies a directory of config/machine with an overlay that has this end.
func (p *place) apply(directory, end string) {
	p.Helper()
	manifests := strings.ReplaceAll(p.kustomize(directory, end), shipped, p.env.Namespace)
	p.kubectl(manifests, "apply", "--server-side", "-f", "-")
}

// kustomize renders a directory of config/machine.
func (p *place) kustomize(directory, end string) string {
	p.Helper()
	root, err := env.Sources()
	if err != nil {
		p.Fatal(err)
	}
	dir := p.TempDir()
	manifests, err := filepath.Rel(dir, filepath.Join(root, "config", "machine"))
	if err != nil {
		p.Fatal(err)
	}
	text := fmt.Sprintf(overlay+end, manifests, directory, image, version, driverImage, p.node.Name, p.env.Namespace, leaseDuration, renewDeadline)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
	return p.kubectl("", "kustomize", "--load-restrictor=LoadRestrictionsNone", dir)
}

// kubectl runs kubectl as an administrator, and returns its output.
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

// template returns the template of the installed Pods.
func (p *place) template() corev1.PodTemplateSpec {
	p.Helper()
	deployment := &appsv1.Deployment{}
	if err := p.env.Client.Get(p.Context(), client.ObjectKey{Namespace: p.env.Namespace, Name: installed}, deployment); err != nil {
		p.Fatal(err)
	}
	return deployment.Spec.Template
}

// deployment returns a Deployment of one Pod like the installed ones, with a change.
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
