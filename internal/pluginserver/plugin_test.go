package pluginserver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/driver/status"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestConformance checks that a driver that follows the contract also does so in another process.
func TestConformance(t *testing.T) {
	class := func(name, spec string) *v1alpha1.MachineClass {
		made := fixture.MachineClass()
		made.Name, made.ProviderSpec.Raw = name, []byte(spec)
		return made
	}
	conformance.Run(t, func(t *testing.T) conformance.Provider {
		return conformance.Provider{
			Driver: connect(t, fake.New(fake.Config{RequireInitialize: true})), Class: class("class", `{}`), Uninitialized: true,
			Variants: conformance.Variants{Changed: class("changed", `{"zone":"b"}`), OtherCluster: class("other", `{}`)},
		}
	})
}

// full implements every method with all fields and records the request.
type full struct {
	driver.Driver
	mu   sync.Mutex
	last any
	err  error
}

func (f *full) took(request any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = request
	return f.err
}

var addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "ä"}}

func (f *full) CreateMachine(_ context.Context, r *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return &driver.CreateMachineResponse{ProviderID: "id", NodeName: "node", LastKnownState: "state", Addresses: addresses, FailureDomain: "z"}, f.took(r)
}

func (f *full) DeleteMachine(_ context.Context, r *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return &driver.DeleteMachineResponse{LastKnownState: "state"}, f.took(r)
}

func (f *full) GetMachineStatus(_ context.Context, r *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return &driver.GetMachineStatusResponse{ProviderID: "id", NodeName: "node", Addresses: addresses, FailureDomain: "z"}, f.took(r)
}

func (f *full) ListMachines(_ context.Context, r *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return &driver.ListMachinesResponse{MachineList: map[string]string{"id": "one", "id2": "two"}}, f.took(r)
}

func (f *full) InitializeMachine(_ context.Context, r *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return &driver.InitializeMachineResponse{ProviderID: "id", NodeName: "node", Addresses: addresses}, f.took(r)
}

func (f *full) GetVolumeIDs(_ context.Context, r *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return &driver.GetVolumeIDsResponse{VolumeIDs: []string{"b", "a"}}, f.took(r)
}

func (f *full) LocateMachine(_ context.Context, r *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	return &driver.LocateMachineResponse{Location: "here"}, f.took(r)
}

func (f *full) UpdateMachine(_ context.Context, r *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	return &driver.UpdateMachineResponse{Updates: []string{"tags", "cpus"}, AtNextStart: []string{"cpus"}, Replacements: []string{"zone"}}, f.took(r)
}

func (f *full) ListFailureDomains(_ context.Context, r *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	return &driver.ListFailureDomainsResponse{FailureDomains: []driver.FailureDomain{{Name: "a", Attributes: map[string]string{"k": "v"}}, {Name: "b"}}}, f.took(r)
}

func (f *full) PlaceMachine(_ context.Context, r *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	return &driver.PlaceMachineResponse{ProviderSpec: runtime.RawExtension{Raw: []byte(`{"zone":"a"}`)}}, f.took(r)
}

func (f *full) GenerateMachineClassForMigration(_ context.Context, r *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	r.MachineClass.Provider = "fake"
	r.MachineClass.ProviderSpec.Raw = []byte(`{"size":"xl"}`)
	return &driver.GenerateMachineClassForMigrationResponse{}, f.took(r)
}

func (f *full) SeparatesAPIGroups() bool { return true }

func (f *full) MigratedKinds() []string { return []string{"AWSMachineClass"} }

// same checks that the remote response equals that of the driver itself, and that the driver received the
// request of the manager.
func same[Request, Response any](t *testing.T, f *full, request *Request, remote, local func(context.Context, *Request) (*Response, error)) {
	t.Helper()
	want, wantErr := local(t.Context(), request)
	got, err := remote(t.Context(), request)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the response to %T (-want +got):\n%s", request, diff)
	}
	if status.Code(err) != status.Code(wantErr) {
		t.Errorf("%T: error is %v, want %v", request, err, wantErr)
	}
	if diff := cmp.Diff(any(request), f.last); diff != "" {
		t.Errorf("%T as the driver sees it (-want +got):\n%s", request, diff)
	}
}

func TestDriver_TransfersAllFields(t *testing.T) {
	f := &full{}
	d := connect(t, f)
	machine, class := fixture.Machine(), fixture.MachineClass()
	machine.Spec.ProviderID, machine.Status.LastKnownState = "id", "state"
	machine.Annotations = map[string]string{driver.AnnotationAPIGroup: driver.APIGroupClusterAPI}
	secret := &corev1.Secret{Data: map[string][]byte{"userData": []byte("\xff\x00binary"), "key": []byte("value")}}
	volumes := []*corev1.PersistentVolumeSpec{{StorageClassName: "fast"}, {VolumeMode: new(corev1.PersistentVolumeBlock)}}

	same(t, f, &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret}, d.CreateMachine, f.CreateMachine)
	same(t, f, &driver.DeleteMachineRequest{Machine: machine, MachineClass: class, Secret: secret}, d.DeleteMachine, f.DeleteMachine)
	same(t, f, &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: secret}, d.GetMachineStatus, f.GetMachineStatus)
	same(t, f, &driver.InitializeMachineRequest{Machine: machine, MachineClass: class, Secret: secret}, d.InitializeMachine, f.InitializeMachine)
	same(t, f, &driver.ListMachinesRequest{MachineClass: class, Secret: secret}, d.ListMachines, f.ListMachines)
	same(t, f, &driver.LocateMachineRequest{Machine: machine, MachineClass: class, Secret: secret}, d.LocateMachine, f.LocateMachine)
	same(t, f, &driver.UpdateMachineRequest{
		Machine: machine, MachineClass: class, Secret: secret, MadeFrom: runtime.RawExtension{Raw: []byte(`{"tags":{}}`)}, DryRun: true,
	}, d.UpdateMachine, f.UpdateMachine)
	same(t, f, &driver.GetVolumeIDsRequest{PVSpecs: volumes}, d.GetVolumeIDs, f.GetVolumeIDs)
	same(t, f, &driver.ListFailureDomainsRequest{MachineClass: class, Secret: secret}, d.ListFailureDomains, f.ListFailureDomains)
	same(t, f, &driver.PlaceMachineRequest{MachineClass: class, FailureDomain: "a"}, d.PlaceMachine, f.PlaceMachine)
	if got := d.MigratedKinds(); len(got) != 1 || got[0] != "AWSMachineClass" {
		t.Errorf("the driver migrates %q", got)
	}
	if !d.SeparatesAPIGroups() {
		t.Error("the driver is not known to separate API groups")
	}

	// An error does not hide the response that comes with it.
	f.err = status.Error(codes.Uninitialized, "not yet")
	same(t, f, &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: secret}, d.GetMachineStatus, f.GetMachineStatus)
	same(t, f, &driver.DeleteMachineRequest{Machine: machine, MachineClass: class, Secret: secret}, d.DeleteMachine, f.DeleteMachine)
}

func TestDriver_MigrationFillsClass(t *testing.T) {
	f := &full{}
	d := connect(t, f)
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "old"}}
	old := map[string]any{"metadata": map[string]any{"name": "old"}, "spec": map[string]any{"machineType": "m5.large"}}
	_, err := d.GenerateMachineClassForMigration(t.Context(), &driver.GenerateMachineClassForMigrationRequest{
		ProviderSpecificMachineClass: old, MachineClass: class,
		ClassSpec: &v1alpha1.ClassSpec{APIGroup: "machine.sapcloud.io", Kind: "AWSMachineClass", Name: "old"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if class.Provider != "fake" || string(class.ProviderSpec.Raw) != `{"size":"xl"}` || class.Name != "old" || class.Namespace != "ns" {
		t.Errorf("the class is %+v", class)
	}
	asked, _ := f.last.(*driver.GenerateMachineClassForMigrationRequest)
	given, _ := asked.ProviderSpecificMachineClass.(*unstructured.Unstructured)
	if size, _, _ := unstructured.NestedString(given.Object, "spec", "machineType"); size != "m5.large" || asked.ClassSpec.Kind != "AWSMachineClass" {
		t.Errorf("the driver was asked about %+v with %+v", given, asked.ClassSpec)
	}
}

func TestDriver_MissingMethodsAreUnimplemented(t *testing.T) {
	d := connect(t, struct{ driver.Driver }{fake.New(fake.Config{})})
	_, err := d.InitializeMachine(t.Context(), &driver.InitializeMachineRequest{Machine: fixture.Machine(), MachineClass: fixture.MachineClass()})
	wantCode(t, err, codes.Unimplemented)
	_, err = d.GetVolumeIDs(t.Context(), &driver.GetVolumeIDsRequest{})
	wantCode(t, err, codes.Unimplemented)
	_, err = d.PlaceMachine(t.Context(), &driver.PlaceMachineRequest{MachineClass: fixture.MachineClass()})
	wantCode(t, err, codes.Unimplemented)
	if d.SeparatesAPIGroups() {
		t.Error("the driver separates API groups")
	}
}

func TestDriver_ErrorsKeepCodeAndMessage(t *testing.T) {
	inner := fake.New(fake.Config{})
	d := connect(t, inner)
	for _, code := range codes.All()[1:] {
		inner.FailWith(fake.DeleteMachine, status.Error(code, "no "+code.String()))
		_, err := d.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: fixture.Machine(), MachineClass: fixture.MachineClass(), Secret: fixture.Secret()})
		got, _ := status.FromError(err)
		if got.Code() != code || got.Message() != "no "+code.String() {
			t.Errorf("%v became %v", code, err)
		}
	}
	inner.FailWith(fake.DeleteMachine, errors.New(strings.Repeat("ü", 5000)+"\xff"))
	_, err := d.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: fixture.Machine(), MachineClass: fixture.MachineClass(), Secret: fixture.Secret()})
	got, _ := status.FromError(err)
	if got.Code() != codes.Unknown || len(got.Message()) > 4096 || !strings.HasSuffix(got.Message(), "ü…") {
		t.Errorf("a long message became %v with %d bytes: …%q", got.Code(), len(got.Message()), got.Message()[max(0, len(got.Message())-10):])
	}
}

func TestServe_PanicFailsOnlyItsOperation(t *testing.T) {
	inner := fake.New(fake.Config{})
	inner.OnStatus(func(_ context.Context, r *driver.GetMachineStatusRequest, do func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
		if r.Machine.Name == "bad" {
			panic("index out of range")
		}
		return do()
	})
	d := connect(t, inner)
	_, err := d.GetMachineStatus(t.Context(), statusRequest("bad"))
	wantCode(t, err, codes.Internal)
	_, err = d.GetMachineStatus(t.Context(), statusRequest("good"))
	wantCode(t, err, codes.NotFound)
}

// counted counts the requests for classes and Secrets.
func counted(classes, secrets *atomic.Int32) func(*plugin.Options) {
	return func(o *plugin.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				switch method {
				case driverpb.Infra_GetMachineClass_FullMethodName:
					classes.Add(1)
				case driverpb.Infra_GetSecret_FullMethodName:
					secrets.Add(1)
				}
				return invoke(ctx, method, req, reply, conn, opts...)
			}))
	}
}

func TestServe_CachesClassesAndSecretsByVersion(t *testing.T) {
	var classes, secrets atomic.Int32
	d := connect(t, fake.New(fake.Config{}), counted(&classes, &secrets))
	asked := func(change func(*driver.GetMachineStatusRequest), wantClasses, wantSecrets int32) {
		t.Helper()
		r := statusRequest("one")
		change(r)
		for range 3 {
			_, err := d.GetMachineStatus(t.Context(), r)
			wantCode(t, err, codes.NotFound)
		}
		if classes.Load() != wantClasses || secrets.Load() != wantSecrets {
			t.Errorf("fetched %d classes and %d Secrets, want %d and %d", classes.Load(), secrets.Load(), wantClasses, wantSecrets)
		}
	}
	asked(func(*driver.GetMachineStatusRequest) {}, 1, 1)
	asked(func(r *driver.GetMachineStatusRequest) { r.MachineClass.ProviderSpec.Raw = []byte(`{"a":1}`) }, 2, 1)
	asked(func(r *driver.GetMachineStatusRequest) { r.Secret.Data["token"] = []byte("new") }, 2, 2)
	asked(func(*driver.GetMachineStatusRequest) {}, 2, 2)
}

func TestServe_UsesChangedSecretImmediately(t *testing.T) {
	f := &full{}
	d := connect(t, f)
	for i := range 20 {
		r := statusRequest("one")
		r.Secret.Data["token"] = fmt.Append(nil, i%3)
		if _, err := d.GetMachineStatus(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := string(f.last.(*driver.GetMachineStatusRequest).Secret.Data["token"]); got != fmt.Sprint(i%3) {
			t.Fatalf("operation %d had the token %q", i, got)
		}
	}
}

func TestDriver_ConcurrentOperations(t *testing.T) {
	inner := fake.New(fake.Config{})
	var running, most atomic.Int32
	inner.OnCreate(func(_ context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
		now := running.Add(1)
		defer running.Add(-1)
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		return do()
	})
	d := connect(t, inner, func(o *plugin.Options) { o.MaxOperations = 3 })
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			machine := fixture.Machine()
			machine.Name = fmt.Sprint("m-", i)
			resp, err := d.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: fixture.MachineClass(), Secret: fixture.Secret()})
			if err != nil || resp.NodeName != machine.Name {
				t.Errorf("%s: %+v, %v", machine.Name, resp, err)
			}
		})
	}
	all.Wait()
	if len(inner.VMs()) != 100 {
		t.Errorf("%d VMs exist", len(inner.VMs()))
	}
	if most.Load() > 3 {
		t.Errorf("the driver had %d concurrent operations, but registered for 3", most.Load())
	}
}

func TestDriver_CancelReachesDriver(t *testing.T) {
	inner := fake.New(fake.Config{})
	cancelled := make(chan error, 1)
	inner.OnStatus(func(ctx context.Context, _ *driver.GetMachineStatusRequest, _ func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
		cancelled <- nil
		<-ctx.Done()
		cancelled <- ctx.Err()
		return nil, ctx.Err()
	})
	d := connect(t, inner)
	ctx, cancel := context.WithCancel(t.Context())
	done := ask(ctx, d, "one")
	<-cancelled
	cancel()
	wantCode(t, (<-done).err, codes.Canceled)
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("the driver's context ended with %v", err)
	}
}

// slowPlacer takes as long to place a machine as its context allows.
type slowPlacer struct {
	full
	began, ended chan struct{}
}

func (p *slowPlacer) PlaceMachine(ctx context.Context, _ *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	close(p.began)
	<-ctx.Done()
	close(p.ended)
	return nil, ctx.Err()
}

// TestPlaceMachine_StopsWithContext checks both the manager and the driver.
func TestPlaceMachine_StopsWithContext(t *testing.T) {
	inner := &slowPlacer{began: make(chan struct{}), ended: make(chan struct{})}
	d := connect(t, inner)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-inner.began
		cancel()
	}()
	_, err := d.PlaceMachine(ctx, &driver.PlaceMachineRequest{MachineClass: fixture.MachineClass(), FailureDomain: "a"})
	wantCode(t, err, codes.Canceled)
	<-inner.ended
}
