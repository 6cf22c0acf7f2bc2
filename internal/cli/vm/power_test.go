package vm

import (
	"context"
	"io"
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
)

// readyAs sets the condition Ready.
func readyAs(vm *vmv1alpha1.VirtualMachine, status metav1.ConditionStatus, reason string) {
	meta.SetStatusCondition(&vm.Status.Conditions, metav1.Condition{Type: vmv1alpha1.ConditionReady, Status: status, Reason: reason})
}

// stoppedFor returns a change that stops a VM.
func stoppedFor(strategy vmv1alpha1.RunStrategy, reason string) func(*vmv1alpha1.VirtualMachine) {
	return func(vm *vmv1alpha1.VirtualMachine) {
		vm.Spec.RunStrategy, vm.Status.Phase = strategy, vmv1alpha1.PhaseStopped
		readyAs(vm, metav1.ConditionFalse, reason)
	}
}

// TestPower checks what the commands write, and what they wait for.
func TestPower(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	halts := stoppedFor(vmv1alpha1.RunHalted, vmv1alpha1.ReasonHalted)
	runs := func(vm *vmv1alpha1.VirtualMachine) {
		vm.Status.ActivePodName = "web-2"
		readyAs(vm, metav1.ConditionTrue, "Running")
	}
	migrates := func(vm *vmv1alpha1.VirtualMachine) {
		vm.Status.Migration = &vmv1alpha1.VirtualMachineMigration{Phase: vmv1alpha1.MigrationCopying}
	}
	for name, test := range map[string]struct {
		command      func() (*power, *cobra.Command)
		flags        []string
		given        func(*vmv1alpha1.VirtualMachine)
		controller   func(*vmv1alpha1.VirtualMachine)
		wantStrategy vmv1alpha1.RunStrategy
		wantRestart  string
		wantText     string
		refused      string
	}{
		"stop":                          {command: newStop, controller: halts, wantStrategy: vmv1alpha1.RunHalted, wantText: "virtualmachine.vm.metropolis.monogon.dev/web stopped\n"},
		"stop without waiting":          {command: newStop, flags: []string{"--wait=false"}, wantStrategy: vmv1alpha1.RunHalted, wantText: "web stop requested\n"},
		"stop in a dry run":             {command: newStop, flags: []string{"--dry-run"}, wantText: "web stop requested (dry run)\n"},
		"stop, too slow":                {command: newStop, flags: []string{"--timeout=1ms"}, wantStrategy: vmv1alpha1.RunHalted, refused: "was not stopped within"},
		"stop one that is stopped":      {command: newStop, given: halts, wantStrategy: vmv1alpha1.RunHalted, wantText: "web stopped\n"},
		"start a halted one":            {command: newStart, given: halts, controller: runs, wantStrategy: vmv1alpha1.RunAlways, wantText: "web started\n"},
		"start with a strategy":         {command: newStart, flags: []string{"--run-strategy=Once"}, given: halts, controller: runs, wantStrategy: vmv1alpha1.RunOnce, wantText: "web started\n"},
		"start with a bad strategy":     {command: newStart, flags: []string{"--run-strategy=Halted"}, given: halts, refused: "Always, RerunOnFailure or Once", wantStrategy: vmv1alpha1.RunHalted},
		"start one that has completed":  {command: newStart, given: stoppedFor(vmv1alpha1.RunOnce, vmv1alpha1.ReasonCompleted), controller: runs, wantStrategy: vmv1alpha1.RunOnce, wantRestart: "web-1", wantText: "web started\n"},
		"start one that runs":           {command: newStart, given: runs, wantText: "web started\n"},
		"restart":                       {command: newRestart, controller: runs, wantRestart: "web-1", wantText: "web restarted\n"},
		"restart one that is halted":    {command: newRestart, given: halts, wantStrategy: vmv1alpha1.RunHalted, refused: `"millwright vm start" starts it`},
		"restart one that is migrating": {command: newRestart, given: migrates, refused: "is being migrated"},
		"restart one without a pod":     {command: newRestart, given: func(vm *vmv1alpha1.VirtualMachine) { vm.Status.ActivePodUID = "" }, refused: "is not running"},
		"stop one that is being deleted": {command: newStop, given: func(vm *vmv1alpha1.VirtualMachine) {
			vm.DeletionTimestamp, vm.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{vmv1alpha1.Finalizer}
		}, refused: "being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(running(test.given)).Build(), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
					if err := c.Patch(ctx, object, patch, opts...); err != nil || test.controller == nil {
						return err
					}
					vm := object.(*vmv1alpha1.VirtualMachine)
					test.controller(vm)
					vm.Spec.RunStrategy = test.wantStrategy
					return c.Update(ctx, vm)
				},
			})
			p, cmd := test.command()
			if err := cmd.ParseFlags(test.flags); err != nil {
				t.Fatal(err)
			}
			out := &strings.Builder{}
			p.client, p.key, p.out, p.progress = c, client.ObjectKey{Namespace: "shop", Name: "web"}, out, io.Discard
			err := p.run(t.Context())
			if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("error %v, want %q", err, test.refused)
			}
			if !strings.HasSuffix(out.String(), test.wantText) {
				t.Errorf("output %q, want %q", out, test.wantText)
			}
			vm := &vmv1alpha1.VirtualMachine{}
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, vm); err != nil {
				t.Fatal(err)
			}
			if vm.Spec.RunStrategy != test.wantStrategy || vm.Annotations[vmv1alpha1.AnnotationRestart] != test.wantRestart {
				t.Errorf("runStrategy %q, restart %q", vm.Spec.RunStrategy, vm.Annotations[vmv1alpha1.AnnotationRestart])
			}
		})
	}
}
