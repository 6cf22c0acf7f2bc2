// Package imports uses each symbol that public providers of MCM import from it, in the way that they use it.
// Compiling the package is the test.
package imports

import (
	"context"
	"errors"
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/client/clientset/versioned"
	"github.com/gardener/machine-controller-manager/pkg/client/clientset/versioned/fake"
	"github.com/gardener/machine-controller-manager/pkg/client/clientset/versioned/scheme"
	_ "github.com/gardener/machine-controller-manager/pkg/util/client/metrics/prometheus"
	controller "github.com/gardener/machine-controller-manager/pkg/util/clientbuilder/machine"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/app"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/app/options"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	names "github.com/gardener/machine-controller-manager/pkg/util/provider/machinecontroller"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machineutils"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/metrics"
	_ "github.com/gardener/machine-controller-manager/pkg/util/reflector/prometheus"
	_ "github.com/gardener/machine-controller-manager/pkg/util/workqueue/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// old is a driver for versions of MCM without InitializeMachine.
type old struct{}

func (old) CreateMachine(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return &driver.CreateMachineResponse{ProviderID: "x:///1", NodeName: "m", LastKnownState: "s"}, nil
}

func (old) DeleteMachine(context.Context, *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return &driver.DeleteMachineResponse{LastKnownState: "s"}, nil
}

func (old) GetMachineStatus(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return &driver.GetMachineStatusResponse{ProviderID: "x:///1", NodeName: "m"}, nil
}

func (old) ListMachines(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return &driver.ListMachinesResponse{MachineList: map[string]string{"x:///1": "m"}}, nil
}

func (old) GetVolumeIDs(_ context.Context, req *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return &driver.GetVolumeIDsResponse{VolumeIDs: make([]string, len(req.PVSpecs))}, nil
}

func (old) GenerateMachineClassForMigration(_ context.Context, req *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	req.MachineClass.Provider = req.ClassSpec.Kind
	return &driver.GenerateMachineClassForMigrationResponse{}, nil
}

// current is a driver for the latest version.
type current struct{ old }

func (current) InitializeMachine(_ context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return &driver.InitializeMachineResponse{ProviderID: req.Machine.Spec.ProviderID, NodeName: req.Machine.Labels[v1alpha1.NodeLabelKey]}, nil
}

// Tests of providers call all methods of a variable of this type.
var d driver.Driver = current{}

// Variables as in a provider's main package.
var (
	newServer                                              = options.NewMCServer
	_         func(*options.MCServer, *pflag.FlagSet)      = (*options.MCServer).AddFlags
	_         func(*options.MCServer, driver.Driver) error = app.Run
)

// Clients as in providers that read Machines.
var (
	_ func(controller.SimpleClientBuilder, string) (versioned.Interface, error) = controller.SimpleClientBuilder.Client
	_ versioned.Interface                                                       = fake.NewSimpleClientset(&machine)
)

// Names that providers with their own nodes use.
var _ = corev1.Node{ObjectMeta: metav1.ObjectMeta{
	Finalizers: []string{names.NodeFinalizerName}, Labels: map[string]string{machineutils.MachineLabelKey: "m"},
}}

// The schemes.
var (
	_ func(*runtime.Scheme) error = scheme.AddToScheme
	_ func(*runtime.Scheme) error = v1alpha1.AddToScheme
)

// Providers set these fields in tests.
var (
	machine = v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.NodeLabelKey: "node"}},
		Spec:       v1alpha1.MachineSpec{ProviderID: "x:///1", Class: v1alpha1.ClassSpec{Kind: "MachineClass", Name: "c"}},
	}
	class = v1alpha1.MachineClass{
		Provider:     "x",
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
		SecretRef:    &corev1.SecretReference{Name: "s", Namespace: "n"},
		NodeTemplate: &v1alpha1.NodeTemplate{InstanceType: "i", Region: "r", Zone: "z", Capacity: corev1.ResourceList{}},
	}
	_ = driver.CreateMachineRequest{Machine: &machine, MachineClass: &class, Secret: &corev1.Secret{}}
	_ = driver.InitializeMachineRequest{Machine: &machine, MachineClass: &class, Secret: &corev1.Secret{}}
	_ = driver.DeleteMachineRequest{Machine: &machine, MachineClass: &class, Secret: &corev1.Secret{}}
	_ = driver.GetMachineStatusRequest{Machine: &machine, MachineClass: &class, Secret: &corev1.Secret{}}
	_ = driver.ListMachinesRequest{MachineClass: &class, Secret: &corev1.Secret{}}
	_ = driver.GenerateMachineClassForMigrationRequest{ProviderSpecificMachineClass: &class, MachineClass: &class, ClassSpec: &v1alpha1.ClassSpec{}}
)

// Codes that providers return.
var _ = []codes.Code{
	codes.DeadlineExceeded, codes.Internal, codes.InvalidArgument, codes.NotFound, codes.OutOfRange, codes.PermissionDenied,
	codes.ResourceExhausted, codes.Unauthenticated, codes.Unimplemented, codes.Uninitialized, codes.Unknown,
}

// Metrics that providers record and reset.
var (
	_ = []*prometheus.CounterVec{metrics.APIRequestCount, metrics.APIFailedRequestCount, metrics.DriverFailedAPIRequests}
	_ = []*prometheus.HistogramVec{metrics.APIRequestDuration, metrics.DriverAPIRequestDuration}
)

func TestOptions(t *testing.T) {
	s := newServer()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.AddFlags(flags)
	if err := flags.Parse([]string{"--target-kubeconfig=a", "--control-kubeconfig=b", "--namespace=c"}); err != nil {
		t.Fatal(err)
	}
	if s.TargetKubeconfig != "a" || s.ControlKubeconfig != "b" || s.Namespace != "c" {
		t.Errorf("got %+v", s)
	}
}

// TestStatus_CreateAndRead creates and reads a status in every way that providers do.
func TestStatus_CreateAndRead(t *testing.T) {
	cause := errors.New("quota")
	var err error = status.WrapError(codes.ResourceExhausted, "no more VMs", cause)
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.ResourceExhausted || s.Message() != "no more VMs" || s.Cause() != cause {
		t.Errorf("got %v, %t", s, ok)
	}
	var made *status.Status = status.New(codes.NotFound, "gone")
	if err = status.Error(codes.NotFound, "gone"); err.Error() != made.Error() {
		t.Errorf("%v does not match %v", err, made)
	}
}
