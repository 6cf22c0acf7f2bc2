package fake_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var class, secret = fixture.MachineClass(), fixture.Secret()

func create(t *testing.T, d driver.Driver, machine *v1alpha1.Machine) (*driver.CreateMachineResponse, error) {
	t.Helper()
	return d.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
}

func remove(t *testing.T, d driver.Driver, machine *v1alpha1.Machine) error {
	t.Helper()
	_, err := d.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
	return err
}

func find(t *testing.T, d driver.Driver, machine *v1alpha1.Machine) (*driver.GetMachineStatusResponse, error) {
	t.Helper()
	return d.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: secret})
}

func wantCode(t *testing.T, want codes.Code, err error) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got code %v, want %v: %v", got, want, err)
	}
}

func TestDriver_ReturnsScriptedResults(t *testing.T) {
	d, machine := fake.New(fake.Config{}), fixture.Machine()
	d.Fail(fake.CreateMachine, codes.ResourceExhausted, codes.OK, codes.Internal)
	for _, want := range []codes.Code{codes.ResourceExhausted, codes.OK, codes.Internal, codes.OK} {
		_, err := create(t, d, machine)
		wantCode(t, want, err)
	}
	d.FailAfter(fake.DeleteMachine, codes.DeadlineExceeded)
	wantCode(t, codes.DeadlineExceeded, remove(t, d, machine))
	if vms := d.VMs(); len(vms) > 0 {
		t.Errorf("after a deletion whose response was lost, VMs are %v; want none", vms)
	}
}

func TestCreate_UninitializedHasResponse(t *testing.T) {
	d, machine := fake.New(fake.Config{}), fixture.Machine()
	made, err := create(t, d, machine)
	wantCode(t, codes.OK, err)
	d.Fail(fake.GetMachineStatus, codes.Uninitialized)
	found, err := find(t, d, machine)
	wantCode(t, codes.Uninitialized, err)
	if found == nil || found.ProviderID != made.ProviderID {
		t.Errorf("got response %+v", found)
	}
}

func TestInitialize(t *testing.T) {
	d, machine := fake.New(fake.Config{}), fixture.Machine()
	initialize := func() error {
		_, err := d.InitializeMachine(t.Context(), &driver.InitializeMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
		return err
	}
	wantCode(t, codes.Unimplemented, initialize())
	d.Configure(func(config *fake.Config) { config.RequireInitialize = true })
	wantCode(t, codes.NotFound, initialize())
	_, err := create(t, d, machine)
	wantCode(t, codes.OK, err)
	_, err = find(t, d, machine)
	wantCode(t, codes.Uninitialized, err)
	wantCode(t, codes.OK, initialize())
	_, err = find(t, d, machine)
	wantCode(t, codes.OK, err)
}

func TestConfig(t *testing.T) {
	address := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}
	d := fake.New(fake.Config{
		NodeName:   func(machine *v1alpha1.Machine) string { return "node-" + machine.Name },
		ProviderID: func(_ *v1alpha1.Machine, number int) string { return fmt.Sprint("test:///vm-", number) },
		Addresses:  []corev1.NodeAddress{address}, LastKnownState: "a note", IgnoreDeletes: true, MatchSpec: true,
	})
	machine := fixture.Machine()
	got, err := create(t, d, machine)
	wantCode(t, codes.OK, err)
	want := &driver.CreateMachineResponse{
		ProviderID: "test:///vm-1", NodeName: "node-" + machine.Name, Addresses: []corev1.NodeAddress{address}, LastKnownState: "a note",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
	wantCode(t, codes.OK, remove(t, d, machine))
	_, err = find(t, d, machine)
	wantCode(t, codes.OK, err) // deletions are ignored
	edited := class.DeepCopy()
	edited.ProviderSpec.Raw = []byte(`{"pool":"other"}`)
	_, err = d.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: machine, MachineClass: edited, Secret: secret})
	wantCode(t, codes.NotFound, err)
}

func TestDriver_AddsAndRemovesVMs(t *testing.T) {
	d, machine := fake.New(fake.Config{}), fixture.Machine()
	vm := d.Add(fake.VM{Namespace: machine.Namespace, Machine: machine.Name, Class: class.Namespace + "/" + class.Name, Initialized: true})
	found, err := find(t, d, machine)
	wantCode(t, codes.OK, err)
	if found.ProviderID != vm.ProviderID || found.NodeName != machine.Name {
		t.Errorf("added %+v, found %+v", vm, found)
	}
	d.Remove(vm.ProviderID)
	_, err = find(t, d, machine)
	wantCode(t, codes.NotFound, err)
}

func TestBlock(t *testing.T) {
	d, machine := fake.New(fake.Config{}), fixture.Machine()
	block := d.Block(fake.CreateMachine)
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 2)
	call := func() {
		_, err := d.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
		results <- err
	}
	go call()
	if got := <-block.Entered(); got != machine.Name {
		t.Errorf("call for machine %q is waiting", got)
	}
	cancel()
	wantCode(t, codes.Canceled, <-results)

	ctx = t.Context()
	go call()
	<-block.Entered()
	if vms := d.VMs(); len(vms) > 0 {
		t.Errorf("a waiting call created %v", vms)
	}
	block.Release()
	wantCode(t, codes.OK, <-results)
	_, err := create(t, d, machine) // no longer waits
	wantCode(t, codes.OK, err)
}

func TestDriver_ReturnsErrorsOfTest(t *testing.T) {
	d, machine, no := fake.New(fake.Config{}), fixture.Machine(), errors.New("no")
	d.FailWith(fake.CreateMachine, no, no)
	if _, err := create(t, d, machine); !errors.Is(err, no) {
		t.Errorf("got error %v", err)
	}
	d.ForgetFailures()
	_, err := create(t, d, machine)
	wantCode(t, codes.OK, err)
}

func TestIgnoreContext(t *testing.T) {
	d, machine := fake.New(fake.Config{IgnoreContext: true}), fixture.Machine()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
	wantCode(t, codes.OK, err)
}

func TestHooks(t *testing.T) {
	d, machine := fake.New(fake.Config{}), fixture.Machine()
	d.OnCreate(fake.Always[driver.CreateMachineRequest, driver.CreateMachineResponse](nil, nil))
	if resp, err := create(t, d, machine); resp != nil || err != nil || len(d.VMs()) > 0 {
		t.Errorf("with a hook that does nothing: %v, %v, VMs %v", resp, err, d.VMs())
	}
	d.OnCreate(nil)
	_, err := create(t, d, machine)
	wantCode(t, codes.OK, err)

	no := errors.New("no")
	d.OnList(func(_ context.Context, _ *driver.ListMachinesRequest, do func() (*driver.ListMachinesResponse, error)) (*driver.ListMachinesResponse, error) {
		if resp, err := do(); err != nil || len(resp.MachineList) != 1 {
			t.Errorf("got list %v, %v", resp, err)
		}
		return nil, no
	})
	if _, err := d.ListMachines(t.Context(), &driver.ListMachinesRequest{MachineClass: class, Secret: secret}); !errors.Is(err, no) {
		t.Errorf("got error %v", err)
	}
}

func TestCalls(t *testing.T) {
	d, machine := fake.New(fake.Config{}), fixture.Machine()
	d.Fail(fake.CreateMachine, codes.Internal)
	_, failed := create(t, d, machine)
	_, _ = create(t, d, machine)
	_, _ = d.ListMachines(t.Context(), &driver.ListMachinesRequest{MachineClass: class, Secret: secret})
	_ = remove(t, d, machine)
	want := []fake.Call{
		{Method: fake.CreateMachine, Machine: machine.Name, Returned: true, Err: failed},
		{Method: fake.CreateMachine, Machine: machine.Name, Returned: true},
		{Method: fake.ListMachines, Returned: true},
		{Method: fake.DeleteMachine, Machine: machine.Name, Returned: true},
	}
	ignore := cmpopts.IgnoreFields(fake.Call{}, "Began", "Request")
	if diff := cmp.Diff(want, d.Calls(), ignore, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
	if got := d.Calls(fake.DeleteMachine); len(got) != 1 {
		t.Errorf("deletions: %v", got)
	}
	if got := fake.Requests[*driver.CreateMachineRequest](d); len(got) != 2 || got[0].Machine != machine {
		t.Errorf("requests to create: %v", got)
	}
	d.ForgetCalls()
	if got := d.Calls(); len(got) > 0 {
		t.Errorf("calls are still recorded: %v", got)
	}
}

func TestCalls_Overlapping(t *testing.T) {
	d, machine := fake.New(fake.Config{}), fixture.Machine()
	block := d.Block(fake.CreateMachine)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = d.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
	}()
	<-block.Entered()
	d.ForgetCalls()
	_, _ = find(t, d, machine)
	_, _ = find(t, d, fixture.Named("another", fixture.Machine()))
	block.Release()
	<-done
	_ = remove(t, d, machine)
	var overlaps []string
	for _, call := range d.Calls() {
		if call.Overlaps {
			overlaps = append(overlaps, string(call.Method)+" "+call.Machine)
		}
	}
	if diff := cmp.Diff([]string{"GetMachineStatus " + machine.Name}, overlaps); diff != "" {
		t.Errorf("calls that overlap (-want +got):\n%s", diff)
	}
}

// TestDriver_SeparateAPIGroups: with SeparateAPIGroups, machines with the same name in two API groups have two VMs.
func TestDriver_SeparateAPIGroups(t *testing.T) {
	for separated, want := range map[bool]int{false: 1, true: 2} {
		d := fake.New(fake.Config{SeparateAPIGroups: separated})
		other := class.DeepCopy()
		other.Annotations = map[string]string{driver.AnnotationAPIGroup: driver.APIGroupClusterAPI}
		for _, of := range []*v1alpha1.MachineClass{class, other} {
			_, err := d.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: fixture.Machine(), MachineClass: of, Secret: secret})
			listed, listErr := d.ListMachines(t.Context(), &driver.ListMachinesRequest{MachineClass: of, Secret: secret})
			if err != nil || listErr != nil || len(listed.MachineList) != 1 {
				t.Errorf("separated %t: %v, %v, listed %v", separated, err, listErr, listed)
			}
		}
		if got := len(d.VMs()); got != want || driver.SeparatesAPIGroups(d) != separated {
			t.Errorf("separated %t: %d VMs, want %d", separated, got, want)
		}
	}
}
