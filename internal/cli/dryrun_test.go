package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestDryRun_ChangesNothing checks that commands with --dry-run leave all objects as they are, and print what they would
// change.
func TestDryRun_ChangesNothing(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.revisions(t, "pool")
	w.create(&v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: w.Namespace}, Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: "MachineClass", Name: "now"}}})
	c, err := connect.NewClient(w.Admin)
	if err != nil {
		t.Fatal(err)
	}
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: w.Namespace}, Spec: vmv1alpha1.VirtualMachineSpec{CPUs: 1}}
	w.must(c.Create(t.Context(), vm))
	vm.Status.NodeName, vm.Status.ActivePodName = "host-1", "vm-1"
	vm.Status.Conditions = []metav1.Condition{{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: vmv1alpha1.ReasonHostUnreachable, LastTransitionTime: metav1.Now()}}
	w.must(c.Status().Update(t.Context(), vm))
	versions := func() map[string]string {
		found := map[string]string{}
		for _, list := range []client.ObjectList{&v1alpha1.MachineList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineDeploymentList{}, &vmv1alpha1.VirtualMachineList{}} {
			w.must(c.List(t.Context(), list, client.InNamespace(w.Namespace)))
			w.must(meta.EachListItem(list, func(item runtime.Object) error {
				object := item.(client.Object)
				found[object.GetName()] = object.GetResourceVersion()
				return nil
			}))
		}
		return found
	}
	before := versions()
	for mode, suffix := range map[string]string{"client": "(dry run)", "server": "(server dry run)"} {
		for _, command := range []string{
			"machine preserve m", "rollout pause pool", "rollout restart pool", "rollout undo pool", "vm fence vm --confirm host-1",
		} {
			args := append(strings.Fields(command), "--dry-run="+mode, "--kubeconfig", w.control, "-n", w.Namespace)
			var stdout, stderr bytes.Buffer
			if status := Main(Program{Args: args, Stdout: &stdout, Stderr: &stderr}); status != 0 || !strings.HasSuffix(stdout.String(), suffix+"\n") {
				t.Errorf("%s --dry-run=%s: exit status %d, %s%s", command, mode, status, &stdout, &stderr)
			}
			if diff := cmp.Diff(before, versions()); diff != "" {
				t.Fatalf("%s --dry-run=%s changed objects (-before +after):\n%s", command, mode, diff)
			}
		}
	}
}

// TestCompletion_OffersNames checks the completion of names and namespaces in a cluster.
func TestCompletion_OffersNames(t *testing.T) {
	tier.All(t)
	w := newClusters(t)
	w.revisions(t, "pool")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"rollout", "status", "--kubeconfig", w.control, "-n", w.Namespace, ""}, "pool"},
		{[]string{"explain", "machineset", "--target-kubeconfig", w.control, "-n", w.Namespace, ""}, "pool-before"},
		{[]string{"vm", "list", "--kubeconfig", w.control, "--namespace", ""}, w.Namespace},
		{[]string{"vm", "list", "--output", ""}, "wide"},
	} {
		lines := strings.Split(printed(t, slices.Insert(tc.args, 0, "__complete")...), "\n")
		if !slices.Contains(lines, tc.want) {
			t.Errorf("%q offers %q", tc.args, lines)
		}
	}
}
