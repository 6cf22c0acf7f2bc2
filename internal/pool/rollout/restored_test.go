package rollout

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestPlan_RestoredDeploymentWaits checks that a restored deployment creates and scales no sets until the sets that
// have its Machines exist, and none of them waits.
func TestPlan_RestoredDeploymentWaits(t *testing.T) {
	t.Parallel()
	waitsUntil := func(object metav1.Object, after time.Duration) {
		annotations := maps.Clone(object.GetAnnotations())
		annotations[v1alpha1.AnnotationKeyAwaitsRestoreUntil] = fixture.Noon.Add(after).Format(time.RFC3339)
		object.SetAnnotations(annotations)
	}
	waits := func(set *v1alpha1.MachineSet) { waitsUntil(set, time.Minute) }
	waited := func(set *v1alpha1.MachineSet) { waitsUntil(set, 0) }
	type (
		deploymentChange = func(*v1alpha1.MachineDeployment)
		sets             = []*v1alpha1.MachineSet
	)
	restored := func(d *v1alpha1.MachineDeployment) {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyRevision, "2")
		d.Status.ObservedGeneration = 1
		waitsUntil(d, time.Minute)
	}
	unobserved := func(d *v1alpha1.MachineDeployment) { d.Status = v1alpha1.MachineDeploymentStatus{} }
	late := func(d *v1alpha1.MachineDeployment) { waitsUntil(d, 0) }
	recreate := fixture.Strategy(v1alpha1.RecreateMachineDeploymentStrategyType, "", "")
	released := func(d *v1alpha1.MachineDeployment) { delete(d.Annotations, v1alpha1.AnnotationKeyAwaitsRestoreUntil) }
	orphan := fixture.Set("b", 3, fixture.OfRevision("2"))
	orphan.OwnerReferences = nil
	for name, tc := range map[string]struct {
		changes []deploymentChange
		sets    sets
		orphans sets
		waits   bool
		actions []Action
	}{
		"no set yet":                      {nil, nil, nil, true, nil},
		"its set, not adopted yet":        {nil, nil, sets{orphan}, true, []Action{Adopt}},
		"its set":                         {nil, sets{fixture.Set("b", 3, fixture.OfRevision("2"))}, nil, false, []Action{EndRestore}},
		"its set, no status yet":          {[]deploymentChange{unobserved}, sets{fixture.Set("b", 3, fixture.OfRevision("2"))}, nil, true, nil},
		"its set waits for machines":      {nil, sets{fixture.Set("b", 3, fixture.OfRevision("2"), waits)}, nil, true, nil},
		"only an old set":                 {nil, sets{fixture.Set("a", 3)}, nil, true, nil},
		"during a rollout, one of two":    {nil, sets{fixture.Set("b", 1, fixture.OfRevision("2"))}, nil, true, nil},
		"during a rollout":                {nil, sets{fixture.Set("a", 2), fixture.Set("b", 1, fixture.OfRevision("2"))}, nil, false, []Action{EndRestore}},
		"during a rollout, one waits":     {nil, sets{fixture.Set("a", 2, waits), fixture.Set("b", 1, fixture.OfRevision("2"))}, nil, true, nil},
		"recreated":                       {[]deploymentChange{recreate}, sets{fixture.Set("b", 0, fixture.OfRevision("2"))}, nil, false, []Action{EndRestore}},
		"not restored, but its set waits": {[]deploymentChange{released}, sets{fixture.Set("b", 3, fixture.OfRevision("2"), waits)}, nil, true, nil},
		"its set waited too long":         {nil, sets{fixture.Set("b", 3, fixture.OfRevision("2"), waited)}, nil, false, []Action{EndRestore}},
		"a set that waits is deleted":     {[]deploymentChange{released}, sets{fixture.Set("b", 3, fixture.OfRevision("2"), waits, fixture.Leaving)}, nil, false, []Action{Create}},
		"the time is over":                {[]deploymentChange{late}, nil, nil, false, []Action{EndRestore}},
		"the time is over, no status yet": {[]deploymentChange{late, unobserved}, nil, nil, true, nil},
		"after the wait":                  {[]deploymentChange{released}, nil, nil, false, []Action{Create}},
	} {
		t.Run(name, func(t *testing.T) {
			changes := append([]deploymentChange{fixture.Rolling("1", "0"), fixture.OfClass("b"), restored}, tc.changes...)
			f := NewFacts(fixture.Deployment(3, changes...), tc.sets, fixture.Noon)
			f.Orphans = tc.orphans
			r := New(f)
			var actions []Action
			for _, op := range Plan(r) {
				actions = append(actions, op.Action)
			}
			if diff := cmp.Diff(tc.actions, actions); diff != "" || r.AwaitsRestore() != "" != tc.waits {
				t.Errorf("waits for %q; actions, want - got +\n%s", r.AwaitsRestore(), diff)
			}
			if in := r.RestoreEndsIn(); tc.waits && in != time.Minute && in != 0 {
				t.Errorf("the wait is over in %s", in)
			}
		})
	}
}

// TestRestoredDeployment_DoesNotPassOnItsWait checks that sets do not get the annotations of a wait.
func TestRestoredDeployment_DoesNotPassOnItsWait(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyAwaitsRestoreUntil, "2026-01-02T12:15:00Z")
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyUID, "uid")
	})
	set := New(NewFacts(deployment, nil, fixture.Noon)).NewSet(3)
	for _, key := range []string{v1alpha1.AnnotationKeyAwaitsRestoreUntil, v1alpha1.AnnotationKeyUID} {
		if _, has := set.Annotations[key]; has {
			t.Errorf("the set has the annotation %s", key)
		}
	}
}

// TestRestoredDeployment_WaitExpires checks when the wait of a restored deployment is over without an event: as soon as
// it, or one of its sets, has waited long enough.
func TestRestoredDeployment_WaitExpires(t *testing.T) {
	t.Parallel()
	const none = time.Duration(-1)
	until := func(object metav1.Object, after time.Duration) {
		annotations := maps.Clone(object.GetAnnotations())
		if after != none {
			annotations[v1alpha1.AnnotationKeyAwaitsRestoreUntil] = fixture.Noon.Add(after).Format(time.RFC3339)
		}
		object.SetAnnotations(annotations)
	}
	for reason, test := range map[string]struct {
		deployment time.Duration
		sets       []time.Duration
		want       time.Duration
	}{
		"nothing waits":           {none, []time.Duration{none, none}, 0},
		"the deployment waits":    {time.Minute, []time.Duration{none}, time.Minute},
		"a set waits":             {none, []time.Duration{none, time.Minute}, time.Minute},
		"the deployment is first": {time.Minute, []time.Duration{time.Hour}, time.Minute},
		"a set is first":          {time.Hour, []time.Duration{2 * time.Minute, time.Minute}, time.Minute},
		"a set has waited":        {time.Hour, []time.Duration{-time.Minute}, time.Hour},
		"a set has just waited":   {time.Hour, []time.Duration{0}, time.Hour},
		"all have waited":         {-time.Minute, []time.Duration{-time.Minute}, 0},
	} {
		f := Facts{Deployment: fixture.Deployment(1), Now: fixture.Noon}
		metav1.SetMetaDataAnnotation(&f.Deployment.ObjectMeta, v1alpha1.AnnotationKeyRevision, "1")
		until(f.Deployment, test.deployment)
		for _, after := range test.sets {
			f.Old = append(f.Old, fixture.Set("a", 1))
			until(f.Old[len(f.Old)-1], after)
		}
		if got := New(f).RestoreEndsIn(); got != test.want {
			t.Errorf("%s: %s, want %s", reason, got, test.want)
		}
	}
}

// TestRestoredDeployment_EventOfResult checks that events distinguish a deployment whose sets exist from one that has
// waited for them too long.
func TestRestoredDeployment_EventOfResult(t *testing.T) {
	t.Parallel()
	for topic, restored := range map[string]sets{
		"Restored":          {fixture.Set("b", 3, fixture.OfRevision("2"))},
		"RestoreIncomplete": {fixture.Set("b", 1, fixture.OfRevision("2"))},
	} {
		deployment := fixture.Deployment(3, fixture.OfClass("b"))
		deployment.Annotations = map[string]string{
			v1alpha1.AnnotationKeyRevision: "2", v1alpha1.AnnotationKeyAwaitsRestoreUntil: fixture.Noon.Format(time.RFC3339),
		}
		deployment.Status.ObservedGeneration = 1
		operations := Plan(New(NewFacts(deployment, restored, fixture.Noon)))
		if len(operations) != 1 || operations[0].Action != EndRestore || operations[0].Topic != topic {
			t.Errorf("want the event %s, got %+v", topic, operations)
		}
	}
}
