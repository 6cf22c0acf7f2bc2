package chart

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/release"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// releaseName is the name of a test's release.
const releaseName = "millwright"

// TestChart_UpgradeAndRollback upgrades a release with one MCM process, next to another machine-controller, to both in
// one process, with another image and more replicas, rolls it back, and uninstalls it. The programs run as its
// Deployments specify. The Machines are kept, and more Machines can be created each time.
func TestChart_UpgradeAndRollback(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHelm(t)
	half := values{
		"mode": "machine-controller-manager", "replicas": 1,
		"image": values{"repository": "registry.example.com/millwright", "tag": "v0.1.0"},
	}
	whole := values{
		"mode": "whole", "replicas": 2, "driver": "sim", "machineController": values{"extraArgs": []any{"--sim-dir=" + h.cloud}},
		"image": values{"repository": "registry.example.com/millwright", "tag": "v0.2.0"},
	}
	foreign := h.startForeign()
	h.install(half)
	h.hasDeployment(1, "registry.example.com/millwright:v0.1.0")
	ours := h.runs()
	h.createPool()
	h.scalesTo(2)

	if err := h.upgrade(with("both", nil)); err == nil {
		t.Error("an upgrade to nonsense is not refused")
	}
	h.hasDeployment(1, "registry.example.com/millwright:v0.1.0")
	must(t, h.upgrade(whole))
	h.hasDeployment(2, "registry.example.com/millwright:v0.2.0")
	both := h.runs() // and waits for the leases
	ours.Stop()
	foreign.Stop()
	h.scalesTo(3)

	both.Stop() // its permissions are removed with its release
	must(t, action.NewRollback(h.config).Run(releaseName))
	h.hasDeployment(1, "registry.example.com/millwright:v0.1.0")
	h.startForeign()
	ours = h.runs()
	h.scalesTo(4)

	ours.Stop()
	h.uninstalls()
	h.scalesTo(4) // as before, because no manager scales now
}

// helm is a release, its pool, and the operations of helm on it.
type helm struct {
	*installation
	config *action.Configuration
	admin  string // kubeconfig
	cloud  string // directory of the simulated VMs
	// machines are the Machines of the pool, which must not change.
	machines map[string]types.UID
}

func newHelm(t *testing.T) *helm {
	t.Helper()
	i := &installation{Env: env.New(t), t: t}
	h := &helm{installation: i, config: &action.Configuration{}, admin: filepath.Join(t.TempDir(), "admin"), cloud: t.TempDir()}
	must(t, i.ControlPlane.WriteKubeconfig(h.admin, "admin", "system:masters"))
	settings := cli.New()
	settings.KubeConfig = h.admin
	settings.SetNamespace(i.Namespace)
	must(t, h.config.Init(settings.RESTClientGetter(), i.Namespace, "secret", t.Logf))
	return h
}

func (h *helm) install(of values) {
	h.t.Helper()
	install := action.NewInstall(h.config)
	install.ReleaseName, install.Namespace = releaseName, h.Namespace
	if _, err := install.RunWithContext(h.t.Context(), load(h.t), of); err != nil {
		h.t.Fatal(err)
	}
}

// upgrade discards earlier values, like "helm upgrade --reset-values".
func (h *helm) upgrade(of values) error {
	upgrade := action.NewUpgrade(h.config)
	upgrade.Namespace, upgrade.ResetValues = h.Namespace, true
	_, err := upgrade.RunWithContext(h.t.Context(), releaseName, load(h.t), of)
	return err
}

// hasDeployment checks the release's only Deployment.
func (h *helm) hasDeployment(replicas int32, image string) {
	h.t.Helper()
	deployment := h.deployment()
	if *deployment.Spec.Replicas != replicas || deployment.Spec.Template.Spec.Containers[0].Image != image {
		h.t.Errorf("%d replicas of %s, want %d of %s", *deployment.Spec.Replicas, deployment.Spec.Template.Spec.Containers[0].Image, replicas, image)
	}
}

func (h *helm) deployment() *appsv1.Deployment {
	h.t.Helper()
	found := &appsv1.DeploymentList{}
	must(h.t, h.Client.List(h.t.Context(), found, client.InNamespace(h.Namespace)))
	if len(found.Items) != 1 || len(found.Items[0].Spec.Template.Spec.Containers) != 1 {
		h.t.Fatalf("%d Deployments, want one of one container: %+v", len(found.Items), found.Items)
	}
	return &found.Items[0]
}

// runs starts the programs as the Deployment specifies.
func (h *helm) runs() *program.Process {
	h.t.Helper()
	deployment := h.deployment()
	pod := deployment.Spec.Template.Spec
	name := strings.ReplaceAll(pod.Containers[0].Image[strings.LastIndex(pod.Containers[0].Image, ":")+1:], ".", "-")
	return h.start(name, pod.Containers[0], h.kubeconfig(pod.ServiceAccountName))
}

// startForeign starts a machine-controller that does not belong to the release.
func (h *helm) startForeign() *program.Process {
	h.t.Helper()
	process := program.StartOther(h.t, program.Command(context.Background(), "machine-controller", "--control-kubeconfig="+h.admin,
		"--target-kubeconfig="+h.admin, "--namespace="+h.Namespace, "--driver=sim", "--sim-dir="+h.cloud, "--port=0"))
	h.t.Cleanup(process.Stop)
	return process
}

// scalesTo checks that the pool can get more Machines, and that the existing ones are kept.
func (h *helm) scalesTo(replicas int32) {
	h.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":`+string('0'+rune(replicas))+`}}`))
	must(h.t, h.Client.Patch(h.t.Context(), &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: "pool"}}, patch))
	h.eventually(func(g gomega.Gomega) {
		machines := &v1alpha1.MachineList{}
		g.Expect(h.Client.List(h.t.Context(), machines, client.InNamespace(h.Namespace))).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.HaveLen(int(replicas)))
		found := map[string]types.UID{}
		for _, machine := range machines.Items {
			g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning))
			g.Expect(machine.DeletionTimestamp).To(gomega.BeNil())
			found[machine.Name] = machine.UID
		}
		for name, uid := range h.machines {
			g.Expect(found).To(gomega.HaveKeyWithValue(name, uid))
		}
		h.machines = found
	})
}

// uninstalls checks that the release's objects are gone, and that Machines and their CRDs are not.
func (h *helm) uninstalls() {
	h.t.Helper()
	uninstall := action.NewUninstall(h.config)
	result, err := uninstall.Run(releaseName)
	must(h.t, err)
	if result.Release.Info.Status != release.StatusUninstalled {
		h.t.Errorf("the release is %s", result.Release.Info.Status)
	}
	ours := client.MatchingLabels{"app.kubernetes.io/instance": releaseName}
	for _, list := range []client.ObjectList{
		&appsv1.DeploymentList{}, &policyv1.PodDisruptionBudgetList{}, &corev1.ServiceList{}, &corev1.ServiceAccountList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{},
	} {
		must(h.t, h.Client.List(h.t.Context(), list, ours, client.InNamespace(h.Namespace)))
		if left := meta.LenList(list); left != 0 {
			h.t.Errorf("%d of %T are left", left, list)
		}
	}
	for _, name := range []string{"machines", "machinesets", "machinedeployments", "machineclasses"} {
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		must(h.t, h.Client.Get(h.t.Context(), client.ObjectKey{Name: name + "." + v1alpha1.SchemeGroupVersion.Group}, crd))
		if crd.DeletionTimestamp != nil {
			h.t.Errorf("the definition of %s is being deleted", name)
		}
	}
}
