package rollout

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestAnswers: what became of a wish to go back to revision 1.
func TestAnswers(t *testing.T) {
	pendingRollback := func(g *given) {
		rolls(g)
		g.deployment.Generation, g.deployment.Spec.RollbackTo = 3, &v1alpha1.RollbackConfig{Revision: 1}
	}
	answered := func(g *given) {
		pendingRollback(g)
		g.deployment.Generation, g.deployment.Spec.RollbackTo = 4, nil
	}
	for name, tc := range map[string]struct {
		now  change
		done bool
		says string
	}{
		"not seen yet":     {rolls, false, ""},
		"not answered yet": {pendingRollback, false, ""},
		"rolled back":      {all(answered, to("a")), true, ""},
		"refused, gone":    {all(answered, func(g *given) { g.sets = g.sets[1:] }), false, "machine set pool-a of revision 1 is gone"},
		"changed since":    {all(answered, to("c")), false, "changed meanwhile"},
		"paused meanwhile": {all(pendingRollback, declared(isPaused)), false, "when it is resumed"},
		"spoilt meanwhile": {all(pendingRollback, declared(lacksInPlace)), false, "before its spec is corrected: spec.strategy.inPlaceUpdate"},
	} {
		t.Run(name, func(t *testing.T) {
			then := give(pendingRollback)
			wish := Rollback{Revision: 1, target: then.set("a"), deployment: then.deployment}
			done, err := wish.Done(give(tc.now).facts())
			if done != tc.done || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("answers %t, %v; want %t, %q", done, err, tc.done, tc.says)
			}
		})
	}
}

func lacksInPlace(d *v1alpha1.MachineDeployment) {
	d.Spec.Strategy.Type = v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
}

// TestRefusals: what is said instead of a change that would come to nothing, or much later.
func TestRefusals(t *testing.T) {
	undo := func(c client.Client, g *given) error {
		_, err := Undo(t.Context(), c, client.ObjectKeyFromObject(g.deployment), 0)
		return err
	}
	restart := func(c client.Client, g *given) error {
		return Restart(t.Context(), c, client.ObjectKeyFromObject(g.deployment), noon)
	}
	goes := declared(func(d *v1alpha1.MachineDeployment) {
		now := before(0)
		d.DeletionTimestamp, d.Finalizers = &now, []string{v1alpha1.FinalizerMCM}
	})
	pendingRollback := declared(func(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: 1} })
	for name, tc := range map[string]struct {
		given change
		do    func(client.Client, *given) error
		says  string
	}{
		"undo":                  {rolls, undo, ""},
		"undo the undo":         {all(rolls, pendingRollback), undo, ""},
		"undo what is refused":  {all(rolls, declared(lacksInPlace)), undo, "cannot be rolled back before its spec is corrected: spec.strategy.inPlaceUpdate"},
		"undo what selects all": {all(rolls, declared(func(d *v1alpha1.MachineDeployment) { d.Spec.Selector = &metav1.LabelSelector{} })), undo, "spec.selector: it selects all machines"},
		"undo what selects no set": {all(rolls, declared(func(d *v1alpha1.MachineDeployment) {
			d.Spec.Template.Spec.Class.Name = "new"
			d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: v1alpha1.DefaultMachineDeploymentUniqueLabelKey, Operator: metav1.LabelSelectorOpDoesNotExist}}
		})), undo, "does not match the machine set that would be made"},
		"undo what is deleted":     {all(rolls, goes), undo, "is being deleted"},
		"restart":                  {rolls, restart, ""},
		"restart with a wish":      {all(rolls, pendingRollback), restart, "wish to roll back to revision 1"},
		"how to withdraw the wish": {all(rolls, pendingRollback), restart, `kubectl -n default patch machinedeployments.machine.sapcloud.io pool --type merge -p '{"spec":{"rollbackTo":null}}'`},
		"restart what is deleted":  {all(rolls, goes), restart, "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			g := give(tc.given)
			objects := []client.Object{g.deployment}
			for _, set := range g.sets {
				objects = append(objects, set)
			}
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
			err := tc.do(c, g)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("answers %v, want %q", err, tc.says)
			}
			now := &v1alpha1.MachineDeployment{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(g.deployment), now); err != nil {
				t.Fatal(err)
			}
			if tc.says != "" && !equality.Semantic.DeepEqual(now.Spec, g.deployment.Spec) {
				t.Errorf("changed to %+v", now.Spec)
			}
		})
	}
}
