package modules

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/pydriver"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestDriver_OutOfTree checks an out-of-tree driver that is built without a replace directive, as if Millwright
// were published. A MachineDeployment is rolled out with the driver as a machine controller of its own, with the
// driver as a plug-in, and with the driver in Python. The machine controller also serves Cluster API.
func TestDriver_OutOfTree(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("unpacks modules of Kubernetes, and starts a control plane")
	}
	t.Parallel()
	built := buildExample(t)
	cloud := start(t, exec.CommandContext(context.Background(), filepath.Join(built, "cloud"), "-address=127.0.0.1:0", "-token=t0ken"))
	var address []string
	gomega.NewWithT(t).Eventually(func() []string {
		address = regexp.MustCompile(`listening on (http://\S+)\n`).FindStringSubmatch(cloud.Output.String())
		return address
	}).WithTimeout(stepTimeout).ShouldNot(gomega.BeEmpty())
	url := "--example-url=" + address[1]
	t.Run("machine controller", func(t *testing.T) {
		t.Parallel()
		e := env.New(t)
		coretest.Install(t, e.Admin)
		start(t, exec.CommandContext(context.Background(), filepath.Join(built, "provider"), append(managerFlags(t, e), "--apis=mcm,capi", url)...))
		p := &pool{T: t, Env: e, kind: "example"}
		p.rolls(`{"size":"small","tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`)
		p.servesClusterAPI()
	})
	t.Run("plug-in", func(t *testing.T) {
		t.Parallel()
		e, socket := withSocket(t)
		start(t, exec.CommandContext(context.Background(), filepath.Join(built, "plugin"), "--target=unix://"+socket, url))
		(&pool{T: t, Env: e, kind: "example"}).rolls(`{"size":"small","tags":{"kubernetes.io/cluster/p":"1","kubernetes.io/role/node":"1"}}`)
	})
	t.Run("in Python", func(t *testing.T) {
		t.Parallel()
		python := pydriver.New(t)
		e, socket := withSocket(t)
		vms := t.TempDir()
		process := program.StartOther(t, python.Command(context.Background(), socket, vms))
		t.Cleanup(process.Kill) // it ignores SIGTERM
		(&pool{T: t, Env: e, kind: "python"}).rolls(`{"tags":{"kubernetes.io/cluster/py":"1"}}`)
		if left, err := filepath.Glob(filepath.Join(vms, "*")); err != nil || len(left) > 0 {
			t.Errorf("VMs are left: %v, %v", left, err)
		}
	})
}

// managerFlags returns the arguments of a complete manager for a namespace.
func managerFlags(t *testing.T, e *env.Env) []string {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	env.WriteKubeconfig(t, kubeconfig, e.Admin)
	return []string{"manager", "--control-kubeconfig=" + kubeconfig, "--target-kubeconfig=none", "--namespace=" + e.Namespace, "--address=127.0.0.1", "--port=0"}
}

// withSocket starts our manager with a socket at which drivers register.
func withSocket(t *testing.T) (e *env.Env, socket string) {
	t.Helper()
	e, socket = env.New(t), filepath.Join(t.TempDir(), "s")
	start(t, program.Command(context.Background(), append(managerFlags(t, e), "--driver-socket="+socket)...))
	return e, socket
}

// pool returns a MachineDeployment of a driver's machines.
type pool struct {
	*testing.T
	*env.Env
	kind string
}

// rolls creates a MachineDeployment of two machines of a driver, updates it, and deletes it.
func (p *pool) rolls(spec string) {
	p.Helper()
	class := fixture.In(p.Namespace, fixture.MachineClass())
	class.Provider, class.ProviderSpec.Raw = p.kind, []byte(spec)
	secret := fixture.In(p.Namespace, fixture.Secret())
	secret.Data = map[string][]byte{"userData": []byte("#cloud-config"), "token": []byte("t0ken")}
	deployment := fixture.In(p.Namespace, fixture.Deployment(2, fixture.OfClass(fixture.Class), fixture.Rolling("1", "0")))
	for _, object := range []client.Object{secret, class, deployment} {
		if err := p.Client.Create(p.Context(), object); err != nil {
			p.Fatal(err)
		}
	}
	first := p.settled(deployment, nil)
	changed := deployment.DeepCopy()
	changed.Spec.Template.Annotations = map[string]string{"example.org/rolled": "yes"}
	if err := p.Client.Patch(p.Context(), changed, client.MergeFrom(deployment)); err != nil {
		p.Fatal(err)
	}
	p.settled(deployment, first)
	if err := p.Client.Delete(p.Context(), deployment); err != nil {
		p.Fatal(err)
	}
	gomega.NewWithT(p).Eventually(func() (int, error) {
		machines := &v1alpha1.MachineList{}
		err := p.Client.List(p.Context(), machines, client.InNamespace(p.Namespace))
		return len(machines.Items), err
	}).WithTimeout(stepTimeout).Should(gomega.BeZero())
}

// servesClusterAPI creates a MillwrightMachine of the MachineDeployment's class, and deletes it.
func (p *pool) servesClusterAPI() {
	p.Helper()
	scheme := manager.Scheme()
	core.AddToScheme(scheme, core.V1Beta2)
	admin, err := client.New(p.Admin, client.Options{Scheme: scheme})
	if err != nil {
		p.Fatal(err)
	}
	named := metav1.ObjectMeta{Namespace: p.Namespace, Name: "infra"}
	cluster, owner := &core.Cluster{ObjectMeta: named}, &core.Machine{ObjectMeta: named}
	cluster.Status.Initialization.InfrastructureProvisioned = true
	owner.Spec.ClusterName, owner.Spec.Bootstrap.DataSecretName = cluster.Name, new("bootstrap")
	bootstrap := &corev1.Secret{ObjectMeta: named, Data: map[string][]byte{core.BootstrapData: []byte("#cloud-config")}}
	bootstrap.Name = *owner.Spec.Bootstrap.DataSecretName
	infra := &infrav1.MillwrightMachine{ObjectMeta: named, Spec: infrav1.MillwrightMachineSpec{
		Driver: p.kind, MachineClassRef: &infrav1.LocalReference{Name: fixture.Class},
	}}
	infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.MachineKind, Name: owner.Name, UID: "u"}}
	for _, object := range []client.Object{bootstrap, cluster, owner, infra} {
		if err := admin.Create(p.Context(), object); err != nil {
			p.Fatal(err)
		}
	}
	g := gomega.NewWithT(p)
	read := func() error { return admin.Get(p.Context(), client.ObjectKeyFromObject(infra), infra) }
	g.Eventually(func() bool { return read() == nil && infra.Status.Ready }).WithTimeout(stepTimeout).Should(gomega.BeTrue(), "the MillwrightMachine is ready")
	if !strings.HasPrefix(infra.Spec.ProviderID, p.kind+":///") {
		p.Errorf("it has the VM %q", infra.Spec.ProviderID)
	}
	if err := admin.Delete(p.Context(), infra); err != nil {
		p.Fatal(err)
	}
	g.Eventually(func() bool { return apierrors.IsNotFound(read()) }).WithTimeout(stepTimeout).Should(gomega.BeTrue(), "it is gone")
}

// stepTimeout is the maximum duration of a step under load.
const stepTimeout = env.WaitTimeout

// settled waits until a MachineDeployment has two machines of its current template, all with new VMs, and returns
// the VMs.
func (p *pool) settled(deployment *v1alpha1.MachineDeployment, before []string) []string {
	p.Helper()
	var vms []string
	gomega.NewWithT(p).Eventually(func() (string, error) {
		machines := &v1alpha1.MachineList{}
		err := errors.Join(p.Client.List(p.Context(), machines, client.InNamespace(p.Namespace)),
			p.Client.Get(p.Context(), client.ObjectKeyFromObject(deployment), deployment))
		vms = nil
		for _, machine := range machines.Items {
			vms = append(vms, machine.Spec.ProviderID)
			if slices.Contains(before, machine.Spec.ProviderID) || !strings.HasPrefix(machine.Spec.ProviderID, p.kind+":///") {
				return fmt.Sprintf("machine %s has the VM %q", machine.Name, machine.Spec.ProviderID), err
			}
		}
		if got := deployment.Status; len(vms) != 2 || got.UpdatedReplicas != 2 || got.AvailableReplicas != 2 {
			return fmt.Sprintf("%d machines, status %+v", len(vms), got), err
		}
		return "", err
	}).WithTimeout(stepTimeout).WithPolling(100 * time.Millisecond).Should(gomega.BeEmpty())
	return vms
}

// buildExample builds the programs of examples/provider without a replace, and returns their directory.
func buildExample(t *testing.T) string {
	t.Helper()
	example, built := copyModule(t, "examples/provider"), t.TempDir()
	example.run("build", "-ldflags=-w", "-o", built, ".", "./cmd/cloud", "./cmd/plugin")
	if text := example.mod(); strings.Contains(text, "replace") && strings.Contains(text, "=>") {
		t.Errorf("go.mod has a replace:\n%s", text)
	}
	return built
}

// start runs a program until the end of the test.
func start(t *testing.T, command *exec.Cmd) *program.Process {
	t.Helper()
	process := program.StartOther(t, command)
	t.Cleanup(func() {
		process.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", fmt.Sprint(command.Args), process.Output.Tail(40))
		}
	})
	return process
}
