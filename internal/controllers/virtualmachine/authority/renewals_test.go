package authority

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// withLeases gives the VM leases of a duration.
func withLeases(seconds int32) setup {
	return func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.LeaseFullLeases, seconds
		vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, DurationSeconds: seconds, FencingToken: 1}
	}
}

// waiting returns a VM that has no lease yet.
func waiting(name string, seconds int32) *v1alpha1.VirtualMachine {
	return fixture.Named(name, fixture.VirtualMachine(func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.LeaseFullLeases, seconds
	}))
}

// TestRenewals_StartNoMoreThanCapacity checks that only as many VMs get leases as can be renewed, even if the cache does
// not show the leases yet, and that capacity is available again when they are gone.
func TestRenewals_StartNoMoreThanCapacity(t *testing.T) {
	w := newEnv(t, withLeases(60), nil) // it needs 0.05 per second
	w.Registry.Renewals = 1
	reserve := func(vm *v1alpha1.VirtualMachine) bool {
		t.Helper()
		needed, ok, err := w.ReserveRenewals(t.Context(), vm)
		if err != nil {
			t.Fatal(err)
		}
		if vm.Spec.LeaseMode == v1alpha1.LeaseFullLeases && (needed.Capacity != 1 || ok == (needed.Used > 1)) {
			t.Errorf("%s: %+v, reserved: %t", vm.Name, needed, ok)
		}
		return ok
	}
	var others []*v1alpha1.VirtualMachine
	for i := range 4 { // each needs 0.25 per second
		vm := waiting(fmt.Sprintf("other-%d", i), 12)
		if err := w.live.Create(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		others = append(others, vm)
	}
	for i, vm := range others {
		if ok := reserve(vm); ok != (i < 3) {
			t.Errorf("VM %d started: %t", i, ok)
		}
	}
	if !reserve(others[0]) {
		t.Error("a VM cannot repeat its own reservation")
	}
	if err := w.live.Delete(t.Context(), others[1]); err != nil {
		t.Fatal(err)
	}
	if !reserve(others[3]) {
		t.Error("the capacity of a deleted VM is not available")
	}
	w.Clock.(*testingclock.FakePassiveClock).SetTime(now.Add(unseenTimeout))
	if !reserve(waiting("late", 12)) {
		t.Error("reservations that the cache never showed have not expired")
	}
}

// TestRenewals_CurrentVMsMayRestart checks that a VM with a lease starts again even without capacity, unless its leases
// become shorter, and that VMs without leases are not limited.
func TestRenewals_CurrentVMsMayRestart(t *testing.T) {
	for name, tc := range map[string]struct {
		mode    v1alpha1.LeaseMode
		seconds int32
		want    bool
	}{
		"the same leases": {v1alpha1.LeaseFullLeases, 60, true},
		"longer leases":   {v1alpha1.LeaseFullLeases, 120, true},
		"shorter leases":  {v1alpha1.LeaseFullLeases, 59, false},
		"no leases":       {v1alpha1.LeaseStorageLocking, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, withLeases(60), nil)
			w.Registry.Renewals = 0.01
			vm := &v1alpha1.VirtualMachine{}
			if err := w.live.Get(t.Context(), client.ObjectKeyFromObject(fixture.VirtualMachine()), vm); err != nil {
				t.Fatal(err)
			}
			vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = tc.mode, tc.seconds
			if _, ok, err := w.ReserveRenewals(t.Context(), vm); err != nil || ok != tc.want {
				t.Errorf("started: %t, %v; want %t", ok, err, tc.want)
			}
		})
	}
}

// TestRenewals_OfOtherControllersDoNotCount checks that VMs of another controller use no capacity of this one.
func TestRenewals_OfOtherControllersDoNotCount(t *testing.T) {
	w := newEnv(t, withLeases(6), nil)
	w.Registry.Renewals = 0.5
	next := waiting("next", 6)
	if _, ok, err := w.ReserveRenewals(t.Context(), next); ok || err != nil {
		t.Errorf("beyond the capacity: %t, %v", ok, err)
	}
	w.Registry.Foreign = func(vm *v1alpha1.VirtualMachine) bool { return vm.Name == "vm" }
	if needed, ok, err := w.ReserveRenewals(t.Context(), next); !ok || err != nil || !needed.Low() || !needed.Added {
		t.Errorf("next to a VM of another controller: %+v, %t, %v", needed, ok, err)
	}
}

// TestRenewalLimit checks which Pods may renew a lease, and how often.
func TestRenewalLimit(t *testing.T) {
	migrates := migrating(v1alpha1.MigrationCopying)
	for name, tc := range map[string]struct {
		given setup
		pod   string
		want  float64
	}{
		"the holder":             {withLeases(60), "vm-1", 0.1},
		"with short leases":      {withLeases(6), "vm-1", 1},
		"another Pod":            {withLeases(60), "vm-2", 0},
		"no Pod":                 {withLeases(60), "", 0},
		"a migration's target":   {all(withLeases(60), migrates), "vm-2", 0.1},
		"a VM without leases":    {nil, "vm-1", 0},
		"a target without lease": {migrates, "vm-2", 0},
	} {
		w := newEnv(t, tc.given, nil)
		if got := w.RenewalLimit(t.Context(), KeyOf(process("vm-1", 5)), tc.pod); got != tc.want {
			t.Errorf("%s: %v per second, want %v", name, got, tc.want)
		}
	}
	if got := newEnv(t, withLeases(60), nil).RenewalLimit(t.Context(), client.ObjectKey{Namespace: "none", Name: "none"}, "vm-1"); got != 0 {
		t.Errorf("a VM that does not exist: %v per second", got)
	}
}

// TestRunLease_RenewalsHaveTheirOwnClient checks that each renewal reads the VM from the API server, with the client of
// renewals, and that nothing else uses that client.
func TestRunLease_RenewalsHaveTheirOwnClient(t *testing.T) {
	for name, tc := range map[string]struct {
		given setup
		pod   string
		live  bool
		call  func(*env) error
		want  int
	}{
		"a renewal":              {given: withLeases(60), pod: "vm-1", live: true, want: 1},
		"an update of a stream":  {given: withLeases(60), pod: "vm-1"},
		"another Pod":            {given: withLeases(60), pod: "vm-2", live: true},
		"a VM without leases":    {pod: "vm-1", live: true},
		"a report of the holder": {given: withLeases(60), call: func(w *env) error { return w.Confirm(t.Context(), process("vm-1", 6), nil) }},
		"a switchover":           {given: withLeases(60), call: func(w *env) error { return w.SwitchOver(t.Context(), process("vm-1", 6), process("vm-1", 5)) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, tc.given, nil)
			reads := 0
			w.RenewalClient = interceptor.NewClient(w.live, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
					reads++
					return c.Get(ctx, key, object, opts...)
				},
			})
			if tc.call != nil {
				_ = tc.call(w) // whether it succeeds does not matter
			} else if _, err := w.Lease(t.Context(), process(tc.pod, 5), tc.live); err != nil {
				t.Fatal(err)
			}
			if reads != tc.want {
				t.Errorf("%d reads with the client of renewals, want %d", reads, tc.want)
			}
		})
	}
}

// TestRenewalRequests checks that the client of renewals has capacity for all that hypervisors may request.
func TestRenewalRequests(t *testing.T) {
	w := newEnv(t, withLeases(6), nil)
	perSecond, burst := RenewalRequests(0.5) // the VM uses all of it
	if limit := w.RenewalLimit(t.Context(), KeyOf(process("vm-1", 5)), "vm-1"); float64(perSecond) < limit || burst < 1 {
		t.Errorf("%v requests per second with a burst of %d, but hypervisors may send %v", perSecond, burst, limit)
	}
}

// TestRunLease_RenewalsDoNotWait checks that a renewal, even of a suspected lease, waits neither for another call for the
// VM nor for the other clients.
func TestRunLease_RenewalsDoNotWait(t *testing.T) {
	w := newEnv(t, all(withLeases(60), leased(v1alpha1.LeaseSuspected)), nil)
	release, err := w.locks.acquire(t.Context(), KeyOf(process("vm-1", 5)))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	w.RenewalClient = w.live
	w.APIReader = nil
	w.fail = func() error { return errors.New("the client of everything else was used") }
	update, err := w.Lease(t.Context(), process("vm-1", 5), true)
	if err != nil || update.GetValidFor() == nil {
		t.Errorf("%v, %v", update, err)
	}
}
