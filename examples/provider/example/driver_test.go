package example_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/examples/provider/cloud"
	"github.com/millwright-dev/millwright/examples/provider/example"
)

const small = `{"size":"small","tags":{"kubernetes.io/cluster/a":"1","kubernetes.io/role/node":"1"}}`

// request returns a request for the machine "m" of a class.
func request(spec, token string) *driver.CreateMachineRequest {
	return &driver.CreateMachineRequest{
		Machine:      &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}},
		MachineClass: &v1alpha1.MachineClass{ProviderSpec: runtime.RawExtension{Raw: []byte(spec)}},
		Secret:       &corev1.Secret{Data: map[string][]byte{"token": []byte(token), "userData": []byte("u")}},
	}
}

// start starts a cloud with capacity for two VMs, and returns a driver for it.
func start(t *testing.T) *example.Driver {
	t.Helper()
	server := httptest.NewServer(cloud.New("t0ken", 2))
	t.Cleanup(server.Close)
	d, err := example.New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestMachine_Lifecycle: two creations result in one VM, and two deletions both succeed.
func TestMachine_Lifecycle(t *testing.T) {
	d, ctx, req := start(t), t.Context(), request(small, "t0ken")
	first, err := d.CreateMachine(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.CreateMachine(ctx, req)
	if err != nil || again.ProviderID != first.ProviderID {
		t.Errorf("second creation: got %+v, %v; want %+v", again, err, first)
	}
	found, err := d.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.MachineClass, Secret: req.Secret})
	if err != nil || found.ProviderID != first.ProviderID {
		t.Errorf("got %+v, %v", found, err)
	}
	listed, err := d.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: req.MachineClass, Secret: req.Secret})
	if err != nil || len(listed.MachineList) != 1 || listed.MachineList[first.ProviderID] != "m" {
		t.Errorf("got list %+v, %v", listed, err)
	}
	for range 2 {
		if _, err := d.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: req.Machine, MachineClass: req.MachineClass, Secret: req.Secret}); err != nil {
			t.Errorf("deletion: got error %v", err)
		}
	}
	if _, err := d.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.MachineClass, Secret: req.Secret}); !status.Is(err, codes.NotFound) {
		t.Errorf("after the deletion: got %v, want NotFound", err)
	}
}

// TestDriver_IgnoresVMsOfOtherCluster: VMs of the same machine in another cluster are neither found nor deleted.
func TestDriver_IgnoresVMsOfOtherCluster(t *testing.T) {
	d, ctx, req := start(t), t.Context(), request(small, "t0ken")
	if _, err := d.CreateMachine(ctx, req); err != nil {
		t.Fatal(err)
	}
	other := request(`{"size":"small","tags":{"kubernetes.io/cluster/b":"1","kubernetes.io/role/node":"1"}}`, "t0ken")
	if _, err := d.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: other.Machine, MachineClass: other.MachineClass, Secret: other.Secret}); err != nil {
		t.Error(err)
	}
	if _, err := d.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.MachineClass, Secret: req.Secret}); err != nil {
		t.Errorf("VM of the first cluster: got error %v", err)
	}
}

// TestDriver_ErrorCodes: each failure has its code.
func TestDriver_ErrorCodes(t *testing.T) {
	large := `{"size":"large","tags":{"kubernetes.io/cluster/a":"1","kubernetes.io/role/node":"1"}}`
	for name, tc := range map[string]struct {
		spec, token string
		want        codes.Code
	}{
		"not JSON":      {`{`, "t0ken", codes.InvalidArgument},
		"unknown field": {`{"sise":"small"}`, "t0ken", codes.InvalidArgument},
		"unknown size":  {`{"size":"huge"}`, "t0ken", codes.InvalidArgument},
		"no tags":       {`{"size":"small"}`, "t0ken", codes.InvalidArgument},
		"wrong token":   {small, "wrong", codes.Unauthenticated},
		"changed size":  {large, "t0ken", codes.AlreadyExists},
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t)
			if _, err := d.CreateMachine(t.Context(), request(small, "t0ken")); err != nil {
				t.Fatal(err)
			}
			if _, err := d.CreateMachine(t.Context(), request(tc.spec, tc.token)); !status.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// TestCreate_FailsWithoutCapacity: a cloud without capacity returns ResourceExhausted, not an error about the class.
func TestCreate_FailsWithoutCapacity(t *testing.T) {
	d := start(t)
	var last error
	for _, name := range []string{"a", "b", "c"} {
		req := request(small, "t0ken")
		req.Machine.Name = name
		_, last = d.CreateMachine(t.Context(), req)
	}
	if !status.Is(last, codes.ResourceExhausted) {
		t.Errorf("third VM: got %v, want ResourceExhausted", last)
	}
}

// TestDriver_UnreachableCloudIsNotNotFound: if the cloud cannot be reached, no VM is reported as deleted.
func TestDriver_UnreachableCloudIsNotNotFound(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	d, err := example.New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	req := request(small, "t0ken")
	if _, err := d.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.MachineClass, Secret: req.Secret}); !status.Is(err, codes.Unavailable) {
		t.Errorf("got %v, want Unavailable", err)
	}
	if _, err := example.New("nowhere"); err == nil {
		t.Error("New accepted a URL without a host")
	}
}
