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
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// vmHarness is a cluster of "millwright up" that contains the Cluster of the example, whose machines join that
// cluster.
type vmHarness struct {
	*harness
	// root is the root directory of this repository.
	root string
	// kubectl is the directory of the kubectl binary.
	kubectl string
}

// newVMHarness starts the cluster and the core, and creates no objects. changes are pairs of old and new texts in the
// example.
func newVMHarness(t *testing.T, changes ...string) *vmHarness {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: this test needs a control plane and virtual machines")
	}
	if contract != "v1beta2" {
		t.Skip("the example is written for the newest version of Cluster API's kinds")
	}
	// Paths of sockets must be short, and a test's name is long.
	dir, err := os.MkdirTemp("", "capi-")
	if err != nil {
		t.Fatal(err)
	}
	h := &vmHarness{harness: &harness{t: t, dir: dir, cluster: "demo", Cluster: &env.Cluster{Namespace: "default"}}}
	if h.root, err = env.Sources(); err != nil {
		t.Fatal(err)
	}
	if h.kubectl, err = env.Binaries(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.end)
	h.up(changes)
	h.connect()
	h.grant()
	h.startCore()
	return h
}

// up starts the cluster in a directory like a checkout, with changes of the example.
func (h *vmHarness) up(changes []string) {
	h.t.Helper()
	up := program.Start(h.t, "up", "--dir", h.path(".millwright"), "--api-port", "0", "--image-port", "0", "--unsafe-no-fsync", "--v", "1")
	h.t.Cleanup(func() {
		if h.t.Failed() {
			program.LogConsoles(h.t, h.path(".millwright"))
		}
		up.Stop()
	})
	gomega.NewWithT(h.t).Eventually(up.Output.String).WithTimeout(waitTimeout).Should(gomega.ContainSubstring("Ctrl-C stops"))
	// The example has the default ports, which may be in use. "up" writes its own examples with the ports it has.
	pool, err := os.ReadFile(h.path(".millwright/examples/pool.yaml"))
	if err != nil {
		h.t.Fatal(err)
	}
	ports := regexp.MustCompile(`(?s)server: https://\S+:(\d+)\n.*"(http://\S+)/vmlinux"`).FindSubmatch(pool)
	if ports == nil {
		h.t.Fatalf("the example has no ports:\n%s", pool)
	}
	changes = append(changes, "16443", string(ports[1]), "http://127.0.0.1:16480", string(ports[2]), "replicas: 2", "replicas: 0")
	h.copyExample(strings.NewReplacer(changes...))
}

func (h *vmHarness) copyExample(replacer *strings.Replacer) {
	h.t.Helper()
	const example = "examples/cluster-api/vms"
	files, err := os.ReadDir(filepath.Join(h.root, example))
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.MkdirAll(h.path(example), 0o755); err != nil {
		h.t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(h.root, example, file.Name()))
		if err != nil {
			h.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.path(example), file.Name()), []byte(replacer.Replace(string(content))), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *vmHarness) connect() {
	h.t.Helper()
	var err error
	if h.Admin, err = clientcmd.BuildConfigFromFlags("", h.path(".millwright/kubeconfig")); err != nil {
		h.t.Fatal(err)
	}
	h.Admin.QPS = -1
	if h.Client, err = client.New(h.Admin, client.Options{Scheme: env.NewScheme()}); err != nil {
		h.t.Fatal(err)
	}
}

// managerUser has exactly the shipped roles.
const managerUser = "millwright-capi"

// grant gives the manager its roles. The role of the driver already exists.
func (h *vmHarness) grant() {
	h.t.Helper()
	if err := controlplane.Apply(h.t.Context(), h.Admin, config.Files, "rbac/capi-role.yaml", h.Namespace); err != nil {
		h.t.Fatal(err)
	}
	if err := controlplane.Apply(h.t.Context(), h.Admin, os.DirFS("testdata"), "vms-roles.yaml", h.Namespace); err != nil {
		h.t.Fatal(err)
	}
	kubeconfig, err := clientcmd.LoadFromFile(h.path(".millwright/kubeconfig"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, user := range kubeconfig.AuthInfos {
		user.Impersonate = managerUser
	}
	if err := clientcmd.WriteToFile(*kubeconfig, h.path("manager.kubeconfig")); err != nil {
		h.t.Fatal(err)
	}
}

// startCore starts the core as users do.
func (h *vmHarness) startCore() {
	h.t.Helper()
	command := exec.Command(filepath.Join(h.root, "hack", "capi-core.sh"), version, h.path(".millwright"), "0")
	command.Env = append(os.Environ(), "KUBECTL="+filepath.Join(h.kubectl, "kubectl"))
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	core := program.StartOther(h.t, command)
	h.t.Cleanup(func() {
		core.Stop()
		if h.t.Failed() {
			h.t.Logf("%s printed:\n%s", command, core.Output.Tail(50))
		}
	})
	gomega.NewWithT(h.t).Eventually(func(g gomega.Gomega) {
		select {
		case <-core.Done():
			gomega.StopTrying("it has ended").Now()
		default:
			g.Expect(core.Output.String()).To(gomega.ContainSubstring("is ready"))
		}
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
}

// manager starts a manager that serves Cluster API only.
func (h *vmHarness) manager() *program.Process {
	h.t.Helper()
	p := program.Start(h.t, "manager", "--apis", "capi", "--driver", "vm", "--installation", "demo", "--port", "0",
		"--control-kubeconfig", h.path("manager.kubeconfig"), "--target-kubeconfig", "none")
	h.t.Cleanup(func() {
		p.Kill()
		if h.t.Failed() {
			h.t.Logf("the manager printed:\n%s", p.Output.Tail(100))
		}
	})
	return p
}

// declare runs the commands of docs/get-started/cluster-api.md.
func (h *vmHarness) declare() {
	h.t.Helper()
	if out, err := h.typeBlock("bootstrap-token-"); err != nil {
		h.t.Fatalf("running the page's commands: %v, output:\n%s", err, out)
	}
}

// approve runs the commands of the page that approve the certificates of guests.
func (h *vmHarness) approve(g gomega.Gomega) {
	out, err := h.typeBlock("certificate approve")
	g.Expect(err).NotTo(gomega.HaveOccurred(), string(out))
}

// typeBlock runs the block of docs/get-started/cluster-api.md with a marker.
func (h *vmHarness) typeBlock(mark string) ([]byte, error) {
	h.t.Helper()
	page, err := os.ReadFile(filepath.Join(h.root, "docs", "get-started", "cluster-api.md"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(block[1], mark) {
			continue
		}
		shell := exec.CommandContext(h.t.Context(), "bash", "-euo", "pipefail", "-c", block[1])
		shell.Dir = h.dir
		shell.Env = append(os.Environ(), "KUBECONFIG="+h.path(".millwright/kubeconfig"), "PATH="+h.kubectl+":"+os.Getenv("PATH"))
		return shell.CombinedOutput()
	}
	h.t.Fatalf("no block of docs/get-started/cluster-api.md has %s", mark)
	return nil, nil
}

// end checks that no process remains, and removes the directory.
func (h *vmHarness) end() {
	for _, left := range program.Processes(h.t, h.dir, "") {
		h.t.Errorf("a process is left: %d %s", left.PID, left.Args)
	}
	if h.t.Failed() {
		h.t.Logf("logs are in %s", h.path(".millwright/logs"))
		return
	}
	if err := os.RemoveAll(h.dir); err != nil {
		h.t.Error(err)
	}
}
