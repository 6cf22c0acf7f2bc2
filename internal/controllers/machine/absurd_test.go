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

// FuzzReconcile: whatever the objects contain and the provider says, passes end, and neither a VM, a
// node nor a Machine is deleted that nobody deleted.
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
				_, _ = h.Reconciler.Reconcile(t.Context(), h.Request()) // an error is fine
				h.Call()
			})
			h.Clock.Step(30 * time.Second)
		}
		h.checkAbsurd(t, running)
	})
}

// absurdHarness is a harness whose objects were distorted.
type absurdHarness struct {
	*harness
	given *v1alpha1.Machine
	// wanted reports whether nobody deleted the Machine, nor its node, which does the same.
	wanted bool
}

// newAbsurd makes a harness of a new Machine, or of one with a VM and a node.
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
		t.Errorf("there are the VMs %+v", vms)
	}
	if h.wanted {
		if running && (len(own) != 1 || h.node() == nil) {
			t.Errorf("nobody deleted the Machine, and there are the VMs %+v and the node %v; writes:\n%s", vms, h.node(), h.LastWrites())
		}
		if h.gone() {
			t.Fatalf("the Machine is gone: %+v; writes:\n%s", h.given, h.LastWrites())
		}
	}
	if h.gone() {
		return
	}
	h.checkDescription(t, h.machine().Status.LastOperation.Description)
}

// checkDescription checks what the manager has written of the last operation.
func (h *absurdHarness) checkDescription(t *testing.T, says string) {
	t.Helper()
	if says == h.given.Status.LastOperation.Description {
		return
	}
	if len(says) > 4096 {
		t.Errorf("the last operation has %d bytes", len(says))
	}
	if strings.ContainsFunc(says, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }) {
		t.Errorf("the last operation is %q", says)
	}
}
