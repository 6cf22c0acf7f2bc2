package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/program"
)

// TestClusterAPIQuickstart runs the commands of docs/cluster-api-quickstart.md as they stand there: a control plane by
// kubeadm and a worker, both virtual machines, become Ready behind the load balancer. A Pod runs and is reached; a
// worker that breaks is replaced; in the end everything is deleted.
func TestClusterAPIQuickstart(t *testing.T) {
	builtGuest(t, "guest-kubeadm")
	q := newQuickstart(t)
	began := time.Time{}
	for _, block := range q.blocks {
		if strings.Contains(block, "apply -f -") {
			began = time.Now()
		}
		if strings.HasPrefix(block, "clusterctl get kubeconfig") {
			q.awaitControlPlane()
			t.Logf("the control plane was there %v after the Cluster", time.Since(began).Round(time.Second))
		}
		q.do(block)
	}
	q.awaitReady(2)
	t.Logf("all machines were Ready %v after the Cluster", time.Since(began).Round(time.Second))

	q.sh(`kubectl --kubeconfig demo.kubeconfig run web --image ` + image + ` --image-pull-policy Never -- web`)
	q.await(`kubectl --kubeconfig demo.kubeconfig get pod web -o 'jsonpath={.status.phase}'`, "Running")
	q.await(`kubectl --kubeconfig demo.kubeconfig get --raw /api/v1/namespaces/default/pods/web:8080/proxy/ready`, "")

	// A guest that stands still is a node that says nothing.
	broken := q.sh(`kubectl get machines.cluster.x-k8s.io -l '!cluster.x-k8s.io/control-plane' -o name`)
	q.sh(`kubectl patch "$(kubectl get virtualmachines -o name | grep workers)" --type merge -p '{"spec":{"mode":"Pause"}}'`)
	q.eventually(func(g gomega.Gomega) {
		now, err := q.try(`kubectl get machines.cluster.x-k8s.io -l '!cluster.x-k8s.io/control-plane' -o name`)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(strings.Fields(now)).To(gomega.HaveLen(1))
		g.Expect(now).NotTo(gomega.Equal(broken))
	})
	q.awaitReady(2)

	q.sh("kubectl delete cluster demo")
	if left := q.sh("kubectl get machines.cluster.x-k8s.io,millwrightmachines,virtualmachines,persistentvolumeclaims,secrets -o name"); left != "" {
		t.Errorf("there is left: %s", left)
	}
}

// quickstart does what the page says, in the folder of the sources.
type quickstart struct {
	*testing.T
	root   string
	blocks []string
	// environ is the environment of the user's shell. Nil: this process's.
	environ []string
}

// codeBlock is commands of a page.
var codeBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// usersChoice is in the commands for which the user has to say a name.
var usersChoice = regexp.MustCompile(` NAME\b`)

// stays are the commands that stay, each in a terminal of its own, with what they say when they are ready.
var stays = []struct{ command, ready string }{
	{"millwright up ", "Ready after"},
	{"capi-manager.sh ", "is ready, and logs to"},
	{"millwright manager ", "Starting workers"},
	{"millwright load-balancer ", "Starting workers"},
}

func newQuickstart(t *testing.T) *quickstart {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	q := &quickstart{T: t, root: root}
	page, err := os.ReadFile(filepath.Join(root, "docs", "cluster-api-quickstart.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range codeBlock.FindAllSubmatch(page, -1) {
		q.blocks = append(q.blocks, string(match[1]))
	}
	if _, err := os.Stat(filepath.Join(root, ".millwright")); !os.IsNotExist(err) {
		t.Fatalf("there is a folder .millwright, which this test would use: %v", err)
	}
	t.Cleanup(func() {
		for _, name := range []string{".millwright", "demo.kubeconfig"} {
			if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
				t.Error(err)
			}
		}
	})
	return q
}

// do does what a block of the page says.
func (q *quickstart) do(block string) {
	q.Helper()
	for _, known := range stays {
		if strings.Contains(block, known.command) {
			q.start(block, known.ready)
			return
		}
	}
	var lines []string
	for line := range strings.Lines(block) {
		if !usersChoice.MatchString(line) {
			lines = append(lines, line)
		}
	}
	// What it exports is there for the next ones.
	output, environ, _ := strings.Cut(q.sh(strings.Join(lines, "")+"\nprintf '\\0'; env -0"), "\x00")
	q.Logf("%s", output)
	q.environ = strings.Split(strings.Trim(environ, "\x00"), "\x00")
}

// start does it in a terminal of its own, until the test ends.
func (q *quickstart) start(block, ready string) {
	q.Helper()
	// exec: the signal is for the program itself.
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(block, "\\\n", " ")), "\n")
	last := len(lines) - 1
	lines[last] = "exec " + lines[last]
	process := program.StartOther(q.T, q.command(context.Background(), strings.Join(lines, "\n")))
	q.Cleanup(func() {
		process.Stop()
		if q.Failed() {
			q.Logf("%s\n%s", block, process.Output.String())
		}
	})
	q.eventually(func(g gomega.Gomega) {
		select {
		case <-process.Done():
			q.Fatalf("it ended: %s\n%s", block, process.Output.String())
		default:
		}
		g.Expect(process.Output.String()).To(gomega.ContainSubstring(ready))
	})
}

func (q *quickstart) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = q.root, q.environ
	return cmd
}

// try returns what a script prints.
func (q *quickstart) try(script string) (string, error) {
	command, complaints := q.command(q.Context(), script), &bytes.Buffer{}
	command.Stderr = complaints
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", script, err, complaints)
	}
	return strings.TrimSpace(string(output)), nil
}

// sh is try for what must succeed.
func (q *quickstart) sh(script string) string {
	q.Helper()
	output, err := q.try(script)
	if err != nil {
		q.Fatal(err)
	}
	return output
}

// await waits until a script succeeds and prints a text. Empty: any.
func (q *quickstart) await(script, text string) {
	q.Helper()
	q.eventually(func(g gomega.Gomega) {
		output, err := q.try(script)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(output).To(gomega.ContainSubstring(text))
	})
}

func (q *quickstart) eventually(check func(g gomega.Gomega)) {
	q.Helper()
	gomega.NewWithT(q).Eventually(func(g gomega.Gomega) { check(g) }).WithTimeout(late).WithPolling(2 * time.Second).Should(gomega.Succeed())
}

func (q *quickstart) awaitControlPlane() {
	q.Helper()
	q.await(`kubectl get kubeadmcontrolplanes demo-control-plane -o 'jsonpath={.status.initialization.controlPlaneInitialized}'`, "true")
}

// awaitReady waits until there are that many machines of Cluster API, all of them Ready.
func (q *quickstart) awaitReady(machines int) {
	q.Helper()
	q.eventually(func(g gomega.Gomega) {
		states, err := q.try(`kubectl get machines.cluster.x-k8s.io -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'`)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(strings.Fields(states)).To(gomega.Equal(slices.Repeat([]string{"True"}, machines)))
	})
}
