package vm

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/output"
)

// running returns a VM that can be migrated.
func running(change func(*vmv1alpha1.VirtualMachine)) *vmv1alpha1.VirtualMachine {
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	vm.Status.ActivePodName, vm.Status.ActivePodUID, vm.Status.NodeName = "web-1", "uid", "host-1"
	vm.Status.Conditions = []metav1.Condition{{Type: vmv1alpha1.ConditionLiveMigratable, Status: metav1.ConditionTrue, Reason: "Migratable"}}
	if change != nil {
		change(vm)
	}
	return vm
}

func ordered(value string) func(*vmv1alpha1.VirtualMachine) {
	return func(vm *vmv1alpha1.VirtualMachine) {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, vmv1alpha1.AnnotationMigrate, value)
	}
}

func recorded(phase vmv1alpha1.MigrationPhase, reason string) *vmv1alpha1.VirtualMachineMigration {
	end := metav1.NewTime(time.Unix(1e9+4, 0))
	return &vmv1alpha1.VirtualMachineMigration{
		Phase: phase, Reason: reason, Message: "a message", SourcePodName: "web-1", SourceNodeName: "host-1", TargetPodName: "web-2", TargetNodeName: "host-2",
		DoneBytes: 64 << 20, TotalBytes: 256 << 20, StartTime: metav1.NewTime(time.Unix(1e9, 0)), EndTime: &end,
		Downtime: &metav1.Duration{Duration: 120 * time.Millisecond},
	}
}

// annotating sets the annotation as the VM controller's API does.
type annotating struct{ client.Client }

func (a annotating) order(ctx context.Context, vm client.ObjectKey, node string) error {
	return a.write(ctx, vm, func(has *vmv1alpha1.VirtualMachine) {
		ordered(strings.TrimSuffix(has.Status.ActivePodName+"/"+node, "/"))(has)
	})
}

func (a annotating) cancel(ctx context.Context, vm client.ObjectKey) error {
	return a.write(ctx, vm, func(has *vmv1alpha1.VirtualMachine) { delete(has.Annotations, vmv1alpha1.AnnotationMigrate) })
}

func (a annotating) write(ctx context.Context, key client.ObjectKey, change func(*vmv1alpha1.VirtualMachine)) error {
	vm := &vmv1alpha1.VirtualMachine{}
	if err := a.Get(ctx, key, vm); err != nil {
		return err
	}
	change(vm)
	return a.Update(ctx, vm)
}

// TestMigrate_Request checks what the command writes, and which requests it rejects.
func TestMigrate_Request(t *testing.T) {
	cases := map[string]struct {
		given   func(*vmv1alpha1.VirtualMachine)
		command migrate
		want    string // the expected annotation
		refused string
	}{
		"anywhere":               {nil, migrate{}, "web-1", ""},
		"to a host":              {nil, migrate{to: "host-2"}, "web-1/host-2", ""},
		"ordered already":        {ordered("web-1/host-2"), migrate{to: "host-2"}, "web-1/host-2", ""},
		"an order of before":     {ordered("web-0"), migrate{}, "web-1", ""},
		"cancelled":              {ordered("web-1/host-2"), migrate{cancel: true}, "", ""},
		"nothing to cancel":      {ordered("web-0"), migrate{cancel: true}, "web-0", "no migration"},
		"to its own host":        {nil, migrate{to: "host-1"}, "", "already on host host-1"},
		"it does not run":        {func(vm *vmv1alpha1.VirtualMachine) { vm.Status.ActivePodUID = "" }, migrate{}, "", "is not running"},
		"nothing is known of it": {func(vm *vmv1alpha1.VirtualMachine) { vm.Status.Conditions = nil }, migrate{}, "", "cannot be migrated live"},
		"it cannot": {func(vm *vmv1alpha1.VirtualMachine) {
			vm.Status.Conditions[0].Status, vm.Status.Conditions[0].Message = metav1.ConditionFalse, "it is cold"
		}, migrate{}, "", "it is cold"},
	}
	scheme := runtime.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := c.command
			m.client, m.key = fake.NewClientBuilder().WithScheme(scheme).WithObjects(running(c.given)).Build(), client.ObjectKey{Namespace: "shop", Name: "web"}
			m.orders = annotating{m.client}
			err := m.run(t.Context())
			if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("error %v, want %q", err, c.refused)
			}
			vm, err := m.get(t.Context())
			if err != nil || vm.Annotations[vmv1alpha1.AnnotationMigrate] != c.want {
				t.Errorf("ordered %q (%v), want %q", vm.Annotations[vmv1alpha1.AnnotationMigrate], err, c.want)
			}
		})
	}
}

// TestMigrate_Progress checks the output of the command, and when it exits.
func TestMigrate_Progress(t *testing.T) {
	with := func(phase vmv1alpha1.MigrationPhase, reason, order string) func(*vmv1alpha1.VirtualMachine) {
		return func(vm *vmv1alpha1.VirtualMachine) {
			vm.Status.Migration = recorded(phase, reason)
			ordered(order)(vm)
		}
	}
	moved := func(vm *vmv1alpha1.VirtualMachine) {
		with(vmv1alpha1.MigrationSucceeded, "", "web-1")(vm)
		vm.Status.ActivePodName = "web-2"
	}
	convergence := func(is vmv1alpha1.MigrationConvergence) func(*vmv1alpha1.VirtualMachine) {
		return func(vm *vmv1alpha1.VirtualMachine) {
			with(vmv1alpha1.MigrationCopying, "", "web-1")(vm)
			vm.Status.Migration.Convergence = is
		}
	}
	cases := map[string]struct {
		given   func(*vmv1alpha1.VirtualMachine)
		cancel  bool
		line    string
		done    bool
		failure string
	}{
		"ordered":         {ordered("web-1"), false, "web: requested", false, ""},
		"refused":         {nil, false, "", true, "refused"},
		"copying":         {with(vmv1alpha1.MigrationCopying, "", "web-1"), false, "web: migrating to host-2, 64 of 256 MiB copied", false, ""},
		"not converging":  {convergence(vmv1alpha1.MigrationNotConverging), false, "web: migrating to host-2, 64 of 256 MiB copied; the guest writes memory faster than it is copied", false, ""},
		"forced":          {convergence(vmv1alpha1.MigrationForced), false, "web: migrating to host-2, 64 of 256 MiB copied; the guest will be paused for the rest", false, ""},
		"another try":     {with(vmv1alpha1.MigrationFailed, "CopyFailed", "web-1"), false, "web: retrying after: CopyFailed: a message", false, ""},
		"failed":          {with(vmv1alpha1.MigrationFailed, "Unschedulable", ""), false, "", true, "stays on host host-1: Unschedulable: a message"},
		"cancelled":       {with(vmv1alpha1.MigrationFailed, "Cancelled", ""), true, "web: the migration is canceled", true, ""},
		"being cancelled": {with(vmv1alpha1.MigrationCopying, "", ""), true, "web: migrating to host-2, 64 of 256 MiB copied", false, ""},
		"migrated":        {moved, false, "web: migrated from host-1 to host-2 in 4s; the guest was paused for 120ms", true, ""},
		"cancelled late":  {moved, true, "web: migrated from host-1 to host-2 in 4s; the guest was paused for 120ms", true, "too late"},
		"restarted":       {func(vm *vmv1alpha1.VirtualMachine) { vm.Status.ActivePodName = "web-3" }, false, "", true, "restarted"},
		"an earlier one": {func(vm *vmv1alpha1.VirtualMachine) {
			with("Failed", "CopyFailed", "web-1")(vm)
			vm.Status.Migration.SourcePodName = "web-0"
		}, false, "web: requested", false, ""},
		"not yet reported": {func(vm *vmv1alpha1.VirtualMachine) { moved(vm); vm.Status.Migration.EndTime = nil }, false, "web: the guest continues on the other host", false, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := &migrate{cancel: c.cancel, pod: "web-1", key: client.ObjectKey{Name: "web"}}
			line, done, err := m.see(running(c.given))
			if line != c.line || done != c.done || (err != nil) != (c.failure != "") || err != nil && !strings.Contains(err.Error(), c.failure) {
				t.Errorf("%q, %t, %v", line, done, err)
			}
		})
	}
}

// TestMigrate_JSONAndTimeout checks the JSON output, and the timeout.
func TestMigrate_JSONAndTimeout(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	over := running(func(vm *vmv1alpha1.VirtualMachine) {
		vm.Status.Migration = recorded(vmv1alpha1.MigrationFailed, "Unschedulable")
	})
	var out, progress strings.Builder
	m := &migrate{pod: "web-1", key: client.ObjectKeyFromObject(over), out: &out, progress: &progress}
	m.format.Add(&cobra.Command{}, output.Objects)
	if err := m.format.Set(output.JSON); err != nil {
		t.Fatal(err)
	}
	m.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(over).Build()
	err := m.follow(t.Context())
	record := &vmv1alpha1.VirtualMachineMigration{}
	if err == nil || json.Unmarshal([]byte(out.String()), record) != nil || record.Reason != "Unschedulable" {
		t.Errorf("error %v, output %s", err, out.String())
	}
	m.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(running(ordered("web-1"))).Build()
	m.timeout = time.Millisecond
	if err := m.follow(t.Context()); err == nil || !strings.Contains(err.Error(), "not complete within") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.follow(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	var usage *args.UsageError
	for _, wrong := range []migrate{{cancel: true, to: "host-2"}, {to: "a/b"}} {
		if err := wrong.check(); !errors.As(err, &usage) {
			t.Errorf("%+v: error %v", wrong, err)
		}
	}
}

func TestMigrate_State(t *testing.T) {
	vm := running(func(vm *vmv1alpha1.VirtualMachine) {
		vm.Status.Migration = recorded(vmv1alpha1.MigrationCopying, "")
		vm.Status.Conditions = append(vm.Status.Conditions, metav1.Condition{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Running"})
	})
	if got := State(vm); got != "Running, migrating to host-2, 64 of 256 MiB copied" {
		t.Error(got)
	}
}

func TestVM_StateRestartRequired(t *testing.T) {
	vm := running(func(vm *vmv1alpha1.VirtualMachine) {
		vm.Status.Conditions = append(vm.Status.Conditions,
			metav1.Condition{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Running"},
			metav1.Condition{Type: vmv1alpha1.ConditionRestartNeeded, Status: metav1.ConditionTrue, Reason: "SpecChanged"})
	})
	if got := State(vm); got != "Running, restart needed" {
		t.Error(got)
	}
}
