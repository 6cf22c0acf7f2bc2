package capi

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/program"
)

// vmWorld is a cluster of "millwright up" and in it the Cluster of the example, whose
// machines join that cluster.
type vmWorld struct {
	*world
	// root is this repository.
	root string
	// kubectl is the folder with that program.
	kubectl string
}

// newVMWorld starts the cluster and beside it the core, and declares nothing.
func newVMWorld(t *testing.T) *vmWorld {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: this test needs a control plane and virtual machines")
	}
	if contract != "v1beta2" {
		t.Skip("the example is written for the newest version of Cluster API's kinds")
	}
	// Sockets have short paths, and a test's name is long.
	dir, err := os.MkdirTemp("", "capi-")
	if err != nil {
		t.Fatal(err)
	}
	w := &vmWorld{world: &world{t: t, dir: dir, cluster: "demo", Cluster: &env.Cluster{Namespace: "default"}}}
	if w.root, err = env.Root(); err != nil {
		t.Fatal(err)
	}
	if w.kubectl, err = env.Binaries(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.end)
	w.up()
	w.connect()
	w.grant()
	w.startCore()
	return w
}

// The folder of the cluster, in a folder like that of a checkout.
func (w *vmWorld) up() {
	w.t.Helper()
	up := program.Start(w.t, "up", "--dir", w.path(".millwright"), "--api-port", "0", "--image-port", "0", "--unsafe-no-fsync", "--v", "1")
	w.t.Cleanup(func() {
		if w.t.Failed() {
			program.LogConsoles(w.t, w.path(".millwright"))
		}
		up.Stop()
	})
	gomega.NewWithT(w.t).Eventually(up.Output.String).WithTimeout(patience).Should(gomega.ContainSubstring("Ctrl-C stops"))
	// The example names ports that may be taken; "up" says what to do about that.
	ports := regexp.MustCompile(`change that to port (\d+) and (http://\S+)\.`).FindStringSubmatch(up.Output.String())
	if ports == nil {
		w.t.Fatalf("millwright up does not say its ports:\n%s", up.Output.String())
	}
	w.copyExample(strings.NewReplacer("16443", ports[1], "http://127.0.0.1:16480", ports[2], "replicas: 2", "replicas: 0"))
}

func (w *vmWorld) copyExample(replacer *strings.Replacer) {
	w.t.Helper()
	const example = "examples/cluster-api/vms"
	files, err := os.ReadDir(filepath.Join(w.root, example))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.MkdirAll(w.path(example), 0o755); err != nil {
		w.t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(w.root, example, file.Name()))
		if err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.path(example), file.Name()), []byte(replacer.Replace(string(content))), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *vmWorld) connect() {
	w.t.Helper()
	var err error
	if w.Admin, err = clientcmd.BuildConfigFromFlags("", w.path(".millwright/kubeconfig")); err != nil {
		w.t.Fatal(err)
	}
	w.Admin.QPS = -1
	if w.Client, err = client.New(w.Admin, client.Options{Scheme: env.NewScheme()}); err != nil {
		w.t.Fatal(err)
	}
}

// managerUser has the shipped roles, and no other rights.
const managerUser = "millwright-capi"

// grant gives the manager its roles. That of the driver is there already.
func (w *vmWorld) grant() {
	w.t.Helper()
	if err := controlplane.Apply(w.t.Context(), w.Admin, config.Files, "rbac/capi-role.yaml", w.Namespace); err != nil {
		w.t.Fatal(err)
	}
	if err := controlplane.Apply(w.t.Context(), w.Admin, os.DirFS("testdata"), "vms-roles.yaml", w.Namespace); err != nil {
		w.t.Fatal(err)
	}
	kubeconfig, err := clientcmd.LoadFromFile(w.path(".millwright/kubeconfig"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, user := range kubeconfig.AuthInfos {
		user.Impersonate = managerUser
	}
	if err := clientcmd.WriteToFile(*kubeconfig, w.path("manager.kubeconfig")); err != nil {
		w.t.Fatal(err)
	}
}

// startCore starts the core as users do.
func (w *vmWorld) startCore() {
	w.t.Helper()
	command := exec.Command(filepath.Join(w.root, "hack", "capi-core.sh"), version, w.path(".millwright"), "0")
	command.Env = append(os.Environ(), "KUBECTL="+filepath.Join(w.kubectl, "kubectl"))
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	core := program.StartOther(w.t, command)
	w.t.Cleanup(func() {
		core.Stop()
		if w.t.Failed() {
			w.t.Logf("%s printed:\n%s", command, core.Output.Tail(50))
		}
	})
	gomega.NewWithT(w.t).Eventually(func(g gomega.Gomega) {
		select {
		case <-core.Done():
			gomega.StopTrying("it has ended").Now()
		default:
			g.Expect(core.Output.String()).To(gomega.ContainSubstring("is ready"))
		}
	}).WithTimeout(coreReady).Should(gomega.Succeed())
}

// manager starts a manager with Cluster API as its only face.
func (w *vmWorld) manager() *program.Process {
	w.t.Helper()
	p := program.Start(w.t, "manager", "--apis", "capi", "--driver", "vm", "--installation", "demo", "--port", "0",
		"--control-kubeconfig", w.path("manager.kubeconfig"), "--target-kubeconfig", "none")
	w.t.Cleanup(func() {
		p.Kill()
		if w.t.Failed() {
			w.t.Logf("the manager printed:\n%s", p.Output.Tail(100))
		}
	})
	return p
}

// declare types what docs/cluster-api.md says to type.
func (w *vmWorld) declare() {
	w.t.Helper()
	page, err := os.ReadFile(filepath.Join(w.root, "docs", "cluster-api.md"))
	if err != nil {
		w.t.Fatal(err)
	}
	const mark = "bootstrap-token-"
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(block[1], mark) {
			continue
		}
		shell := exec.CommandContext(w.t.Context(), "bash", "-euo", "pipefail", "-c", block[1])
		shell.Dir = w.dir
		shell.Env = append(os.Environ(), "PATH="+w.kubectl+":"+os.Getenv("PATH"))
		if out, err := shell.CombinedOutput(); err != nil {
			w.t.Fatalf("the page says to type:\n%s\n%v, after:\n%s", block[1], err, out)
		}
		return
	}
	w.t.Fatalf("no block of docs/cluster-api.md has %s", mark)
}

// end checks that no process is left, and removes the folder.
func (w *vmWorld) end() {
	for _, left := range program.Processes(w.t, w.dir, "") {
		w.t.Errorf("a process is left: %d %s", left.PID, left.Args)
	}
	if w.t.Failed() {
		w.t.Logf("logs are in %s", w.path(".millwright/logs"))
		return
	}
	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Error(err)
	}
}
