package change

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var noon = fixture.Noon

// state is a MachineDeployment of class b with two MachineSets: revision 1 of class a, and revision 2 of class b.
type state struct {
	deployment *v1alpha1.MachineDeployment
	sets       []v1alpha1.MachineSet
}

func newState(changes ...func(*state)) *state {
	g := &state{deployment: fixture.Deployment(3, fixture.OfClass("b"))}
	g.sets = []v1alpha1.MachineSet{
		*fixture.Set("a", 2, fixture.WithUID, fixture.OfRevision("1")), *fixture.Set("b", 2, fixture.WithUID, fixture.OfRevision("2")),
	}
	for _, change := range changes {
		change(g)
	}
	return g
}

func declared(does ...func(*v1alpha1.MachineDeployment)) func(*state) {
	return func(g *state) {
		for _, do := range does {
			do(g.deployment)
		}
	}
}

func (g *state) key() client.ObjectKey { return client.ObjectKeyFromObject(g.deployment) }

func (g *state) facts() rollout.Facts { return rollout.FactsOf(g.deployment, g.sets, nil) }

// server returns a fake client that contains the objects of the state.
func (g *state) server(t *testing.T) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(g.deployment).WithStatusSubresource(g.deployment)
	for i := range g.sets {
		builder.WithObjects(&g.sets[i])
	}
	return builder.Build()
}

func rollbackPending(d *v1alpha1.MachineDeployment) {
	d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: 1}
}

func lacksInPlace(d *v1alpha1.MachineDeployment) {
	d.Spec.Strategy.Type = v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
}

func of(generation int64) func(*v1alpha1.MachineDeployment) {
	return func(d *v1alpha1.MachineDeployment) { d.Generation = generation }
}

// TestUndo_Result checks how the result of a rollback to revision 1 is reported.
func TestUndo_Result(t *testing.T) {
	for name, tc := range map[string]struct {
		now  func(*state)
		done bool
		want string
	}{
		"not seen yet":          {declared(of(2)), false, ""},
		"not processed yet":     {declared(of(3), rollbackPending), false, ""},
		"rolled back":           {declared(of(4), fixture.OfClass("a")), true, ""},
		"revision is gone":      {func(g *state) { g.deployment.Generation, g.sets = 4, g.sets[1:] }, false, "machine set pool-a of revision 1 is gone"},
		"changed since":         {declared(of(4), fixture.OfClass("c")), false, "changed in the meantime"},
		"paused meanwhile":      {declared(of(3), rollbackPending, fixture.Paused), false, "when it is resumed"},
		"invalidated meanwhile": {declared(of(3), rollbackPending, lacksInPlace), false, "until its spec is corrected: spec.strategy.inPlaceUpdate"},
	} {
		t.Run(name, func(t *testing.T) {
			then := newState(declared(of(3), rollbackPending))
			rollback := Rollback{Revision: 1, target: &then.sets[0], Deployment: then.deployment}
			done, err := rollback.Done(newState(tc.now).facts())
			if done != tc.done || (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Done() = %t, %v; want %t, %q", done, err, tc.done, tc.want)
			}
		})
	}
}

// TestInvalidChange_IsRejected checks the errors for changes that would have no effect, or take effect much later.
func TestInvalidChange_IsRejected(t *testing.T) {
	undo := func(c client.Client, g *state) error {
		_, err := Undo(t.Context(), c, g.key(), 0)
		return err
	}
	restart := func(c client.Client, g *state) error { return errorOf(Restart(t.Context(), c, g.key(), noon)) }
	goes := declared(func(d *v1alpha1.MachineDeployment) {
		d.DeletionTimestamp, d.Finalizers = &metav1.Time{Time: noon}, []string{v1alpha1.FinalizerMCM}
	})
	for name, tc := range map[string]struct {
		given func(*state)
		do    func(client.Client, *state) error
		want  string
	}{
		"undo":                         {declared(), undo, ""},
		"undo the undo":                {declared(rollbackPending), undo, ""},
		"undo while paused":            {declared(fixture.Paused), undo, "is paused and cannot be rolled back"},
		"undo an invalid spec":         {declared(lacksInPlace), undo, "cannot be rolled back until its spec is corrected: spec.strategy.inPlaceUpdate"},
		"undo with a selector for all": {declared(func(d *v1alpha1.MachineDeployment) { d.Spec.Selector = &metav1.LabelSelector{} }), undo, "spec.selector: selects all machines"},
		"undo with a selector for no set": {declared(fixture.OfClass("new"), func(d *v1alpha1.MachineDeployment) {
			d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: v1alpha1.DefaultMachineDeploymentUniqueLabelKey, Operator: metav1.LabelSelectorOpDoesNotExist}}
		}), undo, "does not match the machine set to be created"},
		"undo during deletion":          {goes, undo, "is being deleted"},
		"restart":                       {declared(), restart, ""},
		"restart with pending rollback": {declared(rollbackPending), restart, "a rollback to revision 1 is pending"},
		"hint to cancel the rollback":   {declared(rollbackPending), restart, `patch machinedeployments.machine.sapcloud.io pool --type merge -p '{"spec":{"rollbackTo":null}}'`},
		"restart during deletion":       {goes, restart, "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newState(tc.given)
			c := g.server(t)
			err := tc.do(c, g)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if now := read(t, c, g); tc.want != "" && !equality.Semantic.DeepEqual(now.Spec, g.deployment.Spec) {
				t.Errorf("changed to %+v", now.Spec)
			}
		})
	}
}

func read(t *testing.T, c client.Reader, g *state) *v1alpha1.MachineDeployment {
	t.Helper()
	now, err := rollout.Get(t.Context(), c, g.key())
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// meanwhile returns a client that calls do before each write.
func meanwhile(live client.WithWatch, do func()) client.WithWatch {
	return interceptor.NewClient(live, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
		do()
		return c.Patch(ctx, object, patch, opts...)
	}})
}

// TestChange_IsReevaluatedOnConflict checks that a change is evaluated again after a conflict, since the other
// write can make it invalid.
func TestChange_IsReevaluatedOnConflict(t *testing.T) {
	g := newState()
	live, first := g.server(t), true
	c := meanwhile(live, func() {
		if first {
			first = false
			if _, err := Undo(t.Context(), live, g.key(), 1); err != nil {
				t.Fatal(err)
			}
		}
	})
	if _, err := Restart(t.Context(), c, g.key(), noon); err == nil || !strings.Contains(err.Error(), "would undo the restart") {
		t.Errorf("Restart() = %v", err)
	}
}

// TestUndo_SetsRevision checks that Undo requests the revision that it has checked, and requests nothing if the
// template is already that of the revision.
func TestUndo_SetsRevision(t *testing.T) {
	g := newState()
	c := g.server(t)
	if _, err := Undo(t.Context(), c, g.key(), 2); !errors.Is(err, ErrUnchanged) || read(t, c, g).Spec.RollbackTo != nil {
		t.Errorf("Undo() = %v, spec.rollbackTo %v", err, read(t, c, g).Spec.RollbackTo)
	}
	_, err := Undo(t.Context(), c, g.key(), 0)
	if rollback := read(t, c, g).Spec.RollbackTo; err != nil || rollback == nil || rollback.Revision != 1 {
		t.Errorf("Undo() = %v, spec.rollbackTo %v", err, rollback)
	}
}

// TestChange_IsRetriedOnConflict checks that changes are retried when the manager updates the status in the meantime.
func TestChange_IsRetriedOnConflict(t *testing.T) {
	g := newState()
	live, disturb := g.server(t), 0
	c := meanwhile(live, func() {
		if disturb > 0 {
			disturb--
			now := read(t, live, g)
			now.Status.AvailableReplicas = int32(disturb + 10)
			if err := live.Status().Update(t.Context(), now); err != nil {
				t.Fatal(err)
			}
		}
	})
	for i, step := range []struct {
		disturb int
		do      func() error
		want    string
	}{
		{3, func() error { return errorOf(Pause(t.Context(), c, g.key())) }, ""},
		{0, func() error { return errorOf(Pause(t.Context(), c, g.key())) }, "is already paused"},
		{0, func() error { return errorOf(Restart(t.Context(), c, g.key(), noon)) }, "resume pool"},
		{2, func() error { return errorOf(Resume(t.Context(), c, g.key())) }, ""},
		{0, func() error { return errorOf(Resume(t.Context(), c, g.key())) }, "is not paused"},
		{1, func() error { return errorOf(Restart(t.Context(), c, g.key(), noon)) }, ""},
		{0, func() error { return errorOf(Restart(t.Context(), c, g.key(), noon.Add(time.Millisecond))) }, "within this second"},
	} {
		disturb = step.disturb
		err := step.do()
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("step %d: got %v, want %q", i, err, step.want)
		}
		if disturb != 0 {
			t.Errorf("step %d: %d disturbances did not happen", i, disturb)
		}
	}
	if got := read(t, c, g).Spec.Template.Annotations[AnnotationRestarted]; got != noon.UTC().Format(time.RFC3339) {
		t.Errorf("restarted at %q", got)
	}
}

// errorOf returns the error of a change.
func errorOf(_ *v1alpha1.MachineDeployment, err error) error { return err }
