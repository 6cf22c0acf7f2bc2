package vm

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// responding sends one response to all requests.
func responding(response string) http.HandlerFunc {
	return func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(out, response)
	}
}

// large is an object of almost as many values as a response may have.
var large = `{"apiVersion":"vm.metropolis.monogon.dev/v1alpha1","kind":"VirtualMachine","spec":{"dataDisks":[` + strings.Repeat("{},", 14_999) + `{}]}}`

const ordinary = `{"apiVersion":"vm.metropolis.monogon.dev/v1alpha1","kind":"VirtualMachine","metadata":{"name":"vm"}}`

const validSpec = `{"vmPool":"n","size":"small","tags":{"kubernetes.io/cluster/shoot":"1","kubernetes.io/role/worker":"1"},"image":{"url":"https://example.com/disk.img"}}`

// Calls to servers with large responses share the budget until they return. Other calls are not affected.
func TestBudget_IsSharedByConcurrentCalls(t *testing.T) {
	greedy, honest := hostile(t, responding(large)), hostile(t, responding(ordinary))
	shared := &budget{left: 20 << 20}
	get := func(ctx context.Context, cluster *infrastructure) error {
		return cluster.Get(ctx, client.ObjectKey{Namespace: "n", Name: "vm"}, &vmv1alpha1.VirtualMachine{})
	}
	var closers []func()
	var err error
	for err == nil && len(closers) < 20 {
		ctx, end := shared.begin(t.Context())
		closers = append(closers, end)
		if err = get(ctx, greedy); err == nil {
			err = get(ctx, greedy) // replaces the first response
		}
	}
	if !errors.Is(err, errBudget) || len(closers) < 2 || len(closers) > 4 {
		t.Fatalf("call %d returned %v, want that about two calls of 8 MiB fit", len(closers), err)
	}
	if code := status.Code(coded("cannot get VM", err)); code != codes.Unavailable {
		t.Errorf("the code is %v", code)
	}
	ctx, end := shared.begin(t.Context())
	defer end()
	if err := get(ctx, honest); err != nil {
		t.Errorf("a call with an ordinary response: %v", err)
	}
	closers[0]()
	again, end := shared.begin(t.Context())
	defer end()
	if err := get(again, greedy); err != nil {
		t.Errorf("after a call has returned: %v", err)
	}
	for _, end := range closers[1:] {
		end()
	}
	closers[0]() // has no effect
	end()
	if shared.left != 20<<20 {
		t.Errorf("%d bytes are left", shared.left)
	}
}

// A watch counts as its largest event.
func TestBudget_Watch(t *testing.T) {
	cluster := hostile(t, responding(fmt.Sprintf(`{"type":"ADDED","object":%s}`+"\n"+`{"type":"MODIFIED","object":%s}`+"\n", ordinary, large)))
	shared := &budget{left: 1 << 20}
	ctx, end := shared.begin(t.Context())
	defer end()
	changes, err := cluster.Watch(ctx, &vmv1alpha1.VirtualMachineList{}, client.InNamespace("n"))
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	for event := range changes.ResultChan() {
		if vm, ok := event.Object.(*vmv1alpha1.VirtualMachine); ok && len(vm.Spec.DataDisks) > 0 {
			t.Error("an event that exceeds the budget was decoded")
		}
	}
}

// Each call of the driver that sends requests is under the budget.
func TestBudget_AppliesToAllCalls(t *testing.T) {
	server := httptest.NewTLSServer(responding(large))
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	secret := &corev1.Secret{Data: map[string][]byte{
		kubeconfigKey: kubeconfigOf(t, clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: authority}, goodUser),
	}}
	class := &v1alpha1.MachineClass{ProviderSpec: k8sruntime.RawExtension{Raw: []byte(validSpec)}}
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "m"}}
	d := New(Options{})
	d.budget.left = 0
	for name, call := range map[string]func(context.Context) error{
		"create": func(ctx context.Context) error {
			_, err := d.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := d.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
			return err
		},
		"status": func(ctx context.Context) error {
			_, err := d.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: secret})
			return err
		},
		"list": func(ctx context.Context) error {
			_, err := d.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: class, Secret: secret})
			return err
		},
		"domains": func(ctx context.Context) error {
			_, err := d.ListFailureDomains(ctx, &driver.ListFailureDomainsRequest{MachineClass: class, Secret: secret})
			return err
		},
		"locate": func(ctx context.Context) error {
			_, err := d.LocateMachine(ctx, &driver.LocateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
			return err
		},
		"update": func(ctx context.Context) error {
			_, err := d.UpdateMachine(ctx, &driver.UpdateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
			return err
		},
	} {
		if err := call(t.Context()); !strings.Contains(fmt.Sprint(err), errBudget.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
