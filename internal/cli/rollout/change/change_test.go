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

// given is a deployment of class b with the sets of revision 1, of class a, and of revision 2.
type given struct {
	deployment *v1alpha1.MachineDeployment
	sets       []v1alpha1.MachineSet
}

func give(changes ...func(*given)) *given {
	g := &given{deployment: fixture.Deployment(3, fixture.OfClass("b"))}
	g.sets = []v1alpha1.MachineSet{
		*fixture.Set("a", 2, fixture.WithUID, fixture.OfRevision("1")), *fixture.Set("b", 2, fixture.WithUID, fixture.OfRevision("2")),
	}
	for _, change := range changes {
		change(g)
	}
	return g
}

func declared(does ...func(*v1alpha1.MachineDeployment)) func(*given) {
	return func(g *given) {
		for _, do := range does {
			do(g.deployment)
		}
	}
}

func (g *given) key() client.ObjectKey { return client.ObjectKeyFromObject(g.deployment) }

func (g *given) facts() rollout.Facts { return rollout.FactsOf(g.deployment, g.sets, nil) }

// server is an API server that has what is given.
func (g *given) server(t *testing.T) client.WithWatch {
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

func wishes(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: 1} }

func lacksInPlace(d *v1alpha1.MachineDeployment) {
	d.Spec.Strategy.Type = v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
}

func of(generation int64) func(*v1alpha1.MachineDeployment) {
	return func(d *v1alpha1.MachineDeployment) { d.Generation = generation }
}

// TestAnswers: what became of a wish to go back to revision 1.
func TestAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		now  func(*given)
		done bool
		says string
	}{
		"not seen yet":     {declared(of(2)), false, ""},
		"not answered yet": {declared(of(3), wishes), false, ""},
		"rolled back":      {declared(of(4), fixture.OfClass("a")), true, ""},
		"refused, gone":    {func(g *given) { g.deployment.Generation, g.sets = 4, g.sets[1:] }, false, "machine set pool-a of revision 1 is gone"},
		"changed since":    {declared(of(4), fixture.OfClass("c")), false, "changed meanwhile"},
		"paused meanwhile": {declared(of(3), wishes, fixture.Paused), false, "when it is resumed"},
		"spoilt meanwhile": {declared(of(3), wishes, lacksInPlace), false, "before its spec is corrected: spec.strategy.inPlaceUpdate"},
	} {
		t.Run(name, func(t *testing.T) {
			then := give(declared(of(3), wishes))
			wish := Rollback{Revision: 1, target: &then.sets[0], deployment: then.deployment}
			done, err := wish.Done(give(tc.now).facts())
			if done != tc.done || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("answers %t, %v; want %t, %q", done, err, tc.done, tc.says)
			}
		})
	}
}

// TestRefusals: what is said instead of a change that would come to nothing, or much later.
func TestRefusals(t *testing.T) {
	undo := func(c client.Client, g *given) error {
		_, err := Undo(t.Context(), c, g.key(), 0)
		return err
	}
	restart := func(c client.Client, g *given) error { return Restart(t.Context(), c, g.key(), noon) }
	goes := declared(func(d *v1alpha1.MachineDeployment) {
		d.DeletionTimestamp, d.Finalizers = &metav1.Time{Time: noon}, []string{v1alpha1.FinalizerMCM}
	})
	for name, tc := range map[string]struct {
		given func(*given)
		do    func(client.Client, *given) error
		says  string
	}{
		"undo":                  {declared(), undo, ""},
		"undo the undo":         {declared(wishes), undo, ""},
		"undo what is paused":   {declared(fixture.Paused), undo, "is paused and cannot be rolled back"},
		"undo what is refused":  {declared(lacksInPlace), undo, "cannot be rolled back before its spec is corrected: spec.strategy.inPlaceUpdate"},
		"undo what selects all": {declared(func(d *v1alpha1.MachineDeployment) { d.Spec.Selector = &metav1.LabelSelector{} }), undo, "spec.selector: it selects all machines"},
		"undo what selects no set": {declared(fixture.OfClass("new"), func(d *v1alpha1.MachineDeployment) {
			d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: v1alpha1.DefaultMachineDeploymentUniqueLabelKey, Operator: metav1.LabelSelectorOpDoesNotExist}}
		}), undo, "does not match the machine set that would be made"},
		"undo what is deleted":     {goes, undo, "is being deleted"},
		"restart":                  {declared(), restart, ""},
		"restart with a wish":      {declared(wishes), restart, "wish to roll back to revision 1"},
		"how to withdraw the wish": {declared(wishes), restart, `patch machinedeployments.machine.sapcloud.io pool --type merge -p '{"spec":{"rollbackTo":null}}'`},
		"restart what is deleted":  {goes, restart, "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			g := give(tc.given)
			c := g.server(t)
			err := tc.do(c, g)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("answers %v, want %q", err, tc.says)
			}
			if now := read(t, c, g); tc.says != "" && !equality.Semantic.DeepEqual(now.Spec, g.deployment.Spec) {
				t.Errorf("changed to %+v", now.Spec)
			}
		})
	}
}

func read(t *testing.T, c client.Reader, g *given) *v1alpha1.MachineDeployment {
	t.Helper()
	now, err := rollout.Get(t.Context(), c, g.key())
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// meanwhile calls a function before each write.
func meanwhile(live client.WithWatch, do func()) client.WithWatch {
	return interceptor.NewClient(live, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
		do()
		return c.Patch(ctx, object, patch, opts...)
	}})
}

// TestAWriteIsMadeAgainIfAnotherWasFirst: what the other has changed may forbid it.
func TestAWriteIsMadeAgainIfAnotherWasFirst(t *testing.T) {
	g := give()
	live, first := g.server(t), true
	c := meanwhile(live, func() {
		if first {
			first = false
			if _, err := Undo(t.Context(), live, g.key(), 1); err != nil {
				t.Fatal(err)
			}
		}
	})
	if err := Restart(t.Context(), c, g.key(), noon); err == nil || !strings.Contains(err.Error(), "would take the restart back") {
		t.Errorf("answers %v", err)
	}
}

// TestUndoNamesTheRevision that was looked at, and wishes for nothing that is so already.
func TestUndoNamesTheRevision(t *testing.T) {
	g := give()
	c := g.server(t)
	if _, err := Undo(t.Context(), c, g.key(), 2); !errors.Is(err, ErrUnchanged) || read(t, c, g).Spec.RollbackTo != nil {
		t.Errorf("answers %v, and wishes %v", err, read(t, c, g).Spec.RollbackTo)
	}
	_, err := Undo(t.Context(), c, g.key(), 0)
	if wish := read(t, c, g).Spec.RollbackTo; err != nil || wish == nil || wish.Revision != 1 {
		t.Errorf("answers %v, and wishes %v", err, wish)
	}
}

// TestWritesAreRepeated: the manager writes the status all the time.
func TestWritesAreRepeated(t *testing.T) {
	g := give()
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
		says    string
	}{
		{3, func() error { return Pause(t.Context(), c, g.key()) }, ""},
		{0, func() error { return Pause(t.Context(), c, g.key()) }, "is paused already"},
		{0, func() error { return Restart(t.Context(), c, g.key(), noon) }, "resume pool"},
		{2, func() error { return Resume(t.Context(), c, g.key()) }, ""},
		{0, func() error { return Resume(t.Context(), c, g.key()) }, "is not paused"},
		{1, func() error { return Restart(t.Context(), c, g.key(), noon) }, ""},
		{0, func() error { return Restart(t.Context(), c, g.key(), noon.Add(time.Millisecond)) }, "within this second"},
	} {
		disturb = step.disturb
		err := step.do()
		if (err == nil) != (step.says == "") || err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("step %d answers %v, want %q", i, err, step.says)
		}
		if disturb != 0 {
			t.Errorf("step %d: %d disturbances did not happen", i, disturb)
		}
	}
	if got := read(t, c, g).Spec.Template.Annotations[AnnotationRestarted]; got != noon.UTC().Format(time.RFC3339) {
		t.Errorf("restarted at %q", got)
	}
}
