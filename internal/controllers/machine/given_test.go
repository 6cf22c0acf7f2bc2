package machine

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// scripted is a driver that does what it is told. Its VMs are kept by machine name.
type scripted struct {
	vms map[string]string
	// errors are what the next calls of a method are answered with; nil lets one work.
	errors map[instance.Method][]error
	// note goes along with the responses to creations and deletions.
	note string
	// withNote has failed creations come with a response that carries the note.
	withNote bool
	// stays has deletions accepted without effect.
	stays bool
	// unnamed has the driver name no node, as where there is none.
	unnamed bool
	calls   []instance.Method
	// secrets are those that creations came with.
	secrets []*corev1.Secret
}

// fails has the next call of a method fail with these codes, one after another.
func (d *scripted) fails(method instance.Method, failures ...codes.Code) {
	for _, code := range failures {
		d.errors[method] = append(d.errors[method], status.Error(code, fmt.Sprintf("%s is out of order (%s)", method, code)))
	}
}

func (d *scripted) next(method instance.Method) error {
	d.calls = append(d.calls, method)
	if len(d.errors[method]) == 0 {
		return nil
	}
	err := d.errors[method][0]
	d.errors[method] = d.errors[method][1:]
	return err
}

// made counts the calls of a method.
func (d *scripted) made(method instance.Method) int {
	return len(slices.DeleteFunc(slices.Clone(d.calls), func(m instance.Method) bool { return m != method }))
}

func (d *scripted) nodeName(machine *v1alpha1.Machine) string {
	if d.unnamed {
		return ""
	}
	return "node-" + machine.Namespace + "-" + machine.Name
}

func (d *scripted) CreateMachine(_ context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	d.secrets = append(d.secrets, req.Secret)
	if err := d.next(instance.MethodCreate); err != nil {
		if d.withNote {
			return &driver.CreateMachineResponse{LastKnownState: d.note}, err
		}
		return nil, err
	}
	id := "sim:///" + req.Machine.Name
	d.vms[req.Machine.Name] = id
	return &driver.CreateMachineResponse{ProviderID: id, NodeName: d.nodeName(req.Machine), LastKnownState: d.note, Addresses: d.addresses()}, nil
}

func (d *scripted) addresses() []corev1.NodeAddress {
	return []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}}
}

func (d *scripted) InitializeMachine(_ context.Context, _ *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return nil, d.next(instance.MethodInitialize)
}

func (d *scripted) DeleteMachine(_ context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	if err := d.next(instance.MethodDelete); err != nil {
		return nil, err
	}
	if !d.stays {
		delete(d.vms, req.Machine.Name)
	}
	return &driver.DeleteMachineResponse{LastKnownState: d.note}, nil
}

func (d *scripted) GetMachineStatus(_ context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	err := d.next(instance.MethodStatus)
	if err != nil && !status.Is(err, codes.Uninitialized) {
		return nil, err
	}
	id, ok := d.vms[req.Machine.Name]
	if !ok || req.Machine.Spec.ProviderID != "" && req.Machine.Spec.ProviderID != id {
		return nil, status.Error(codes.NotFound, "no such VM")
	}
	return &driver.GetMachineStatusResponse{ProviderID: id, NodeName: d.nodeName(req.Machine), Addresses: d.addresses()}, err
}

func (d *scripted) ListMachines(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return nil, status.Error(codes.Unimplemented, "nobody lists here")
}

func newClass(namespace string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: namespace, Name: className, UID: "class", Finalizers: []string{v1alpha1.FinalizerMCM}},
		Provider:     "scripted",
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
		SecretRef:    &corev1.SecretReference{Namespace: namespace, Name: className},
	}
}

func newSecret(namespace string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: className},
		Data:       map[string][]byte{"userData": []byte(userData), "apiKey": []byte("s3cr3t-k3y-of-the-cloud")},
	}
}

func newMachine(namespace string, created time.Time) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: machineName, UID: types.UID(machineName), CreationTimestamp: metav1.NewTime(created)},
		Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: className}},
	}
}

// owned gives the Machine to a set.
func owned(machine *v1alpha1.Machine) {
	yes := true
	machine.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "MachineSet", Name: "set", UID: "set", Controller: &yes,
	}}
}

// restored is a Machine as a control-plane migration leaves it: its VM and node are
// known, its status is lost.
func restored(machine *v1alpha1.Machine) {
	machine.Spec.ProviderID = "sim:///" + machine.Name
	machine.Labels = map[string]string{v1alpha1.NodeLabelKey: "node-" + machine.Namespace + "-" + machine.Name}
	machine.Finalizers = []string{v1alpha1.FinalizerMCM}
}

// inPhase is a Machine that has come to a phase.
func inPhase(phase v1alpha1.MachinePhase) func(*v1alpha1.Machine) {
	return func(machine *v1alpha1.Machine) {
		restored(machine)
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "3"}
		machine.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: phase, LastUpdateTime: machine.CreationTimestamp}
		machine.Status.LastOperation = v1alpha1.LastOperation{
			Type: v1alpha1.MachineOperationCreate, State: v1alpha1.MachineStateProcessing,
			Description: descriptionCreating, LastUpdateTime: machine.CreationTimestamp,
		}
	}
}

func condition(kind, value string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: corev1.NodeConditionType(kind), Status: corev1.ConditionStatus(value), Reason: "Test"}
}

// ready is the condition of a healthy node.
var ready = condition("Ready", "True")
