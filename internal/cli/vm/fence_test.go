package vm

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
)

// unreachable returns a VM on a host that does not respond.
func unreachable(change func(*vmv1alpha1.VirtualMachine)) *vmv1alpha1.VirtualMachine {
	return running(func(vm *vmv1alpha1.VirtualMachine) {
		vm.Status.VolumeClaimName = "web"
		meta.SetStatusCondition(&vm.Status.Conditions, metav1.Condition{
			Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: vmv1alpha1.ReasonHostUnreachable,
		})
		if change != nil {
			change(vm)
		}
	})
}

// TestFence checks what the command asks and writes, and which requests it rejects. The VM controller decides
// whether to act on the annotation.
func TestFence(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	obeys := func(vm *vmv1alpha1.VirtualMachine) { vm.Status.ActivePodName = "web-2" }
	refuses := func(vm *vmv1alpha1.VirtualMachine) {
		meta.SetStatusCondition(&vm.Status.Conditions, metav1.Condition{
			Type: vmv1alpha1.ConditionFenced, Status: metav1.ConditionFalse, Reason: "HostAnswers", Message: "The hypervisor responds.",
		})
	}
	for name, test := range map[string]struct {
		given      func(*vmv1alpha1.VirtualMachine)
		confirm    string
		in         string
		controller func(*vmv1alpha1.VirtualMachine)
		want       string // the expected annotation
		wantText   string
		refused    string
		dry        string
	}{
		"dry run":           {confirm: "host-1", dry: dryrun.Client, wantText: "virtualmachine.vm.metropolis.monogon.dev/web fenced (dry run)"},
		"confirmed":         {in: "host-1\n", controller: obeys, want: "web-1/host-1", wantText: "both would write to the same disk"},
		"confirmed by flag": {confirm: "host-1", controller: obeys, want: "web-1/host-1", wantText: "now runs in pod web-2"},
		"an ephemeral disk": {given: func(vm *vmv1alpha1.VirtualMachine) { vm.Status.VolumeClaimName = "" }, confirm: "host-1", controller: obeys, want: "web-1/host-1", wantText: "the data is lost"},
		"refused":           {confirm: "host-1", controller: refuses, want: "web-1/host-1", refused: "The hypervisor responds"},
		"another host":      {in: "host-2\n", refused: "not confirmed"},
		"yes":               {in: "yes\n", refused: "not confirmed"},
		"nothing":           {in: "", refused: "not confirmed"},
		"another by flag":   {confirm: "host-2", refused: "not confirmed"},
		"a reachable host": {given: func(vm *vmv1alpha1.VirtualMachine) {
			meta.SetStatusCondition(&vm.Status.Conditions, metav1.Condition{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Running"})
		}, confirm: "host-1", refused: "not known to be unreachable"},
		"nothing is known": {given: func(vm *vmv1alpha1.VirtualMachine) { vm.Status.Conditions = nil }, confirm: "host-1", refused: "not known to be unreachable"},
		"full leases":      {given: func(vm *vmv1alpha1.VirtualMachine) { vm.Status.Lease = &vmv1alpha1.VirtualMachineLease{} }, confirm: "host-1", refused: "automatically"},
		"being deleted": {given: func(vm *vmv1alpha1.VirtualMachine) {
			vm.DeletionTimestamp, vm.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{vmv1alpha1.Finalizer}
		}, confirm: "host-1", refused: "being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			written, out := "", &strings.Builder{}
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(unreachable(test.given)).Build(), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
					written = object.GetAnnotations()[vmv1alpha1.AnnotationFence]
					if err := c.Patch(ctx, object, patch, opts...); err != nil {
						return err
					}
					vm := object.(*vmv1alpha1.VirtualMachine)
					delete(vm.Annotations, vmv1alpha1.AnnotationFence)
					test.controller(vm)
					return c.Update(ctx, vm)
				},
			})
			f := &fence{confirm: test.confirm, in: strings.NewReader(test.in)}
			if test.dry != "" {
				f.dry.Add(&cobra.Command{})
				if err := f.dry.Set(test.dry); err != nil {
					t.Fatal(err)
				}
			}
			f.client, f.key, f.progress = c, client.ObjectKey{Namespace: "shop", Name: "web"}, out
			err := f.run(t.Context())
			if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("error %v, want %q", err, test.refused)
			}
			if written != test.want || !strings.Contains(out.String(), test.wantText) {
				t.Errorf("annotation %q, want %q; output:\n%s", written, test.want, out)
			}
		})
	}
}
