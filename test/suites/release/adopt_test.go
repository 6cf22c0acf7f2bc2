package release

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// adopter follows docs/get-started/adopt.md in a root directory that has the tools of the distribution, kubectl, helm and the files of
// the page, and neither Go nor a checkout.
type adopter struct {
	*page
	t       *testing.T
	cluster *env.Cluster
	root    string
	manager *program.Process
}

// adoptNamespace is the namespace of the chart's release on the page.
const adoptNamespace = "millwright-system"

// isAdopted runs the commands of docs/get-started/adopt.md in an existing cluster. No kubelet runs the Pods of the chart, so the test runs
// the program of the release with the flags and the permissions that the chart specifies.
func (p *page) isAdopted(t *testing.T, next *page) {
	a := &adopter{page: &page{t, p.dir}, t: t, cluster: env.New(t, env.WithOwn(), env.WithControllerManager()).Cluster}
	a.prepare(next)
	for _, section := range sections(t, filepath.Join(root(t), "docs", "get-started", "adopt.md")) {
		outputs := make([]string, 0, len(section.blocks))
		for i, block := range section.blocks {
			outputs = append(outputs, a.shell(block))
			switch {
			case section.title == "Install the manager":
				a.startManager("/trial/millwright")
			case section.title == "Upgrade" && i == 0:
				a.manager.Stop()
				a.startManager("/next/millwright")
			}
		}
		if section.title == "Find a fault" && !strings.Contains(outputs[0], "joinDelya") {
			t.Errorf("explain does not name the misspelled field:\n%s", outputs[0])
		}
	}
	a.manager.Kill() // its permissions are gone
	nodes := &corev1.NodeList{}
	if err := a.cluster.Client.List(t.Context(), nodes); err != nil || len(nodes.Items) > 0 {
		t.Errorf("%d nodes are left, %v", len(nodes.Items), err)
	}
	if err := a.cluster.Client.List(t.Context(), &v1alpha1.MachineList{}); err == nil {
		t.Error("the CRDs are left")
	}
}

// section is a part of a page, with its blocks of commands.
type section struct {
	title  string
	blocks []string
}

// sections returns the parts of a page that have commands.
func sections(t *testing.T, file string) []section {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []section
	for _, part := range strings.Split(string(text), "\n## ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		s := section{title: title}
		for _, block := range strings.Split(rest, "\n```sh\n")[1:] {
			commands, _, _ := strings.Cut(block, "\n```\n")
			s.blocks = append(s.blocks, commands)
		}
		found = append(found, s)
	}
	if len(found) < 5 {
		t.Fatalf("%s has %d sections", file, len(found))
	}
	return found
}

// prepare creates the root directory.
func (a *adopter) prepare(next *page) {
	a.t.Helper()
	a.root = a.t.TempDir()
	for _, dir := range []string{"usr", "proc", "dev", "tmp", "root", "opt/bin", "trial", "next"} {
		if err := os.MkdirAll(filepath.Join(a.root, dir), 0o755); err != nil {
			a.t.Fatal(err)
		}
	}
	a.mount("/usr", "usr", "", syscall.MS_BIND)
	a.mount("none", "usr/local", "tmpfs", syscall.MS_RDONLY) // where Go may be
	a.mount("proc", "proc", "proc", 0)
	binaries, err := env.Binaries()
	if err != nil {
		a.t.Fatal(err)
	}
	a.page.shell(`cd "$1" && for name in bin sbin lib lib64; do ln -s "usr/$name" "$name"; done
		cp -a /dev/null /dev/zero /dev/random /dev/urandom dev/ && ln -s /proc/self/fd dev/fd
		cp "$2/kubectl" opt/bin/ && cp "$3" trial/kubeconfig`, a.root, binaries, a.cluster.ControlPlane.Kubeconfig())
	a.page.shell(`go -C "$1/test/suites/chart" build -trimpath -ldflags -s -o "$2/opt/bin/helm" helm.sh/helm/v3/cmd/helm`, root(a.t), a.root)
	for _, name := range []string{"SHA256SUMS", "millwright_0.1.0_linux_amd64.tar.gz", "millwright-controlplane_0.1.0_linux_amd64.tar.gz", "millwright-chart_0.1.0.tgz", "millwright-manifests_0.1.0.tar.gz"} {
		a.copy(name, filepath.Join(a.root, "trial"))
	}
	next.copy("millwright-chart_0.1.1.tgz", filepath.Join(a.root, "trial"))
	a.page.shell(`tar -xzf "$1/millwright_0.1.1_linux_amd64.tar.gz" -C "$2/next"`, next.dir, a.root)
}

// mount mounts a file system below the root directory until the test has completed.
func (a *adopter) mount(source, at, kind string, flags uintptr) {
	a.t.Helper()
	target := filepath.Join(a.root, at)
	if err := syscall.Mount(source, target, kind, flags, ""); err != nil {
		a.t.Fatalf("mounting %s: %v", target, err)
	}
	a.t.Cleanup(func() {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			a.t.Errorf("unmounting %s: %v", target, err)
		}
	})
}

// command returns a command in the root directory.
func (a *adopter) command(ctx context.Context, path string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, path, args...)
	command.Path, command.Err = path, nil // the path is one below the root directory
	command.Dir = "/trial"
	command.Env = []string{
		"HOME=/root", "PATH=/opt/bin:/usr/bin:/bin", "KUBECONFIG=/trial/kubeconfig",
		"VERSION=0.1.0", "NEXT=0.1.1", "REPOSITORY=" + image,
	}
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: a.root, Pdeathsig: syscall.SIGKILL}
	return command
}

// blockTimeout limits a block of commands. It is longer than the timeouts of the commands.
const blockTimeout = 15 * time.Minute

// shell runs a block of commands, and returns its output.
func (a *adopter) shell(block string) string {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), blockTimeout)
	defer cancel()
	out, err := a.command(ctx, "/usr/bin/bash", "-euo", "pipefail", "-c", block).CombinedOutput()
	if err != nil {
		a.t.Fatalf("running\n%s\n%v, output:\n%s", block, err, out)
	}
	a.t.Logf("%s\n%s", block, out)
	return string(out)
}

// startManager runs the container of the installed Deployment as a process, and waits until it leads.
func (a *adopter) startManager(path string) {
	a.t.Helper()
	deployments := &appsv1.DeploymentList{}
	if err := a.cluster.Client.List(a.t.Context(), deployments, client.InNamespace(adoptNamespace)); err != nil || len(deployments.Items) != 1 {
		a.t.Fatalf("the chart has %d Deployments, %v", len(deployments.Items), err)
	}
	pod := deployments.Items[0].Spec.Template.Spec
	container := pod.Containers[0]
	kubeconfig := a.kubeconfig(pod.ServiceAccountName)
	inside := strings.NewReplacer("inClusterConfig", kubeconfig, "--target-kubeconfig=", "--target-kubeconfig="+kubeconfig, "$(POD_NAMESPACE)", adoptNamespace)
	args := []string{strings.TrimPrefix(container.Command[len(container.Command)-1], "/")}
	for _, arg := range container.Args {
		args = append(args, inside.Replace(arg))
	}
	a.manager = program.StartOther(a.t, a.command(context.Background(), path, append(args, "--port=0")...))
	manager := a.manager
	a.t.Cleanup(func() {
		manager.Kill()
		if a.t.Failed() {
			a.t.Logf("%s %q printed:\n%s", path, args, manager.Output.Tail(50))
		}
	})
	gomega.NewWithT(a.t).Eventually(manager.Output.String).WithTimeout(env.WaitTimeout).Should(gomega.ContainSubstring("Starting workers"))
}

// kubeconfig writes a kubeconfig with the token of a ServiceAccount, as in its Pod, and returns its path below the root
// directory.
func (a *adopter) kubeconfig(account string) string {
	a.t.Helper()
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: adoptNamespace, Name: account}}
	request := &authenticationv1.TokenRequest{}
	if err := a.cluster.Client.SubResource("token").Create(a.t.Context(), of, request); err != nil {
		a.t.Fatal(err)
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: a.cluster.Admin.Host, CertificateAuthorityData: a.cluster.Admin.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*file, filepath.Join(a.root, "trial", "manager.kubeconfig")); err != nil {
		a.t.Fatal(err)
	}
	return "/trial/manager.kubeconfig"
}

// isPushed pushes the images and the chart to a registry on this host, from which containerd runs the image, and helm renders
// the chart.
func (p *page) isPushed(t *testing.T) {
	if _, err := exec.LookPath("containerd"); err != nil {
		t.Skipf("containerd is not installed; run make containerd: %v", err)
	}
	p = &page{t, p.dir}
	dir := t.TempDir()
	p.shell(`go -C "$1/hack/image" build -o "$2/registry" github.com/google/go-containerregistry/cmd/registry
		go -C "$1/test/suites/chart" build -trimpath -ldflags -s -o "$2/helm" helm.sh/helm/v3/cmd/helm`, root(t), dir)
	host := p.registry(t, filepath.Join(dir, "registry"))
	push := exec.CommandContext(t.Context(), filepath.Join(root(t), "hack", "push.sh"), filepath.Dir(p.dir), release, host+"/team/millwright", host+"/team/millwright-hypervisor")
	out, err := push.CombinedOutput()
	if err != nil {
		t.Fatalf("hack/push.sh: %v\n%s", err, out)
	}
	helm := exec.CommandContext(t.Context(), filepath.Join(dir, "helm"), "template", "millwright", "oci://"+host+"/team/charts/millwright", "--version", "0.1.0",
		"--plain-http", "--kube-version", "1.37.0", "--set", "image.repository="+host+"/team/millwright")
	helm.Env = []string{"HOME=" + dir}
	if rendered, err := helm.CombinedOutput(); err != nil || !bytes.Contains(rendered, []byte(`image: "`+host+"/team/millwright:"+release+`"`)) {
		t.Errorf("helm template: %v\n%s", err, rendered)
	}
	ctr := runContainerd(t, dir)
	for _, name := range []string{"/team/millwright:", "/team/millwright-hypervisor:"} {
		ctr("images", "pull", "--plain-http", "--snapshotter", "native", host+name+release)
	}
	if version := ctr("run", "--rm", "--snapshotter", "native", host+"/team/millwright:"+release, "version", "/usr/bin/millwright", "version", "--client"); !strings.Contains(version, release) {
		t.Errorf("the image reports %s", version)
	}
}

// registry starts a registry, and returns its address.
func (p *page) registry(t *testing.T, path string) string {
	t.Helper()
	server := program.StartOther(t, exec.CommandContext(context.Background(), path, "-port", "0"))
	t.Cleanup(server.Kill)
	const prefix = "serving on port "
	gomega.NewWithT(t).Eventually(server.Output.String).WithTimeout(env.WaitTimeout).Should(gomega.MatchRegexp(prefix + `\d+\n`))
	_, rest, _ := strings.Cut(server.Output.String(), prefix)
	port, _, _ := strings.Cut(rest, "\n")
	return "localhost:" + port
}

// runContainerd starts a containerd of this test, and returns a function that runs ctr with it.
func runContainerd(t *testing.T, dir string) func(args ...string) string {
	t.Helper()
	runtimeDir, err := os.MkdirTemp("", "ctr") // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	config, socket := filepath.Join(dir, "containerd.toml"), filepath.Join(runtimeDir, "c.sock")
	if err := os.WriteFile(config, []byte("version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := program.StartOther(t, exec.CommandContext(context.Background(), "containerd", "--config", config,
		"--root", filepath.Join(dir, "containerd"), "--state", filepath.Join(runtimeDir, "state"), "--address", socket))
	t.Cleanup(func() {
		daemon.Stop()
		if t.Failed() {
			t.Logf("containerd printed:\n%s", daemon.Output.Tail(30))
		}
		if err := os.RemoveAll(runtimeDir); err != nil {
			t.Error(err)
		}
	})
	gomega.NewWithT(t).Eventually(daemon.Output.String).WithTimeout(env.WaitTimeout).Should(gomega.ContainSubstring("containerd successfully booted"))
	return func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "ctr", slices.Concat([]string{"--address", socket}, args)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ctr %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
}
