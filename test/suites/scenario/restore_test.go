package scenario

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// The kinds of a pool as arguments of kubectl. All objects of one are restored before those of the next.
const (
	classes     = "secrets,machineclasses"
	deployments = "machinedeployments"
	sets        = "machinesets"
	machines    = "machines"
)

// restoring is a scenario that runs the commands of the page about backups.
type restoring struct {
	*scenario
	// text is the page. binaries is the directory of kubectl.
	text, binaries string
}

// orders returns all orders of values.
func orders(values []string) [][]string {
	if len(values) == 0 {
		return [][]string{nil}
	}
	var all [][]string
	for i, first := range values {
		for _, rest := range orders(slices.Delete(slices.Clone(values), i, i+1)) {
			all = append(all, append([]string{first}, rest...))
		}
	}
	return all
}

// commands finds the blocks of commands in a page.
var commands = regexp.MustCompile("(?s)\n```sh\n(.*?\n)```\n")

// page runs a block of commands in a section of the page about backups, in the directory of the scenario and the
// namespace of its pool. It replaces all kinds by the given ones.
func (w *restoring) page(section string, number int, kinds string) {
	w.t.Helper()
	_, text, found := strings.Cut(w.text, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	blocks := commands.FindAllStringSubmatch(text, -1)
	if !found || len(blocks) <= number {
		w.t.Fatalf("section %q of the page has %d blocks of commands", section, len(blocks))
	}
	block := blocks[number][1]
	block = strings.ReplaceAll(block, strings.Join([]string{classes, deployments, sets, machines}, ","), kinds)
	shell := exec.CommandContext(w.t.Context(), "bash", "-euo", "pipefail", "-c", block)
	shell.Dir = w.dir
	shell.Env = append(os.Environ(), "KUBECONFIG="+w.path("admin"), "PATH="+w.binaries+":"+os.Getenv("PATH"))
	if out, err := shell.CombinedOutput(); err != nil {
		w.t.Fatalf("running\n%s\n%v, output:\n%s", block, err, out)
	}
}

// newRestore returns a scenario that can run the commands of the page.
func newRestore(t *testing.T) *restoring {
	t.Helper()
	w := &restoring{scenario: newScenario(t)}
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "tasks", "backup-and-restore.md"))
	if err != nil {
		t.Fatal(err)
	}
	w.text = string(text)
	if w.binaries, err = env.Binaries(); err != nil {
		t.Fatal(err)
	}
	env.WriteKubeconfig(t, w.path("admin"), w.Admin)
	config := exec.CommandContext(t.Context(), filepath.Join(w.binaries, "kubectl"), "--kubeconfig", w.path("admin"), "config", "set-context", "--current", "--namespace", w.Namespace)
	if out, err := config.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", config.Args, err, out)
	}
	return w
}

// file is the name of the backup of some kinds.
func (w *restoring) file(kinds string) string { return filepath.Join(w.dir, kinds+".json") }

// backUp saves the objects of each of the kinds.
func (w *restoring) backUp(all []string) {
	w.t.Helper()
	for _, kinds := range all {
		w.page("Back up", 0, kinds)
		if err := os.Rename(filepath.Join(w.dir, "backup.json"), w.file(kinds)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// restore creates the objects of some kinds.
func (w *restoring) restore(kinds string) {
	w.t.Helper()
	if err := os.Rename(w.file(kinds), filepath.Join(w.dir, "backup.json")); err != nil {
		w.t.Fatal(err)
	}
	w.page("Restore", 0, kinds)
}

// lose removes all objects as if their cluster were lost. No manager may run.
func (w *restoring) lose() {
	w.t.Helper()
	for _, kind := range []string{"MachineDeployment", "MachineSet", "Machine", "MachineClass", "Secret"} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind + "List"))
		if kind == "Secret" {
			list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
		}
		if err := w.Client.List(w.t.Context(), list, client.InNamespace(w.Namespace)); err != nil {
			w.t.Fatal(err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			if err := w.Client.Patch(w.t.Context(), object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
				w.t.Fatal(err)
			}
			if err := w.Client.Delete(w.t.Context(), object); client.IgnoreNotFound(err) != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// processed waits until the controllers have processed all existing deployments and sets, so that what they do before
// the next kind is restored has happened.
func (w *restoring) processed() {
	w.t.Helper()
	w.eventually(func(g gomega.Gomega) {
		pools, owned := &v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}
		g.Expect(w.Client.List(w.t.Context(), pools, client.InNamespace(w.Namespace))).To(gomega.Succeed())
		g.Expect(w.Client.List(w.t.Context(), owned, client.InNamespace(w.Namespace))).To(gomega.Succeed())
		for _, pool := range pools.Items {
			g.Expect(pool.Status.ObservedGeneration).To(gomega.BeNumerically(">", 0), pool.Name)
		}
		for _, set := range owned.Items {
			g.Expect(set.Status.ObservedGeneration).To(gomega.BeNumerically(">", 0), set.Name)
		}
	})
}

// vms returns the provider IDs of all VMs by the names of their Machines.
func (w *restoring) vms() map[string]string {
	w.t.Helper()
	list, err := w.cloud.VMs()
	if err != nil {
		w.t.Fatal(err)
	}
	ids := map[string]string{}
	for _, vm := range list {
		ids[vm.Machine] = vm.ProviderID
	}
	return ids
}

// followMachines returns a function that returns the names of all Machines that were created, and of those that began
// to be deleted, since the call of followMachines.
func (w *restoring) followMachines() func() (created, deleted []string) {
	w.t.Helper()
	c, err := client.NewWithWatch(w.Admin, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		w.t.Fatal(err)
	}
	list := &v1alpha1.MachineList{}
	if err := c.List(w.t.Context(), list, client.InNamespace(w.Namespace)); err != nil {
		w.t.Fatal(err)
	}
	watcher, err := c.Watch(w.t.Context(), &v1alpha1.MachineList{}, client.InNamespace(w.Namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		w.t.Fatal(err)
	}
	return func() (created, deleted []string) {
		defer watcher.Stop()
		w.markLast(list)
		for event := range watcher.ResultChan() {
			machine, ok := event.Object.(*v1alpha1.Machine)
			switch {
			case !ok:
				w.t.Fatalf("the watch returned %v", event)
			case event.Type == watch.Added:
				created = append(created, machine.Name)
			case event.Type == watch.Deleted || machine.DeletionTimestamp != nil:
				deleted = append(deleted, machine.Name)
			case machine.Annotations[lastEvent] == list.ResourceVersion:
				return created, deleted
			}
		}
		w.t.Fatal("the watch ended")
		return nil, nil
	}
}

// lastEvent is an annotation of the last event for which a watch waits.
const lastEvent = "example.com/last-event"

// markLast writes lastEvent to a Machine, with the version of a list as its value.
func (w *restoring) markLast(list *v1alpha1.MachineList) {
	w.t.Helper()
	now := &v1alpha1.MachineList{}
	if err := w.Client.List(w.t.Context(), now, client.InNamespace(w.Namespace)); err != nil || len(now.Items) == 0 {
		w.t.Fatalf("%d machines, %v", len(now.Items), err)
	}
	w.patch(&now.Items[0], fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, lastEvent, list.ResourceVersion))
}

// TestRestore_KeepsVMsInEveryOrderOfKinds restores a MachineDeployment and a MachineSet from a backup in every order of
// kinds, with a running manager that is restarted once in every other order. All Machines keep their VMs, none is
// created in addition, and no node is drained.
func TestRestore_KeepsVMsInEveryOrderOfKinds(t *testing.T) {
	tier.All(t)
	w := newRestore(t)
	manager := w.manager()
	deployment := w.pool("restored", 2, `{}`)
	set := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "single"}, Spec: v1alpha1.MachineSetSpec{
		Replicas: 1, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "single"}}, Template: *deployment.Spec.Template.DeepCopy(),
	}}
	set.Spec.Template.Labels = map[string]string{"name": "single"}
	w.create(set)
	complete := func(g gomega.Gomega) {
		g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
		g.Expect(deployment.Status.AvailableReplicas).To(gomega.Equal(int32(2)))
		g.Expect(set.Status.AvailableReplicas).To(gomega.Equal(int32(1)))
		for _, object := range []client.Object{deployment, set} {
			g.Expect(object.GetAnnotations()).NotTo(gomega.HaveKey(v1alpha1.AnnotationKeyAwaitsRestoreUntil))
		}
	}
	w.eventually(complete)
	vms := w.vms()
	if len(vms) != 3 {
		t.Fatalf("%d VMs", len(vms))
	}
	all := []string{classes, deployments, machines, sets}
	for i, order := range orders(all) {
		manager.Stop()
		w.backUp(all)
		w.lose()
		follow := w.followMachines()
		manager = w.manager()
		for at, kinds := range order {
			w.restore(kinds)
			w.processed()
			if i%2 == 1 && at == 1 {
				manager.Stop()
				manager = w.manager()
			}
		}
		w.page("Restore", 1, "")
		w.eventually(complete)
		if diff := cmp.Diff(vms, w.vms()); diff != "" {
			t.Fatalf("%v: VMs: want - got +\n%s", order, diff)
		}
		created, deleted := follow()
		slices.Sort(created)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(vms)), created); diff != "" || len(deleted) > 0 {
			t.Fatalf("%v: machines %q were deleted; created, want - got +\n%s", order, deleted, diff)
		}
		w.wantNoDrain(order)
		t.Logf("%s: complete", strings.Join(order, ", "))
	}
	manager.Stop()
}

// wantNoDrain checks that no node is cordoned.
func (w *restoring) wantNoDrain(order []string) {
	w.t.Helper()
	nodes := w.nodesOf(w.t.Context(), gomega.NewWithT(w.t), "restored")
	if len(nodes) != 2 {
		w.t.Errorf("%v: %d nodes", order, len(nodes))
	}
	for _, node := range nodes {
		if node.Spec.Unschedulable || node.DeletionTimestamp != nil {
			w.t.Errorf("%v: node %s is being drained or deleted", order, node.Name)
		}
	}
}
