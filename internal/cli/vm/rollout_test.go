package vm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/output"
)

// old returns a VM whose hypervisor has an outdated image.
func old(name string, change func(*vmv1alpha1.VirtualMachine)) *vmv1alpha1.VirtualMachine {
	vm := running(nil)
	vm.Name, vm.Labels = name, map[string]string{"tier": name}
	vm.Status.ActivePodName = name + "-1"
	vm.Status.Conditions = append(vm.Status.Conditions, metav1.Condition{Type: vmv1alpha1.ConditionHypervisorCurrent, Status: metav1.ConditionFalse, Reason: "OtherImage"})
	if change != nil {
		change(vm)
	}
	return vm
}

func cannot(vm *vmv1alpha1.VirtualMachine) {
	vm.Status.Conditions[0].Status, vm.Status.Conditions[0].Message = metav1.ConditionFalse, "it is cold"
}

func current(vm *vmv1alpha1.VirtualMachine) {
	vm.Status.Conditions[1].Status = metav1.ConditionTrue
}

// vmController is a client of a cluster whose controller has executed each request by the time the VM is read.
func vmController(t *testing.T, fails map[string]bool, vms ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{vmv1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, object := range vms {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: object.GetName() + "-1", UID: "uid"}}
		vms = append(vms, pod)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(vms...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if err := c.Get(ctx, key, object, opts...); err != nil {
				return err
			}
			if vm, is := object.(*vmv1alpha1.VirtualMachine); is {
				return carryOut(ctx, c, vm, fails[vm.Name])
			}
			return nil
		},
	}).Build()
}

func carryOut(ctx context.Context, c client.Client, vm *vmv1alpha1.VirtualMachine, fails bool) error {
	pod := &corev1.Pod{}
	deleted := client.IgnoreNotFound(c.Get(ctx, client.ObjectKey{Namespace: vm.Namespace, Name: vm.Name + "-1"}, pod)) == nil && pod.Name == ""
	switch {
	case vm.Status.ActivePodName != vm.Name+"-1":
		return nil
	case deleted:
		meta.SetStatusCondition(&vm.Status.Conditions, metav1.Condition{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Running"})
	case vm.Annotations[vmv1alpha1.AnnotationMigrate] == "":
		return nil
	default:
		vm.Status.Migration = recorded(vmv1alpha1.MigrationSucceeded, "")
		vm.Status.Migration.SourcePodName = vm.Name + "-1"
		delete(vm.Annotations, vmv1alpha1.AnnotationMigrate)
	}
	if fails {
		vm.Status.Migration.Phase, vm.Status.Migration.Reason = vmv1alpha1.MigrationFailed, "Unschedulable"
	} else {
		vm.Status.ActivePodName = vm.Name + "-2"
		current(vm)
	}
	return c.Update(ctx, vm)
}

// TestRollout checks which VMs get a new hypervisor, how, and what the command prints.
func TestRollout(t *testing.T) {
	for name, c := range map[string]struct {
		given []client.Object
		names []string
		fails map[string]bool
		with  rollout
		out   string // expected output, in this order
		left  string // expected in the error
		moved string // VMs that get a new hypervisor
	}{
		"nothing to do": {given: []client.Object{old("a", current)}, out: "All hypervisors are current."},
		"one after the other": {given: []client.Object{old("a", nil), old("b", current), old("c", nil)},
			out: "1 of 2: a: migrated from host-1 to host-2|2 of 2: c: migrated from host-1 to host-2", moved: "a c"},
		"by name":     {given: []client.Object{old("a", nil), old("b", nil)}, names: []string{"b"}, out: "1 of 1: b: migrated", moved: "b"},
		"no such one": {given: []client.Object{old("a", nil)}, names: []string{"a", "z"}, left: "virtual machine z not found"},
		"by label":    {given: []client.Object{old("a", nil), old("b", nil)}, with: rollout{selector: "tier=a"}, out: "1 of 1: a: migrated", moved: "a"},
		"one cannot": {given: []client.Object{old("a", cannot), old("b", nil)},
			out: "1 of 2: a cannot be migrated live: it is cold; set --restart|2 of 2: b: migrated", left: "1 of 2 virtual machines keep their hypervisors: a", moved: "b"},
		"one is restarted": {given: []client.Object{old("a", cannot)}, with: rollout{restart: true}, out: "1 of 1: a: restarting: Running", moved: "a"},
		"one fails": {given: []client.Object{old("a", nil), old("b", nil)}, fails: map[string]bool{"a": true},
			out: "1 of 2: virtual machine a stays on host host-1: Unschedulable|2 of 2: b: migrated", left: "keep their hypervisors: a", moved: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			r := c.with
			r.client, r.namespace, r.out, r.wait, r.timeout = vmController(t, c.fails, c.given...), "shop", &out, true, time.Minute
			r.orders = annotating{r.client}
			err := r.run(t.Context(), c.names)
			if (err != nil) != (c.left != "") || err != nil && !strings.Contains(err.Error(), c.left) {
				t.Errorf("error %v, want %q", err, c.left)
			}
			rest := out.String()
			for texts := range strings.SplitSeq(c.out, "|") {
				_, after, found := strings.Cut(rest, texts)
				if rest = after; !found {
					t.Fatalf("%q is missing or out of order:\n%s", texts, out.String())
				}
			}
			vms := &vmv1alpha1.VirtualMachineList{}
			if err := r.client.List(t.Context(), vms); err != nil {
				t.Fatal(err)
			}
			var moved []string
			for _, vm := range vms.Items {
				if vm.Status.ActivePodName == vm.Name+"-2" {
					moved = append(moved, vm.Name)
				}
			}
			if got := strings.Join(moved, " "); got != c.moved {
				t.Errorf("%q have another hypervisor, want %q", got, c.moved)
			}
		})
	}
}

// TestRollout_ContinuesAfterInterrupt checks that no migration starts after Ctrl-C, and that the next run continues with the
// remaining VMs.
func TestRollout_ContinuesAfterInterrupt(t *testing.T) {
	var out strings.Builder
	c := vmController(t, nil, old("a", nil), old("b", nil))
	ctx, cancel := context.WithCancel(t.Context())
	r := &rollout{client: c, orders: annotating{c}, namespace: "shop", wait: true, out: stopper{&out, cancel}}
	if err := r.run(ctx, nil); err == nil || !strings.Contains(err.Error(), "paused at shop/a, 1 of 2") {
		t.Fatalf("error %v\n%s", err, out.String())
	}
	r.out = &out
	if err := r.run(t.Context(), nil); err != nil || !strings.Contains(out.String(), "1 of 1: b: migrated") {
		t.Errorf("error %v\n%s", err, out.String())
	}
}

// stopper cancels a context on the first line of output.
type stopper struct {
	*strings.Builder
	end func()
}

func (s stopper) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "migrated") {
		s.end()
	}
	return s.Builder.Write(line)
}

// TestRollout_WideList checks the migration columns of the wide list.
func TestRollout_WideList(t *testing.T) {
	moved := old("b", cannot)
	moved.Status.Conditions[0].Reason = "Cold"
	moved.Status.Migration = recorded(vmv1alpha1.MigrationSucceeded, "")
	failed := old("c", nil)
	failed.Status.Migration = recorded(vmv1alpha1.MigrationFailed, "Unschedulable")
	failed.Status.Migration.Downtime = nil
	var out strings.Builder
	c := vmController(t, nil, old("a", nil), moved, failed)
	vms, err := listVMs(t.Context(), c, "shop")
	if err != nil {
		t.Fatal(err)
	}
	wide := output.Format{}
	wide.Add(&cobra.Command{}, output.Tables)
	if err := errors.Join(wide.Set(output.Wide), table(vms, false, time.Unix(1e9+64, 0)).Print(&out, wide, "none")); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, texts := range []string{"POD MIGRATABLE LAST MIGRATION", "a-1 yes -", "b-1 no: Cold from host-1 60s ago, paused for 120ms", "c-1 yes failed (Unschedulable) 60s ago"} {
		if got := strings.Join(strings.Fields(lines[i]), " "); !strings.HasSuffix(got, texts) {
			t.Errorf("%q does not end with %q", got, texts)
		}
	}
}
