package machineset

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestOtherWordsDoNotWakeASet: its controller writes them after each failure whose text is new, and
// would try again at once, and so on.
func TestOtherWordsDoNotWakeASet(t *testing.T) {
	failing := func(set *v1alpha1.MachineSet) {
		set.ResourceVersion = "7"
		set.Status.LastOperation.LastUpdateTime = metav1.NewTime(noon)
		set.Status.Conditions = []v1alpha1.MachineSetCondition{*isTrue(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "connection to port 7000 reset", noon)}
	}
	for reason, test := range map[string]struct {
		change func(*v1alpha1.MachineSet)
		want   bool
	}{
		"the same failure in other words": {func(set *v1alpha1.MachineSet) {
			set.ResourceVersion, set.Status.Conditions[0].Message = "8", "connection to port 7001 reset"
			set.Status.LastOperation.LastUpdateTime = metav1.NewTime(noon.Add(time.Minute))
		}, false},
		"another failure": {func(set *v1alpha1.MachineSet) {
			set.ResourceVersion, set.Status.Conditions[0].Reason = "8", "FailedDelete"
		}, true},
		"no failure any more":          {func(set *v1alpha1.MachineSet) { set.ResourceVersion, set.Status.Conditions = "8", nil }, true},
		"a number of its status":       {func(set *v1alpha1.MachineSet) { set.ResourceVersion, set.Status.Replicas = "8", 1 }, true},
		"its spec":                     {func(set *v1alpha1.MachineSet) { set.ResourceVersion, set.Spec.Replicas = "8", 1 }, true},
		"an annotation":                {func(set *v1alpha1.MachineSet) { set.ResourceVersion, set.Annotations = "8", map[string]string{"a": ""} }, true},
		"nothing: it is only resynced": {func(*v1alpha1.MachineSet) {}, true},
	} {
		t.Run(reason, func(t *testing.T) {
			was, is := newSet(3, failing), newSet(3, failing, test.change)
			kept := is.DeepCopy()
			if got := relevantChange().Update(event.UpdateEvent{ObjectOld: was, ObjectNew: is}); got != test.want {
				t.Errorf("it wakes the set: %t", got)
			}
			if diff := cmp.Diff(kept, is); diff != "" {
				t.Errorf("the cache's object is changed:\n%s", diff)
			}
		})
	}
	if !relevantChange().Create(event.CreateEvent{Object: newSet(1)}) || !relevantChange().Delete(event.DeleteEvent{Object: newSet(1)}) {
		t.Error("a set that comes or goes does not wake")
	}
}
