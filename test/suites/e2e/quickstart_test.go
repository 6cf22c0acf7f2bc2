package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestClusterAPIQuickstart runs the commands of docs/cluster-api-quickstart.md as they stand there: a control plane by
// kubeadm and a worker, both virtual machines, become Ready behind the load balancer. A Pod runs and is reached; a
// worker that breaks is replaced; in the end everything is deleted.
func TestClusterAPIQuickstart(t *testing.T) {
	tier.All(t)
	builtGuest(t, "guest-kubeadm")
	q := newQuickstart(t)
	began := q.follow(1)
	q.awaitReady(2)
	t.Logf("all machines were Ready %v after the Cluster", time.Since(began).Round(time.Second))

	q.sh(`kubectl --kubeconfig demo.kubeconfig run web --image ` + image + ` --image-pull-policy Never -- web`)
	q.await(`kubectl --kubeconfig demo.kubeconfig get pod web -o 'jsonpath={.status.phase}'`, "Running")
	q.await(`kubectl --kubeconfig demo.kubeconfig get --raw /api/v1/namespaces/default/pods/web:8080/proxy/ready`, "")

	// A guest that stands still is a node that says nothing.
	const workers = `kubectl get machines.cluster.x-k8s.io -l '!cluster.x-k8s.io/control-plane' -o name`
	broken := q.sh(workers)
	q.sh(`kubectl patch "$(kubectl get virtualmachines -o name | grep workers)" --type merge -p '{"spec":{"mode":"Pause"}}'`)
	q.awaitAnother(workers, broken)
	q.awaitReady(2)
	q.delete()
}

// TestClusterAPIControlPlanes: the machine of the page's control plane is replaced for a new template, so that two are one
// etcd for a while. Where there are processors for it, there are three machines before, and then one again.
func TestClusterAPIControlPlanes(t *testing.T) {
	tier.All(t)
	builtGuest(t, "guest-kubeadm")
	q := newQuickstart(t)
	q.follow(0)
	q.awaitReady(1)
	if cpus := runtime.NumCPU(); cpus >= processorsOfThree {
		q.scale(3)
		q.scale(1)
	} else {
		t.Logf("no three machines: they need %d processors without KVM, and there are %d", processorsOfThree, cpus)
	}

	const machines = `kubectl get machines.cluster.x-k8s.io -o name`
	old, began := q.sh(machines), time.Now()
	q.sh(`kubectl get millwrightmachinetemplate demo-control-plane -o yaml | sed 's/name: demo-control-plane$/name: demo-control-plane-2/' | kubectl create -f -`)
	q.sh(`kubectl patch kubeadmcontrolplane demo-control-plane --type merge -p '{"spec":{"machineTemplate":{"spec":{"infrastructureRef":{"name":"demo-control-plane-2"}}}}}'`)
	q.awaitAnother(machines, old)
	q.awaitReady(1)
	q.awaitMembers(1)
	t.Logf("the machine of the new template was Ready after %v", time.Since(began).Round(time.Second))
	q.delete()
}

// quickstart does what the page says, in the folder of the sources.
type quickstart struct {
	*testing.T
	root   string
	blocks []string
	// prefer has machines that are nodes come first.
	prefer string
	// environ is the environment of the user's shell. Nil: this process's.
	environ []string
}

// codeBlock is commands of a page, repeated those that it advises to repeat.
var (
	codeBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	repeated  = regexp.MustCompile("(?s)```bash\n(.*?)```")
)

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
	root, err := env.Sources()
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
	prefer := repeated.FindSubmatch(page)
	if prefer == nil {
		t.Fatal("the page does not say how machines that are nodes come first")
	}
	q.prefer = string(prefer[1])
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

// processorsOfThree is how many processors three emulated control planes need that answer in time: each takes one when it
// is idle, and more while the next one joins.
const processorsOfThree = 6

// scale has the control plane be that many machines.
func (q *quickstart) scale(replicas int) {
	q.Helper()
	began := time.Now()
	q.sh(fmt.Sprintf("kubectl scale kubeadmcontrolplane demo-control-plane --replicas %d", replicas))
	q.awaitReady(replicas)
	q.awaitMembers(replicas)
	q.Logf("%d machines were Ready after %v", replicas, time.Since(began).Round(time.Second))
}

// follow does what the page says, with that many workers, and returns when the Cluster was created.
func (q *quickstart) follow(workers int) (began time.Time) {
	q.Helper()
	for _, block := range q.blocks {
		block = strings.ReplaceAll(block, "WORKER_MACHINE_COUNT=1", fmt.Sprintf("WORKER_MACHINE_COUNT=%d", workers))
		if strings.Contains(block, "apply -f -") {
			began = time.Now()
		}
		if strings.HasPrefix(block, "clusterctl get kubeconfig") {
			q.awaitControlPlane()
			q.Logf("the control plane was there %v after the Cluster", time.Since(began).Round(time.Second))
		}
		q.do(block)
	}
	return began
}

// delete deletes the Cluster; nothing may be left.
func (q *quickstart) delete() {
	q.Helper()
	q.sh("kubectl delete cluster demo")
	if left := q.sh("kubectl get machines.cluster.x-k8s.io,millwrightmachines,virtualmachines,persistentvolumeclaims,secrets -o name"); left != "" {
		q.Errorf("there is left: %s", left)
	}
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
		q.preferServing()
		states, err := q.try(`kubectl get machines.cluster.x-k8s.io -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'`)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(strings.Fields(states)).To(gomega.Equal(slices.Repeat([]string{"True"}, machines)))
	})
}

// awaitAnother waits until a script prints one name that is not the old one.
func (q *quickstart) awaitAnother(script, old string) {
	q.Helper()
	q.eventually(func(g gomega.Gomega) {
		q.preferServing()
		now, err := q.try(script)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(strings.Fields(now)).To(gomega.HaveLen(1))
		g.Expect(now).NotTo(gomega.Equal(old))
	})
}

// awaitMembers waits until the cluster has that many nodes, and Cluster API that many healthy members of etcd.
func (q *quickstart) awaitMembers(members int) {
	q.Helper()
	q.eventually(func(g gomega.Gomega) {
		nodes, err := q.try(`kubectl --kubeconfig demo.kubeconfig get nodes -o name`)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(strings.Fields(nodes)).To(gomega.HaveLen(members))
		etcd, err := q.try(`kubectl get machines.cluster.x-k8s.io -o 'jsonpath={.items[*].status.conditions[?(@.type=="EtcdMemberHealthy")].status}'`)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(strings.Fields(etcd)).To(gomega.Equal(slices.Repeat([]string{"True"}, members)))
	})
}

// preferServing has the virtual machines that are nodes come first, by the commands of the page.
func (q *quickstart) preferServing() {
	q.Helper()
	if _, err := q.try(q.prefer); err != nil {
		q.Logf("%v", err) // it helps, and is no part of what is tested
	}
}
