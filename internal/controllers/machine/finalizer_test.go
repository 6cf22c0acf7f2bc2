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

// refusedClass returns a harness with a Machine that is being deleted and whose class the driver rejects, so that
// it never had a VM.
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
		t.Fatal("the driver must refuse the deletion in this test")
	}
	return h
}

// TestMachine_DeletionContinuesAfterClassIsCorrected checks that the deletion continues immediately.
func TestMachine_DeletionContinuesAfterClassIsCorrected(t *testing.T) {
	h := refusedClass(t)
	h.Driver.ForgetFailures()
	h.Settle()
	if h.gone() {
		t.Fatal("the driver is called again although nothing changed")
	}
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) {
		c.ProviderSpec = runtime.RawExtension{Raw: []byte(`{"corrected":true}`)}
		c.Generation++ // like an API server
	})
	h.Settle()
	if !h.gone() {
		t.Errorf("the Machine was not removed: %s", h.machine().Status.LastOperation.Description)
	}
}

// TestMachine_FinalizerCanBeRemovedByUser checks that after a user removed the finalizer, nothing is done for the Machine any
// longer, and that a new Machine with the same name works.
func TestMachine_FinalizerCanBeRemovedByUser(t *testing.T) {
	h := refusedClass(t)
	drop := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := h.control.Patch(t.Context(), h.machine(), drop); err != nil {
		t.Fatal(err)
	}
	if !h.gone() {
		t.Fatal("the Machine was not removed")
	}
	h.Writes = nil
	h.Driver.ForgetCalls()
	if result := h.SettleAfter(time.Hour); result.RequeueAfter != 0 || len(h.Writes) != 0 || len(h.methods()) != 0 {
		t.Errorf("next pass in %v, calls %v, writes:\n%s", result.RequeueAfter, h.methods(), h.LastWrites())
	}
	h.Driver.ForgetFailures()
	h.running()
}
