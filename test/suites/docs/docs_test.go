package docs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// pages run in this order, as if by one user in one cluster.
var pages = []string{"tasks/machine.md", "tasks/machineset.md", "tasks/machinedeployment.md", "drivers/sim.md", "tasks/faq.md"}

// waitTimeout limits operations that take seconds.
const waitTimeout = env.WaitTimeout

// blockTimeout is how long a block of commands may take. It is longer than the timeouts of its commands.
const blockTimeout = 2 * env.WaitTimeout

func TestMain(m *testing.M) {
	program.Main()
	os.Exit(m.Run())
}

func TestDocs_CommandsWork(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	place := newPlace(t)
	place.up()
	t.Run("examples", place.examples)
	t.Run("YAML", place.yaml)
	t.Run("README.md", place.readme)
	t.Run("tasks/admission.md", place.refuses)
	for _, page := range pages {
		t.Run(page, func(t *testing.T) {
			place.run(t, page)
			place.isEmpty(t)
		})
	}
	t.Run("tasks/gitops.md", place.gitOps)
	t.Run("get-started/from-mcm.md", place.migrate)
}

// place is a directory like a checkout: with bin/, examples/, config/, and local mode in .millwright.
type place struct {
	t    *testing.T
	dir  string
	root string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, dir: t.TempDir(), root: root}
	for _, name := range []string{"examples", "config"} {
		must(t, os.Symlink(filepath.Join(root, name), filepath.Join(p.dir, name)))
	}
	binaries, err := env.Binaries()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(p.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(binaries, "kubectl"), filepath.Join(bin, "kubectl")); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s exec %q \"$@\"\n", program.Environment, os.Args[0])
	if err := os.WriteFile(filepath.Join(bin, "millwright"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// up starts local mode as the pages describe, on unused ports.
func (p *place) up() {
	p.t.Helper()
	up := program.Start(p.t, "up", "--driver", "sim", "--dir", filepath.Join(p.dir, ".millwright"), "--api-port", "0", "--unsafe-no-fsync")
	p.t.Cleanup(func() {
		up.Stop()
		if p.t.Failed() {
			p.t.Logf("millwright up printed:\n%s", up.Output.Tail(50))
		}
	})
	gomega.NewWithT(p.t).Eventually(up.Output.String).WithTimeout(waitTimeout).Should(gomega.ContainSubstring("Ready after"))
}

func (p *place) kubeconfig() string { return filepath.Join(p.dir, ".millwright", "kubeconfig") }

// run runs the commands of a page. A block that fails stops the page.
func (p *place) run(t *testing.T, page string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	found := blocks(text)
	if len(found) == 0 {
		t.Fatalf("%s has no commands", page)
	}
	p.runBlocks(t, page, found...)
}

// readme runs the commands of the README that create a pool. Those before them start the cluster, as up does here.
func (p *place) readme(t *testing.T) {
	found := blocks([]byte(read(t, filepath.Join(p.root, "README.md"))))
	if len(found) != 2 || !strings.HasSuffix(found[0], "bin/millwright up\n") {
		t.Fatalf("the README has the commands %q, want those that start a cluster, and those that create a pool", found)
	}
	p.runBlocks(t, "README.md", found[1], "kubectl delete -f .millwright/examples/pool.yaml --timeout=2m\n"+
		"kubectl wait machines -l name=pool --for=delete --timeout=2m\n")
	p.isEmpty(t)
}

func (p *place) runBlocks(t *testing.T, page string, found ...string) {
	t.Helper()
	for _, block := range found {
		ctx, cancel := context.WithTimeout(t.Context(), blockTimeout)
		shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", block)
		shell.Dir = p.dir
		shell.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig(), "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"))
		out, err := shell.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("%s: running\n%s\n%v, output:\n%s", page, block, err, out)
		}
		t.Logf("%s\n%s", block, out)
	}
}

// examples validates every example with the API server in strict mode. The pages and "make demo" show their
// effect. Local mode does not have the kinds of Cluster API.
func (p *place) examples(t *testing.T) {
	ours := ownKinds(t)
	root, err := env.Root()
	must(t, err)
	for _, arguments := range [][]string{{"apply"}, {"wait", "--for=condition=Established", "--timeout=1m"}} {
		arguments = append(arguments, "--kubeconfig="+p.kubeconfig(), "-f", filepath.Join(root, "config", "crd", "legacy"))
		if out, err := exec.CommandContext(t.Context(), filepath.Join(p.dir, "bin", "kubectl"), arguments...).CombinedOutput(); err != nil {
			t.Fatalf("kubectl %v: %v\n%s", arguments, err, out)
		}
	}
	for _, document := range documents(t) {
		// Kinds of Cluster API, Flux and Argo CD are not installed.
		others := strings.Contains(document.file, "cluster-api") || strings.Contains(document.file, "gitops")
		if others && !ours[document.kind] {
			continue
		}
		p.validate(t, document)
	}
}

// validate validates an object with the API server in strict mode.
func (p *place) validate(t *testing.T, d document) {
	t.Helper()
	kubectl := exec.CommandContext(t.Context(), filepath.Join(p.dir, "bin", "kubectl"), "--kubeconfig", p.kubeconfig(),
		"apply", "--dry-run=server", "--validate=strict", "-f", "-")
	kubectl.Stdin = bytes.NewReader(d.text)
	if out, err := kubectl.CombinedOutput(); err != nil {
		t.Errorf("%s, %s: %v\n%s", d.file, d.kind, err, out)
	}
}

// refuses checks that the policies of local mode reject an object, as the page shows.
func (p *place) refuses(t *testing.T) {
	bad := filepath.Join(p.dir, "bad.yaml")
	text := "apiVersion: machine.sapcloud.io/v1alpha1\nkind: Machine\nmetadata: {name: bad, namespace: default}\nspec: {class: {kind: MachineClass}}\n"
	must(t, os.WriteFile(bad, []byte(text), 0o600))
	out, err := exec.CommandContext(t.Context(), filepath.Join(p.dir, "bin", "kubectl"), "--kubeconfig="+p.kubeconfig(), "apply", "-f", bad).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "spec.class.name: Required value") {
		t.Errorf("kubectl printed, with %v:\n%s", err, out)
	}
}

// isEmpty checks that nothing remains.
func (p *place) isEmpty(t *testing.T) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []client.ObjectList{
		&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}, &v1alpha1.MachineClassList{},
	} {
		if err := c.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		if meta.LenList(list) > 0 {
			t.Errorf("it leaves %d objects in %T", meta.LenList(list), list)
		}
	}
}

// blocks returns the blocks of a page that users run, without the indentation of lists.
func blocks(text []byte) []string {
	var found []string
	var block strings.Builder
	var indentation string
	inside := false
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if !inside {
			indentation = line[:len(line)-len(strings.TrimLeft(line, " "))]
		}
		switch line = strings.TrimPrefix(line, indentation); {
		case line == "```sh":
			inside = true
		case inside && line == "```":
			found = append(found, block.String())
			block.Reset()
			inside = false
		case inside:
			block.WriteString(line + "\n")
		}
	}
	return found
}
