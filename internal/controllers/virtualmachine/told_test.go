package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestAStaleCacheTellsNothingTwice: a pass that does not see yet what the one before it has
// written says nothing, and the next Pod is news again.
func TestAStaleCacheTellsNothingTwice(t *testing.T) {
	events := record.NewFakeRecorder(10)
	c := &Controller{Options: Options{Events: events}, given: newAddressBook(), attempts: newAttempts(), reports: newReports(), told: newTold(), streams: newStreams()}
	is := func(reason, message string) *v1alpha1.VirtualMachine {
		vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"}}
		vm.Status.NodeName = "host-1"
		vm.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: reason, Message: message}}
		return vm
	}
	pod := func(uid types.UID) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}} }
	creating := is(reasonCreating, "Creating pod a-1.")
	c.explain(creating, is(reasonRunning, ""), pod("1"))
	c.explain(creating, is(reasonRunning, "paused"), pod("1"))
	if len(events.Events) != 1 {
		t.Fatalf("%d events of one start", len(events.Events))
	}
	c.explain(creating, is(reasonRunning, ""), pod("2"))
	if len(events.Events) != 2 {
		t.Errorf("%d events of two starts", len(events.Events))
	}
	c.forget(types.NamespacedName{Namespace: "n", Name: "a"})
	c.explain(creating, is(reasonRunning, ""), pod("2"))
	if len(events.Events) != 3 {
		t.Errorf("%d events: a VM of the same name is another one", len(events.Events))
	}
}
