package machineset

import (
	"math/rand/v2"
	"slices"
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
			if got := news().Update(event.UpdateEvent{ObjectOld: was, ObjectNew: is}); got != test.want {
				t.Errorf("it wakes the set: %t", got)
			}
			if diff := cmp.Diff(kept, is); diff != "" {
				t.Errorf("the cache's object is changed:\n%s", diff)
			}
		})
	}
	if !news().Create(event.CreateEvent{Object: newSet(1)}) || !news().Delete(event.DeleteEvent{Object: newSet(1)}) {
		t.Error("a set that comes or goes does not wake")
	}
}

// TestTheOrderOfTheCacheDoesNotMatter: what is tried first, and what is left for the next burst, is
// the same in each pass, and so is the failure that a status tells.
func TestTheOrderOfTheCacheDoesNotMatter(t *testing.T) {
	const many = burst + 20
	tainted := newSet(many, withTemplate(func(spec *v1alpha1.MachineSpec) { spec.NodeTemplateSpec.Labels = map[string]string{"new": "label"} }))
	going := newSet(many, func(set *v1alpha1.MachineSet) { set.DeletionTimestamp = &metav1.Time{Time: noon} })
	for reason, f := range map[string]facts{
		"what changes":           {set: tainted, owned: machines(many)},
		"what is adopted":        {set: newSet(many), strays: machines(many, stray)},
		"what is released":       {set: newSet(0), owned: machines(many, unlabelled)},
		"what goes with its set": {set: going, owned: machines(many)},
		"what stays without it":  {set: going, owned: machines(many), orphaned: true},
		"what is too many":       {set: newSet(0), owned: machines(many)},
	} {
		t.Run(reason, func(t *testing.T) {
			f.certain, f.now = true, noon
			var want []string
			for seed := range uint64(5) {
				shuffle := rand.New(rand.NewPCG(seed, 0))
				f.owned, f.strays = slices.Clone(f.owned), slices.Clone(f.strays)
				shuffle.Shuffle(len(f.owned), func(i, j int) { f.owned[i], f.owned[j] = f.owned[j], f.owned[i] })
				shuffle.Shuffle(len(f.strays), func(i, j int) { f.strays[i], f.strays[j] = f.strays[j], f.strays[i] })
				var got []string
				for _, op := range plan(f) {
					if op.machine != nil {
						got = append(got, string(op.action)+" "+op.machine.Name)
					}
				}
				if want == nil {
					want = got
				}
				if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
					t.Fatalf("with seed %d: first + now -\n%s", seed, diff)
				}
			}
		})
	}
}
