package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// foreignVM is a VM of another Machine.
const foreignVM = "sim:///other"

// FuzzReconcile checks that a pass terminates for any objects and any provider error, and that it deletes no VM,
// node or Machine unless the Machine or its node was deleted.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil), "", true, false)
		f.Add(data, []byte(nil), "no \x1b[2J quota", false, false)
		f.Add(data, []byte(nil), "", true, true)
		f.Add([]byte(nil), data, "", true, false)
	})
	f.Fuzz(func(t *testing.T, ofMachine, ofOthers []byte, failure string, running, deleting bool) {
		h := newAbsurd(t, ofMachine, ofOthers, running, deleting)
		if failure != "" {
			for _, method := range []fake.Method{fake.CreateMachine, fake.GetMachineStatus, fake.DeleteMachine} {
				h.Driver.FailWith(method, errors.New(failure))
			}
		}
		const passes = 8
		for range passes {
			absurd.Within("a pass", func() {
				_, _ = h.Reconciler.Reconcile(t.Context(), h.Request()) // errors are allowed
				h.Call()
			})
			h.Clock.Step(30 * time.Second)
		}
		h.checkAbsurd(t, running)
	})
}

// absurdHarness is a harness with distorted objects.
type absurdHarness struct {
	*harness
	given *v1alpha1.Machine
	// desired reports that neither the Machine nor its node was deleted.
	desired bool
}

// newAbsurd creates a harness with a new Machine or, if running is true, with a Machine that has a VM and a node.
func newAbsurd(t *testing.T, ofMachine, ofOthers []byte, running, deleting bool) *absurdHarness {
	clock := testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	h := &harness{Harness: &lockstep.Harness{T: t, Key: types.NamespacedName{Namespace: namespace, Name: machineName}, Clock: clock}}
	machine, class, secret := newMachine(namespace, clock.Now()), newClass(namespace), newSecret(namespace)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.nodeName()}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}}
	if running {
		inPhase(v1alpha1.MachineRunning)(machine)
		node.Spec.ProviderID = machine.Spec.ProviderID
	}
	if deleting {
		machine.DeletionTimestamp, machine.Finalizers = &machine.CreationTimestamp, []string{v1alpha1.FinalizerMCM}
	}
	absurd.Objects(ofMachine, machine)
	absurd.Objects(ofOthers, class, secret, node)
	nodes := []client.Object{}
	if running {
		nodes = append(nodes, node)
	}
	h.begin(newFake(machine, class, secret), newFake(nodes...))
	h.Driver.Add(fake.VM{ProviderID: foreignVM, Namespace: namespace, Machine: "other", NodeName: "other"})
	if running {
		h.Driver.Add(fake.VM{ProviderID: "sim:///" + machineName, Namespace: namespace, Machine: machineName, NodeName: h.nodeName(), Initialized: true})
	}
	return &absurdHarness{h, machine.DeepCopy(), machine.DeletionTimestamp == nil && node.DeletionTimestamp == nil}
}

func (h *absurdHarness) checkAbsurd(t *testing.T, running bool) {
	t.Helper()
	vms := h.Driver.VMs()
	own := slices.DeleteFunc(slices.Clone(vms), func(vm fake.VM) bool { return vm.ProviderID == foreignVM })
	if len(own) > 1 || len(own) == len(vms) {
		t.Errorf("VMs %+v, want the other Machine's and at most one more", vms)
	}
	if h.desired {
		if running && (len(own) != 1 || h.node() == nil) {
			t.Errorf("the Machine was not deleted, but its VM or node is missing: VMs %+v, node %v; writes:\n%s", vms, h.node(), h.LastWrites())
		}
		if h.gone() {
			t.Fatalf("the Machine was removed without a deletion: %+v; writes:\n%s", h.given, h.LastWrites())
		}
	}
	if h.gone() {
		return
	}
	h.checkDescription(t, h.machine().Status.LastOperation.Description)
}

// checkDescription checks the description that the manager has written to the last operation.
func (h *absurdHarness) checkDescription(t *testing.T, description string) {
	t.Helper()
	if description == h.given.Status.LastOperation.Description {
		return
	}
	if len(description) > 4096 {
		t.Errorf("the description has %d bytes", len(description))
	}
	if strings.ContainsFunc(description, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }) {
		t.Errorf("the description is %q", description)
	}
}
