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

// TestClusterAPI_Quickstart runs the commands of docs/get-started/cluster-api-quickstart.md: a control plane by
// kubeadm and a worker, both virtual machines, become Ready behind the load balancer. A Pod runs and is reachable. A
// worker that fails is replaced. In the end, everything is deleted.
func TestClusterAPI_Quickstart(t *testing.T) {
	tier.All(t)
	builtGuest(t, "guest-kubeadm")
	q := newQuickstart(t)
	began := q.follow(1)
	q.awaitReady(2)
	t.Logf("all machines were Ready %v after the Cluster", time.Since(began).Round(time.Second))

	q.sh(`kubectl --kubeconfig demo.kubeconfig run web --image ` + image + ` --image-pull-policy Never -- web`)
	q.await(`kubectl --kubeconfig demo.kubeconfig get pod web -o 'jsonpath={.status.phase}'`, "Running")
	q.await(`kubectl --kubeconfig demo.kubeconfig get --raw /api/v1/namespaces/default/pods/web:8080/proxy/ready`, "")

	// A stopped guest is a silent node.
	const workers = `kubectl get machines.cluster.x-k8s.io -l '!cluster.x-k8s.io/control-plane' -o name`
	broken := q.sh(workers)
	q.sh(`kubectl patch "$(kubectl get virtualmachines -o name | grep workers)" --type merge -p '{"spec":{"mode":"Pause"}}'`)
	q.awaitAnother(workers, broken)
	q.awaitReady(2)
	q.delete()
}

// TestClusterAPI_ControlPlaneIsReplaced replaces the machine of the page's control plane after a change of the template, so
// that etcd temporarily has two members. If there are enough CPUs, the control plane is scaled to three machines
// before, and then back to one.
func TestClusterAPI_ControlPlaneIsReplaced(t *testing.T) {
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

// quickstart follows the page, in the directory of the sources.
type quickstart struct {
	*testing.T
	root   string
	blocks []string
	// prefer gives priority to machines that are nodes.
	prefer string
	// environ is the environment of the user's shell. If nil, it is that of this process.
	environ []string
}

// codeBlock matches the commands of a page, and repeated matches those that users repeat.
var (
	codeBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	repeated  = regexp.MustCompile("(?s)```bash\n(.*?)```")
)

// usersChoice matches a placeholder for a name that the user chooses.
var usersChoice = regexp.MustCompile(` NAME\b`)

// stays contains the commands that keep running, each in its own terminal, with their output when they are ready.
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
	page, err := os.ReadFile(filepath.Join(root, "docs", "get-started", "cluster-api-quickstart.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range codeBlock.FindAllSubmatch(page, -1) {
		q.blocks = append(q.blocks, string(match[1]))
	}
	prefer := repeated.FindSubmatch(page)
	if prefer == nil {
		t.Fatal("the page does not describe how to give priority to machines that are nodes")
	}
	q.prefer = string(prefer[1])
	if _, err := os.Stat(filepath.Join(root, ".millwright")); !os.IsNotExist(err) {
		t.Fatalf("there is a directory .millwright, which this test would use: %v", err)
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

// processorsOfThree is the number of CPUs that three emulated control planes need to respond in time. Each needs
// one when idle, and more while another one joins.
const processorsOfThree = 6

// scale changes the number of control plane machines.
func (q *quickstart) scale(replicas int) {
	q.Helper()
	began := time.Now()
	q.sh(fmt.Sprintf("kubectl scale kubeadmcontrolplane demo-control-plane --replicas %d", replicas))
	q.awaitReady(replicas)
	q.awaitMembers(replicas)
	q.Logf("%d machines were Ready after %v", replicas, time.Since(began).Round(time.Second))
}

// follow follows the page with that many workers, and returns when the Cluster was created.
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

// delete deletes the Cluster; nothing may remain.
func (q *quickstart) delete() {
	q.Helper()
	q.sh("kubectl delete cluster demo")
	if left := q.sh("kubectl get machines.cluster.x-k8s.io,millwrightmachines,virtualmachines,persistentvolumeclaims,secrets -o name"); left != "" {
		q.Errorf("there is left: %s", left)
	}
}

// do runs a block of the page.
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
	// Exported variables are available to the following blocks.
	output, environ, _ := strings.Cut(q.sh(strings.Join(lines, "")+"\nprintf '\\0'; env -0"), "\x00")
	q.Logf("%s", output)
	q.environ = strings.Split(strings.Trim(environ, "\x00"), "\x00")
}

// start runs a block in its own terminal until the end of the test.
func (q *quickstart) start(block, ready string) {
	q.Helper()
	// With exec, the program itself receives the signal.
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

// try runs a script, and returns its output.
func (q *quickstart) try(script string) (string, error) {
	command, complaints := q.command(q.Context(), script), &bytes.Buffer{}
	command.Stderr = complaints
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", script, err, complaints)
	}
	return strings.TrimSpace(string(output)), nil
}

// sh is like try, for a script that must succeed.
func (q *quickstart) sh(script string) string {
	q.Helper()
	output, err := q.try(script)
	if err != nil {
		q.Fatal(err)
	}
	return output
}

// await waits until a script succeeds and prints a text. If the text is empty, any output is accepted.
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

// awaitReady waits until there are exactly that many machines of Cluster API, all of them Ready.
func (q *quickstart) awaitReady(machines int) {
	q.Helper()
	q.eventually(func(g gomega.Gomega) {
		q.preferServing()
		states, err := q.try(`kubectl get machines.cluster.x-k8s.io -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'`)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(strings.Fields(states)).To(gomega.Equal(slices.Repeat([]string{"True"}, machines)))
	})
}

// awaitAnother waits until a script prints a single name that differs from the old one.
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

// awaitMembers waits until the cluster has that many nodes, and Cluster API reports that many healthy etcd
// members.
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

// preferServing gives priority to virtual machines that are nodes, using the commands of the page.
func (q *quickstart) preferServing() {
	q.Helper()
	if _, err := q.try(q.prefer); err != nil {
		q.Logf("%v", err) // it is helpful, but not under test
	}
}
