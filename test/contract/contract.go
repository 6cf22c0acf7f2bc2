// Package contract is the conformance suite of drivers: it checks the rules of package driver.
package contract

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Check checks drivers whose provider has no VM yet, accepts an empty provider specification, and
// needs no initialisation of VMs.
func Check(t *testing.T, newDriver func(t *testing.T) driver.Driver) {
	t.Helper()
	for name, check := range map[string]func(*subject){
		"LifeOfAVM":                lifeOfAVM,
		"TheNextVMHasAnotherID":    nextVM,
		"AnIDCountsMoreThanAName":  idBeforeName,
		"NamespacesAreApart":       namespaces,
		"ClassesAreApart":          classes,
		"EditedClass":              edited,
		"AMachineHasAName":         nameless,
		"ACallEndsWithItsContext":  cancelled,
		"ConcurrentCallsMakeOneVM": concurrent,
	} {
		t.Run(name, func(t *testing.T) { check(newSubject(t, newDriver(t))) })
	}
}

// subject is a driver with the class that its requests are for.
type subject struct {
	*testing.T
	driver.Driver
	class *v1alpha1.MachineClass
}

func newSubject(t *testing.T, d driver.Driver) *subject {
	return &subject{T: t, Driver: d, class: classOf("class")}
}

func classOf(name string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: "ns", Name: name},
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
	}
}

func machineOf(namespace, name, id string) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.MachineSpec{ProviderID: id},
	}
}

// create makes the VM of a machine, and returns its ID.
func (s *subject) create(machine *v1alpha1.Machine) string {
	s.Helper()
	resp, err := s.CreateMachine(s.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: s.class, Secret: &corev1.Secret{}})
	s.want(codes.OK, err)
	if err != nil {
		s.FailNow()
	}
	if resp.ProviderID == "" || resp.NodeName == "" {
		s.Errorf("the answer to a creation lacks an ID or a node: %+v", resp)
	}
	return resp.ProviderID
}

func (s *subject) remove(machine *v1alpha1.Machine) {
	s.Helper()
	_, err := s.DeleteMachine(s.Context(), &driver.DeleteMachineRequest{Machine: machine, MachineClass: s.class, Secret: &corev1.Secret{}})
	s.want(codes.OK, err)
}

// find expects the machine's VM to have an ID. An empty ID means that there is no VM.
func (s *subject) find(machine *v1alpha1.Machine, want string) {
	s.Helper()
	resp, err := s.GetMachineStatus(s.Context(), &driver.GetMachineStatusRequest{Machine: machine, MachineClass: s.class, Secret: &corev1.Secret{}})
	if want == "" {
		s.want(codes.NotFound, err)
		return
	}
	s.want(codes.OK, err)
	if err == nil && resp.ProviderID != want {
		s.Errorf("the VM of %s with ID %q is %s, want %s", machine.Name, machine.Spec.ProviderID, resp.ProviderID, want)
	}
}

// lists expects the VMs of the class, machines by ID.
func (s *subject) lists(want map[string]string) {
	s.Helper()
	resp, err := s.ListMachines(s.Context(), &driver.ListMachinesRequest{MachineClass: s.class, Secret: &corev1.Secret{}})
	s.want(codes.OK, err)
	if err != nil {
		return
	}
	if len(want) == 0 && len(resp.MachineList) == 0 {
		return
	}
	if diff := cmp.Diff(want, resp.MachineList); diff != "" {
		s.Errorf("the VMs of %s (-want +got):\n%s", s.class.Name, diff)
	}
}

func (s *subject) want(want codes.Code, err error) {
	s.Helper()
	if got := status.Code(err); got != want {
		s.Errorf("code is %v, want %v: %v", got, want, err)
	}
}

func lifeOfAVM(s *subject) {
	one := machineOf("ns", "one", "")
	s.find(one, "")
	s.remove(one) // succeeds without a VM
	id := s.create(one)
	if again := s.create(one); again != id {
		s.Errorf("a repeated creation has made %s beside %s", again, id)
	}
	known := machineOf("ns", "one", id)
	s.find(one, id)
	s.find(known, id)
	s.lists(map[string]string{id: "one"})
	for range 2 {
		s.remove(known)
	}
	s.find(one, "")
	s.find(known, "")
	s.lists(nil)
}

func nextVM(s *subject) {
	one := machineOf("ns", "one", "")
	first := s.create(one)
	s.remove(one)
	if second := s.create(one); second == first {
		s.Errorf("two VMs had the ID %s", first)
	}
}

func idBeforeName(s *subject) {
	one := machineOf("ns", "one", "")
	first := s.create(one)
	s.remove(one)
	second := s.create(one)
	lost := machineOf("ns", "one", first)
	s.find(lost, "")
	s.remove(lost)
	s.find(one, second)
}

func namespaces(s *subject) {
	here, there := machineOf("ns", "one", ""), machineOf("there", "one", "")
	id := s.create(here)
	s.find(there, "")
	s.remove(there)
	other := s.create(there)
	if other == id {
		s.Errorf("machines of two namespaces share %s", id)
	}
	s.remove(there)
	s.find(here, id)
}

func classes(s *subject) {
	one := machineOf("ns", "one", "")
	id := s.create(one)
	other := &subject{T: s.T, Driver: s.Driver, class: classOf("other")}
	_, err := other.CreateMachine(s.Context(), &driver.CreateMachineRequest{Machine: one, MachineClass: other.class, Secret: &corev1.Secret{}})
	s.want(codes.AlreadyExists, err)
	other.find(one, "")
	other.remove(one)
	other.lists(nil)
	s.find(one, id)
}

// edited is that a VM whose ID is stored is found whatever its class says now.
func edited(s *subject) {
	id := s.create(machineOf("ns", "one", ""))
	one := machineOf("ns", "one", id)
	after := &subject{T: s.T, Driver: s.Driver, class: classOf("other")}
	after.find(one, id)
	after.remove(one)
	after.find(one, "")
	s.find(one, "")
	s.lists(nil)
}

func nameless(s *subject) {
	unnamed := machineOf("ns", "", "")
	_, err := s.CreateMachine(s.Context(), &driver.CreateMachineRequest{Machine: unnamed, MachineClass: s.class, Secret: &corev1.Secret{}})
	s.want(codes.InvalidArgument, err)
	_, err = s.DeleteMachine(s.Context(), &driver.DeleteMachineRequest{Machine: unnamed, MachineClass: s.class, Secret: &corev1.Secret{}})
	s.want(codes.InvalidArgument, err)
	s.lists(nil)
}

func cancelled(s *subject) {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	one := machineOf("ns", "one", "")
	_, err := s.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: one, MachineClass: s.class, Secret: &corev1.Secret{}})
	s.want(codes.Canceled, err)
	s.find(one, "")
}

func concurrent(s *subject) {
	one := machineOf("ns", "one", "")
	const calls = 20
	ids := make(chan string, calls)
	for range calls {
		go func() {
			resp, err := s.CreateMachine(s.Context(), &driver.CreateMachineRequest{Machine: one, MachineClass: s.class, Secret: &corev1.Secret{}})
			if status.Is(err, codes.Aborted) || err == nil && resp == nil {
				ids <- ""
				return
			}
			if err != nil {
				s.Errorf("one of several creations: %v", err)
				ids <- ""
				return
			}
			ids <- resp.ProviderID
		}()
	}
	made := map[string]string{}
	for range calls {
		if id := <-ids; id != "" {
			made[id] = "one"
		}
	}
	if len(made) != 1 {
		s.Errorf("VMs of one machine: %v", made)
	}
	s.lists(made)
}
