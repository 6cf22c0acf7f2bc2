package rollout

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestRetained counts the machines that a set keeps beyond its replicas.
func TestRetained(t *testing.T) {
	t.Parallel()
	preserved, over := fixture.PreservedUntil(fixture.Noon.Add(time.Hour)), fixture.PreservedUntil(fixture.Noon.Add(0))
	deleting := func(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} }
	named := fixture.MarkedAt(fixture.Early)
	type machine = []func(*v1alpha1.Machine)
	plain := machine{}
	for name, test := range map[string]struct {
		asked, exist int32
		machines     []machine
		want         int32
	}{
		"none": {2, 3, []machine{plain, plain, plain}, 0},
		"a preserved machine within the replicas": {2, 3, []machine{{preserved}, plain, plain}, 0},
		"more preserved than replicas":            {1, 3, []machine{{preserved}, {preserved}, {preserved}}, 2},
		"a named machine":                         {2, 3, []machine{{preserved, named}, plain, plain}, 1},
		"named, and preserved until now":          {2, 3, []machine{{over, named}, plain, plain}, 0},
		"named after the set's last scaling":      {2, 3, []machine{{preserved, fixture.MarkedAt("2026-01-02T11:45:00Z")}, plain, plain}, 0},
		"named at an invalid time":                {2, 3, []machine{{preserved, fixture.MarkedAt("noon")}, plain, plain}, 0},
		"of several only the surplus":             {2, 3, []machine{{preserved, named}, {preserved, named}, plain}, 1},
		"it is being deleted":                     {2, 3, []machine{{preserved, named, deleting}, plain, plain}, 0},
		"no other machine is retained for it":     {2, 4, []machine{{preserved, named}, plain, {deleting}, {deleting}}, 0},
		"no more than the set reports":            {1, 2, []machine{{preserved}, {preserved}, {preserved}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			set := fixture.Set("a", test.asked, fixture.WithUID, fixture.Reports(test.exist, test.exist))
			set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = fixture.Later
			var machines []*v1alpha1.Machine
			for i, changes := range test.machines {
				m := fixture.Member(set, fmt.Sprintf("m-%d", i))
				for _, change := range changes {
					change(m)
				}
				machines = append(machines, m)
			}
			if got := Retained(set, machines, fixture.Noon); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// TestInPlaceUpdate_OtherSetsAreScaledDown checks that the other sets are scaled down if a Machine cannot be marked.
func TestInPlaceUpdate_OtherSetsAreScaledDown(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(3, fixture.Rolling("1", "0"), fixture.OfClass("b")), sets{fixture.Set("a", 3, fixture.WithUID), fixture.Set("b", 1, fixture.WithUID)}, fixture.Noon)
	f.Named = []Named{{"m-1", fixture.Later, fixture.Member(f.Current, "m-1")}}
	if diff := cmp.Diff([]string{"mark pool-b", "pool-a to 2"}, brief(t, Plan(New(f)))); diff != "" {
		t.Errorf("named in the new set: want - got +\n%s", diff)
	}
	f.Named[0].Machine = fixture.Member(f.Old[0], "m-1")
	if diff := cmp.Diff([]string{"mark pool-a"}, brief(t, Plan(New(f)))); diff != "" {
		t.Errorf("named in the old set: want - got +\n%s", diff)
	}
}

// TestNamedMachines_SetIsScaledUp checks that a set is scaled up although a Machine of it cannot be marked, because it
// then deletes no Machine.
func TestNamedMachines_SetIsScaledUp(t *testing.T) {
	t.Parallel()
	d := fixture.Deployment(3, fixture.Rolling("1", "0"), fixture.OfClass("b"))
	f := NewFacts(d, sets{fixture.Set("a", 2, fixture.WithUID), fixture.Set("b", 1, fixture.WithUID)}, fixture.Noon)
	f.Named = []Named{{"m-1", fixture.Later, fixture.Member(f.Current, "m-1")}}
	if diff := cmp.Diff([]string{"mark pool-b", "pool-b to 2"}, brief(t, Plan(New(f)))); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestMachineSet_KeepsRecordedSizeUntilScaled checks that a set that was not scaled down keeps the record of its
// former size. In a rollout, these records show that the deployment was scaled.
func TestMachineSet_KeepsRecordedSizeUntilScaled(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(4, fixture.Rolling("1", "0"), fixture.OfClass("b")), sets{fixture.Set("a", 6, fixture.WithUID, fixture.ScaledFor(8, 9)), fixture.Set("b", 3, fixture.WithUID, fixture.ScaledFor(8, 9))}, fixture.Noon)
	f.Named = []Named{{"m-1", fixture.Later, fixture.Member(f.Old[0], "m-1")}}
	for _, op := range Plan(New(f)) {
		if op.Set != f.Old[0] || op.Action == Mark {
			continue
		}
		if op.Action != Refresh {
			t.Errorf("the old set: %s", op.Action)
		}
		if got := op.Next.Annotations[v1alpha1.AnnotationKeyDesiredReplicas]; got != "8" {
			t.Errorf("the set was recorded as scaled for %s", got)
		}
	}
}

// TestMachineSet_ScalingIsRecordedOnlyWhenScaled checks that a set does not get the time of a scaling before it
// is scaled. Otherwise, if a mark was written but not confirmed, the set would delete the Machine and replace
// it.
func TestMachineSet_ScalingIsRecordedOnlyWhenScaled(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"scaled before": fixture.Early, "never scaled before": ""} {
		t.Run(name, func(t *testing.T) {
			f := NewFacts(fixture.Deployment(2, fixture.OfClass("a"), func(d *v1alpha1.MachineDeployment) {
				metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, fixture.Later)
				metav1.SetMetaDataAnnotation(&d.ObjectMeta, "example.com/other", "new")
			}), sets{fixture.Set("a", 3, fixture.WithUID)}, fixture.Noon)
			if before != "" {
				f.Current.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = before
			}
			f.Named = []Named{{"m-1", fixture.Later, fixture.Member(f.Current, "m-1")}}
			for _, op := range Plan(New(f)) {
				if op.Next == nil {
					continue
				}
				if got, set := op.Next.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]; got != before || set && got == "" {
					t.Errorf("%s sets %q, want %q", op.Action, got, before)
				}
				if got := op.Next.Annotations["example.com/other"]; got != "new" {
					t.Errorf("%s does not copy the other annotation", op.Action)
				}
			}
		})
	}
}
