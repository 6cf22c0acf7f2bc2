package rollout

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.AtATime(4)
	env.Main(m)
}

// world is a cluster with a deployment "pool" of three machines, which is its own target.
type world struct {
	*env.Env
	t   *testing.T
	dir string
}

// newWorld declares the deployment, for a test that runs beside others; changes come before.
func newWorld(t *testing.T, changes ...func(*v1alpha1.MachineDeployment)) *world {
	t.Helper()
	t.Parallel()
	w := &world{Env: env.New(t), t: t, dir: t.TempDir()}
	w.kubeconfig("manager", w.UserWith(t, "config/rbac/control-role.yaml", "config/rbac/target-role.yaml", "config/rbac/target-role-sim.yaml"))
	w.kubeconfig("user", w.Admin)
	labels := map[string]string{"name": "pool"}
	deployment := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "pool", Annotations: map[string]string{"kubernetes.io/change-cause": "the beginning"}},
		Spec: v1alpha1.MachineDeploymentSpec{
			Replicas: 3,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1alpha1.MachineTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool"}},
			},
		},
	}
	for _, change := range changes {
		change(deployment)
	}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "pool"}, Data: map[string][]byte{"userData": []byte("token: <<BOOTSTRAP_TOKEN>>")}},
		&v1alpha1.MachineClass{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "pool"}, Provider: "sim",
			ProviderSpec: runtime.RawExtension{Raw: []byte("{}")}, SecretRef: &corev1.SecretReference{Namespace: w.Namespace, Name: "pool"},
		},
		deployment,
	} {
		w.do(w.Client.Create(t.Context(), object))
	}
	return w
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name+".kubeconfig") }

// kubeconfig writes a kubeconfig whose context leads to the world's namespace.
func (w *world) kubeconfig(name string, config *rest.Config) {
	w.t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: w.Namespace}
	file.CurrentContext = name
	w.do(clientcmd.WriteToFile(*file, w.path(name)))
}

// manager runs a manager until the test ends.
func (w *world) manager() *program.Process {
	w.t.Helper()
	manager := program.Start(w.t,
		"manager", "--driver", "sim", "--sim-dir", filepath.Join(w.dir, "sim"), "--sim-heartbeat", "0", "--namespace", w.Namespace,
		"--target-kubeconfig", w.path("manager"), "--port", "0", "--leader-elect=false")
	w.t.Cleanup(func() {
		manager.Kill()
		if w.t.Failed() {
			w.t.Logf("the manager printed:\n%s", manager.Output.Tail(100))
		}
	})
	return manager
}

// rollout runs "millwright rollout", and checks how it ends and, of each text, that it prints
// it.
func (w *world) rollout(status int, args string, texts ...string) string {
	w.t.Helper()
	printed, got := program.Run(w.t, w.arguments(args)...)
	if got != status {
		w.t.Fatalf("rollout %s: exit status %d, want %d:\n%s", args, got, status, printed)
	}
	for _, text := range texts {
		if !strings.Contains(printed, text) {
			w.t.Errorf("rollout %s: %q is missing in:\n%s", args, text, printed)
		}
	}
	return printed
}

func (w *world) arguments(args string) []string {
	return append(append([]string{"rollout"}, strings.Fields(args)...), "--kubeconfig", w.path("user"))
}

// onTerminal is rollout on a terminal. What is to happen meanwhile does when something is
// drawn.
func (w *world) onTerminal(args string, meanwhile func()) (printed string, status int) {
	w.t.Helper()
	command := program.Command(w.t.Context(), w.arguments(args)...)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	w.do(err)
	defer master.Close() // nothing was written to a file
	w.do(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	w.do(err)
	w.do(unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}))
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	w.do(err)
	command.Stdout, command.Stderr = slave, slave
	w.do(command.Start())
	w.do(slave.Close())
	var once sync.Once
	drawn, read := make(chan struct{}), make(chan string, 1)
	go func() {
		var text strings.Builder
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			once.Do(func() { close(drawn) })
			text.Write(buffer[:n])
			if err != nil { // the program has ended
				read <- text.String()
				return
			}
		}
	}()
	<-drawn
	meanwhile()
	printed = <-read
	_ = command.Wait() // the exit status tells
	return printed, command.ProcessState.ExitCode()
}

// deployment reads the deployment.
func (w *world) deployment() *v1alpha1.MachineDeployment {
	w.t.Helper()
	deployment := &v1alpha1.MachineDeployment{}
	w.do(w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.Namespace, Name: "pool"}, deployment))
	return deployment
}

func (w *world) patch(body string) {
	w.t.Helper()
	w.do(w.Client.Patch(w.t.Context(), w.deployment(), client.RawPatch("application/merge-patch+json", []byte(body))))
}

// machines reads the machines, by name.
func (w *world) machines() map[string]v1alpha1.Machine {
	w.t.Helper()
	list := &v1alpha1.MachineList{}
	w.do(w.Client.List(w.t.Context(), list, client.InNamespace(w.Namespace)))
	machines := map[string]v1alpha1.Machine{}
	for i := range list.Items {
		machines[list.Items[i].Name] = list.Items[i]
	}
	return machines
}

// await waits until the program has printed a text.
func (w *world) await(p *program.Process, text string) {
	w.t.Helper()
	timeout := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(p.Output.String(), text) {
		select {
		case <-tick.C:
		case <-timeout:
			w.t.Fatalf("%q is missing in:\n%s", text, p.Output.String())
		}
	}
}

// oneOld keeps one old revision.
func oneOld(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(1)) }

func owner(d *v1alpha1.MachineDeployment) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(d, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
}
