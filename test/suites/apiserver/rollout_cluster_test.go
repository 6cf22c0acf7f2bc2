package apiserver

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/pty"
)

// cluster is a cluster with a MachineDeployment "pool" of three machines. It is also the target cluster.
type cluster struct {
	*env.Env
	t   *testing.T
	dir string
}

// newCluster creates the MachineDeployment after applying changes, for a test that runs in parallel with others.
func newCluster(t *testing.T, changes ...func(*v1alpha1.MachineDeployment)) *cluster {
	t.Helper()
	t.Parallel()
	c := &cluster{Env: env.New(t), t: t, dir: t.TempDir()}
	c.kubeconfig("manager", c.UserWith(t, "config/rbac/control-role.yaml", "config/rbac/target-role.yaml", "config/rbac/target-role-sim.yaml"))
	c.kubeconfig("user", c.Admin)
	deployment := fixture.Deployment(3, append([]func(*v1alpha1.MachineDeployment){fixture.OfClass(fixture.Pool)}, changes...)...)
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, "kubernetes.io/change-cause", "the beginning")
	for _, object := range []client.Object{
		fixture.In(c.Namespace, fixture.Named(fixture.Pool, fixture.Secret(func(s *corev1.Secret) { s.Data["userData"] = []byte("token: <<BOOTSTRAP_TOKEN>>") }))),
		fixture.In(c.Namespace, fixture.Named(fixture.Pool, fixture.MachineClass(func(class *v1alpha1.MachineClass) {
			class.Provider, class.SecretRef.Name = "sim", fixture.Pool
		}))),
		fixture.In(c.Namespace, deployment),
	} {
		c.do(c.Client.Create(t.Context(), object))
	}
	return c
}

func (c *cluster) do(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name+".kubeconfig") }

// kubeconfig writes a kubeconfig whose context has the namespace of the test.
func (c *cluster) kubeconfig(name string, config *rest.Config) {
	c.t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: c.Namespace}
	file.CurrentContext = name
	c.do(clientcmd.WriteToFile(*file, c.path(name)))
}

// manager runs a manager until the end of the test.
func (c *cluster) manager() *program.Process {
	c.t.Helper()
	manager := program.Start(c.t,
		"manager", "--driver", "sim", "--sim-dir", filepath.Join(c.dir, "sim"), "--sim-heartbeat", "0", "--namespace", c.Namespace,
		"--target-kubeconfig", c.path("manager"), "--port", "0", "--leader-elect=false")
	c.t.Cleanup(func() {
		manager.Kill()
		if c.t.Failed() {
			c.t.Logf("the manager printed:\n%s", manager.Output.Tail(100))
		}
	})
	return manager
}

// rollout runs "millwright rollout", and checks its exit status and that it prints each of the texts.
func (c *cluster) rollout(status int, args string, texts ...string) string {
	c.t.Helper()
	printed, got := program.Run(c.t, c.arguments(args)...)
	if got != status {
		c.t.Fatalf("rollout %s: exit status %d, want %d:\n%s", args, got, status, printed)
	}
	for _, text := range texts {
		if !strings.Contains(printed, text) {
			c.t.Errorf("rollout %s: %q is missing in:\n%s", args, text, printed)
		}
	}
	return printed
}

func (c *cluster) arguments(args string) []string {
	return append(append([]string{"rollout"}, strings.Fields(args)...), "--kubeconfig", c.path("user"))
}

// onTerminal is like rollout, on a terminal. It calls meanwhile after the first output.
func (c *cluster) onTerminal(args string, meanwhile func()) (printed string, status int) {
	c.t.Helper()
	command := program.Command(c.t.Context(), c.arguments(args)...)
	var text strings.Builder
	var once sync.Once
	printing, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = pty.Run(command, 100, 30, func(piece string) { // the exit status is checked
			text.WriteString(piece)
			once.Do(func() { close(printing) })
		})
	}()
	select {
	case <-printing:
		meanwhile()
	case <-ended:
		c.t.Fatal("nothing was printed")
	}
	<-ended
	return text.String(), command.ProcessState.ExitCode()
}

// deployment reads the deployment.
func (c *cluster) deployment() *v1alpha1.MachineDeployment {
	c.t.Helper()
	deployment := &v1alpha1.MachineDeployment{}
	c.do(c.Client.Get(c.t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: "pool"}, deployment))
	return deployment
}

func (c *cluster) patch(body string) {
	c.t.Helper()
	c.do(c.Client.Patch(c.t.Context(), c.deployment(), client.RawPatch("application/merge-patch+json", []byte(body))))
}

// awaitObserved waits until the manager has processed the last change.
func (c *cluster) awaitObserved() {
	c.t.Helper()
	gomega.NewWithT(c.t).Eventually(func(g gomega.Gomega) {
		deployment := c.deployment()
		g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
}

// machines returns the machines by name.
func (c *cluster) machines() map[string]v1alpha1.Machine {
	c.t.Helper()
	list := &v1alpha1.MachineList{}
	c.do(c.Client.List(c.t.Context(), list, client.InNamespace(c.Namespace)))
	machines := map[string]v1alpha1.Machine{}
	for i := range list.Items {
		machines[list.Items[i].Name] = list.Items[i]
	}
	return machines
}

// await waits until the program has printed a text.
func (c *cluster) await(p *program.Process, text string) {
	c.t.Helper()
	timeout := time.After(env.WaitTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(p.Output.String(), text) {
		select {
		case <-tick.C:
		case <-timeout:
			c.t.Fatalf("%q is missing in:\n%s", text, p.Output.String())
		}
	}
}

// oneOld keeps one old revision.
func oneOld(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(1)) }

func owner(d *v1alpha1.MachineDeployment) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(d, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
}
