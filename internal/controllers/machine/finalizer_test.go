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
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// refusedClass is a world with a Machine in deletion whose class the driver does not take, so
// that there never was a VM.
func refusedClass(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	for _, method := range []instance.Method{instance.MethodStatus, instance.MethodCreate, instance.MethodDelete} {
		w.driver.fails(method, slices.Repeat([]codes.Code{codes.InvalidArgument}, 99)...)
	}
	w.declare()
	w.settle()
	w.settleAfter(10 * time.Minute)
	w.delete()
	w.settle()
	w.settleAfter(10 * time.Minute)
	if w.gone() || !strings.Contains(w.machine().Status.LastOperation.Description, "InvalidArgument") {
		t.Fatal("the driver was to refuse the deletion")
	}
	return w
}

// TestAClassMayBeCorrectedDuringADeletion: the deletion goes on at once.
func TestAClassMayBeCorrectedDuringADeletion(t *testing.T) {
	w := refusedClass(t)
	clear(w.driver.errors)
	w.settle()
	if w.gone() {
		t.Fatal("the driver is asked again although nothing changed")
	}
	change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) {
		c.ProviderSpec = runtime.RawExtension{Raw: []byte(`{"corrected":true}`)}
		c.Generation++ // as an API server does
	})
	w.settle()
	if !w.gone() {
		t.Errorf("the Machine stays: %s", w.machine().Status.LastOperation.Description)
	}
}

// TestTheFinalizerMayBeRemoved: by the command that explain gives. Nothing is left that works
// on the Machine, and one of the same name begins anew.
func TestTheFinalizerMayBeRemoved(t *testing.T) {
	w := refusedClass(t)
	drop := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := w.control.Patch(t.Context(), w.machine(), drop); err != nil {
		t.Fatal(err)
	}
	if !w.gone() {
		t.Fatal("the Machine stays")
	}
	w.writes, w.driver.calls = nil, nil
	if result := w.settleAfter(time.Hour); result.RequeueAfter != 0 || len(w.writes) != 0 || len(w.driver.calls) != 0 {
		t.Errorf("afterwards the next pass is due in %v, with the calls %v and the writes\n%s", result.RequeueAfter, w.driver.calls, w.said())
	}
	clear(w.driver.errors)
	w.running()
}
