package scale

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestScaleDown(t *testing.T) {
	t.Parallel()
	scaledAt := func(at time.Time) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: at.Format(time.RFC3339)}
		}
	}
	failed := phase(v1alpha1.MachineFailed)
	for reason, test := range map[string]struct {
		set     *v1alpha1.MachineSet
		kept    []*v1alpha1.Machine
		surplus int
		want    []string
	}{
		"no surplus, nothing is deleted": {newSet(3), machines(3), 0, nil},
		"the surplus is deleted in the order of rank": {
			newSet(1), []*v1alpha1.Machine{machine("a"), machine("b", phase(v1alpha1.MachinePending)), machine("c", failed)}, 2,
			[]string{"c", "b"},
		},
		"machines being deleted are not chosen": {
			newSet(1), []*v1alpha1.Machine{machine("a", deleting), machine("c"), machine("d")}, 1, []string{"c"},
		},
		"Terminating machines that are not being deleted come first": {
			newSet(1), []*v1alpha1.Machine{machine("a"), machine("b", phase(v1alpha1.MachineTerminating))}, 1, []string{"b"},
		},
		"failed machines are deleted without a surplus": {
			newSet(2), []*v1alpha1.Machine{machine("a"), machine("b", failed)}, 0, []string{"b"},
		},
		"failed machines that are preserved stay": {
			newSet(2), []*v1alpha1.Machine{machine("a", failed, preservedUntil(noon.Add(time.Second))), machine("b")}, 0, nil,
		},
		"failed machines whose preservation expired are deleted": {
			newSet(2), []*v1alpha1.Machine{machine("a", failed, preservedUntil(noon)), machine("b")}, 0, []string{"a"},
		},
		"failed machines to be preserved stay before the expiry is set": {
			newSet(4),
			[]*v1alpha1.Machine{
				machine("a", failed, annotated(v1alpha1.AnnotationKeyPreserve, "now")),
				machine("b", failed, annotated(v1alpha1.AnnotationKeyPreserve, "when-failed")),
				machine("c", failed, annotated(v1alpha1.AnnotationKeyPreserve, "auto-preserved")),
				machine("d", failed, annotated(v1alpha1.AnnotationKeyLastAppliedPreserve, "when-failed")),
			}, 0, nil,
		},
		"invalid and withdrawn requests preserve nothing": {
			newSet(3),
			[]*v1alpha1.Machine{
				machine("a", failed, annotated(v1alpha1.AnnotationKeyPreserve, "false")),
				machine("b", failed, annotated(v1alpha1.AnnotationKeyPreserve, "please")),
				machine("c", failed, annotated(v1alpha1.AnnotationKeyLastAppliedPreserve, "false"), annotated(v1alpha1.AnnotationKeyPreserve, "now")),
			}, 0, []string{"a", "b", "c"},
		},
		"a preserved machine stays without replicas": {
			newSet(0),
			[]*v1alpha1.Machine{
				machine("a", failed, preservedUntil(noon.Add(time.Hour))), machine("b"),
				machine("c", annotated(v1alpha1.AnnotationKeyPreserve, "now")), machine("d", annotated(v1alpha1.AnnotationKeyPreserve, "when-failed")),
			}, 4, []string{"b", "d"},
		},
		"a preserved machine counts as one of the replicas": {
			newSet(1), []*v1alpha1.Machine{machine("a"), machine("b", failed, preservedUntil(noon.Add(time.Hour)))}, 1, []string{"a"},
		},
		"a named preserved machine stays, and no other is deleted instead": {
			newSet(1, scaledAt(noon)),
			[]*v1alpha1.Machine{machine("a", failed, preservedUntil(noon.Add(time.Hour)), marked(noon)), machine("b")}, 1, nil,
		},
		"a named preserved machine that is being deleted does not count": {
			newSet(1, scaledAt(noon)),
			[]*v1alpha1.Machine{
				machine("a", deleting, preservedUntil(noon.Add(time.Hour)), marked(noon)),
				machine("b"), machine("c"),
			}, 1, []string{"b"},
		},
		"named before the last change of replicas": {
			newSet(2, scaledAt(noon)), []*v1alpha1.Machine{machine("a"), machine("b", marked(noon.Add(-time.Second)))}, 0, []string{"b"},
		},
		"named and surplus: only the named goes": {
			newSet(2, scaledAt(noon)), []*v1alpha1.Machine{machine("a", failed, preservedUntil(noon.Add(time.Hour))), machine("b"), machine("c", marked(noon))}, 1,
			[]string{"c"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			got := scaleDown(Facts{Set: test.set, Now: noon}, test.kept, test.surplus)
			if diff := cmp.Diff(test.want, chosen(got)); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
			for _, v := range got {
				if v.Reason == "" {
					t.Errorf("no reason for %s", v.Machine.Name)
				}
			}
		})
	}
}

// chosen returns the names of the deleted Machines.
func chosen(deletions []Operation) []string {
	var names []string
	for _, v := range deletions {
		names = append(names, v.Machine.Name)
	}
	return names
}

// TestScaleDown_MachinesUpdatedInPlace checks that Machines that moved from one set of a deployment to another are not deleted
// until their new set counts them, and that no other Machines are deleted instead. With another strategy or
// without a deployment, they are treated like any other Machine.
func TestScaleDown_MachinesUpdatedInPlace(t *testing.T) {
	t.Parallel()
	updated := labelled(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful)
	set := newSet(0, func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: noon.Format(time.RFC3339)}
	})
	kept := []*v1alpha1.Machine{
		machine("a", updated, phase(v1alpha1.MachineFailed)), machine("b", updated, marked(noon)), machine("c", updated), machine("d"),
	}
	inPlace := newParent(0, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, "")
	for reason, test := range map[string]struct {
		parent  *v1alpha1.MachineDeployment
		surplus int
		want    []string
	}{
		"in place":               {inPlace, 4, []string{"d"}},
		"none but those moved":   {inPlace, 3, nil},
		"no longer in place":     {newParent(0, v1alpha1.RollingUpdateMachineDeploymentStrategyType, ""), 4, []string{"b", "a", "c", "d"}},
		"there is no deployment": {nil, 4, []string{"b", "a", "c", "d"}},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			got := scaleDown(Facts{Set: set, Parent: test.parent, Now: noon}, kept, test.surplus)
			if diff := cmp.Diff(test.want, chosen(got)); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestScaleDown_MachineUpdatedBeforeMove checks that a Machine whose node was just updated belongs to the old set until the
// deployment moves it, and is the last one that this set deletes. In the newest set, all Machines were updated,
// so this has no effect.
func TestScaleDown_MachineUpdatedBeforeMove(t *testing.T) {
	t.Parallel()
	updated := func(m *v1alpha1.Machine) {
		m.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Reason: v1alpha1.UpdateSuccessful}}
	}
	kept := []*v1alpha1.Machine{
		machine("a", updated, age(time.Hour)), machine("b", age(time.Minute)), machine("c", phase(v1alpha1.MachineInPlaceUpdateSuccessful)),
	}
	revision := func(now string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			set.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: now}
		}
	}
	inPlace := newParent(2, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, "")
	inPlace.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "2"}
	rolling := newParent(2, v1alpha1.RollingUpdateMachineDeploymentStrategyType, "")
	rolling.Annotations = inPlace.Annotations
	for reason, test := range map[string]struct {
		set    *v1alpha1.MachineSet
		parent *v1alpha1.MachineDeployment
		want   []string
	}{
		"in the old set":                                   {newSet(2, revision("1")), inPlace, []string{"b"}},
		"in the newest set":                                {newSet(2, revision("2")), inPlace, []string{"a"}},
		"in an old set of a rolling update":                {newSet(2, revision("1")), rolling, []string{"a"}},
		"in an old set, but two are deleted, oldest first": {newSet(1, revision("1")), inPlace, []string{"b", "a"}},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			got := scaleDown(Facts{Set: test.set, Parent: test.parent, Now: noon}, kept, len(kept)-int(test.set.Spec.Replicas))
			if diff := cmp.Diff(test.want, chosen(got)); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestScaleDown_Reasons(t *testing.T) {
	t.Parallel()
	set := newSet(1, func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: noon.Format(time.RFC3339)}
	})
	broken := machine("broken", phase(v1alpha1.MachineFailed), annotated(v1alpha1.AnnotationKeyMachinePriority, "4"))
	broken.Status.LastOperation.Description = "the node never joined"
	worse := machine("worse", phase(v1alpha1.MachineFailed), annotated(v1alpha1.AnnotationKeyMachinePriority, "-1"))
	worse.Status.LastOperation.Description = "no such image"
	kept := []*v1alpha1.Machine{
		machine("small", annotated(v1alpha1.AnnotationKeyMachinePriority, "0")), machine("named", marked(noon)), broken, worse,
	}
	got := map[string]string{}
	for _, v := range scaleDown(Facts{Set: set, Now: noon}, kept, 2) {
		got[v.Machine.Name] = v.Reason
	}
	want := map[string]string{
		"small":  "2 surplus machines, 1 desired",
		"named":  "it was named for deletion",
		"broken": "it failed: the node never joined",
		"worse":  "it failed: no such image", // also as one of the surplus: its cause must outlive it
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestScaleDown_NoSortingWithoutSurplus checks that Machines are not sorted without a surplus, because idle
// sets are reconciled often and may be large.
func TestScaleDown_NoSortingWithoutSurplus(t *testing.T) {
	f, kept := Facts{Set: newSet(5000), Now: noon}, machines(4999)
	kept = append(kept, machine("failed", phase(v1alpha1.MachineFailed)))
	if got := scaleDown(f, kept, 0); len(got) != 1 || got[0].Machine.Name != "failed" {
		t.Fatalf("%d deletions", len(got))
	}
	cost := testing.AllocsPerRun(5, func() { scaleDown(f, kept[:4999], 0) })
	if cost > 0 {
		t.Errorf("a pass over %d machines without deletions makes %.0f allocations", len(kept)-1, cost)
	}
}

// TestScaleDown_MovedMachineIsNotPreferred checks that a named Machine that was moved by an in-place update, and
// must not be deleted, does not prevent the deletion of another one.
func TestScaleDown_MovedMachineIsNotPreferred(t *testing.T) {
	t.Parallel()
	came := labelled(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful)
	set := newSet(1)
	set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: noon.Format(time.RFC3339)}
	f := Facts{Set: set, Now: noon, Parent: newParent(1, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, "")}
	kept := []*v1alpha1.Machine{machine("came", came, marked(noon), preservedUntil(noon.Add(time.Hour))), machine("other")}
	if diff := cmp.Diff([]string{"other"}, chosen(scaleDown(f, kept, 2))); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}
