package machine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
)

// refusedClass is a harness with a Machine in deletion whose class the driver does not take, so
// that there never was a VM.
func refusedClass(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t)
	for _, method := range []fake.Method{fake.GetMachineStatus, fake.CreateMachine, fake.DeleteMachine} {
		h.Driver.Fail(method, slices.Repeat([]codes.Code{codes.InvalidArgument}, 99)...)
	}
	h.declare()
	h.Settle()
	h.SettleAfter(10 * time.Minute)
	h.delete()
	h.Settle()
	h.SettleAfter(10 * time.Minute)
	if h.gone() || !strings.Contains(h.machine().Status.LastOperation.Description, "InvalidArgument") {
		t.Fatal("the driver was to refuse the deletion")
	}
	return h
}

// TestAClassMayBeCorrectedDuringADeletion: the deletion goes on at once.
func TestAClassMayBeCorrectedDuringADeletion(t *testing.T) {
	h := refusedClass(t)
	h.Driver.ForgetFailures()
	h.Settle()
	if h.gone() {
		t.Fatal("the driver is asked again although nothing changed")
	}
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) {
		c.ProviderSpec = runtime.RawExtension{Raw: []byte(`{"corrected":true}`)}
		c.Generation++ // as an API server does
	})
	h.Settle()
	if !h.gone() {
		t.Errorf("the Machine stays: %s", h.machine().Status.LastOperation.Description)
	}
}

// TestTheFinalizerMayBeRemoved: by the command that explain gives. Nothing is left that works
// on the Machine, and one of the same name begins anew.
func TestTheFinalizerMayBeRemoved(t *testing.T) {
	h := refusedClass(t)
	drop := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := h.control.Patch(t.Context(), h.machine(), drop); err != nil {
		t.Fatal(err)
	}
	if !h.gone() {
		t.Fatal("the Machine stays")
	}
	h.Writes = nil
	h.Driver.ForgetCalls()
	if result := h.SettleAfter(time.Hour); result.RequeueAfter != 0 || len(h.Writes) != 0 || len(h.methods()) != 0 {
		t.Errorf("afterwards the next pass is due in %v, with the calls %v and the writes\n%s", result.RequeueAfter, h.methods(), h.LastWrites())
	}
	h.Driver.ForgetFailures()
	h.running()
}
