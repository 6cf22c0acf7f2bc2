package rollout

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestAnswers: what became of a wish to go back to revision 1.
func TestAnswers(t *testing.T) {
	wished := func(g *given) {
		rolls(g)
		g.deployment.Generation, g.deployment.Spec.RollbackTo = 3, &v1alpha1.RollbackConfig{Revision: 1}
	}
	answered := func(g *given) {
		wished(g)
		g.deployment.Generation, g.deployment.Spec.RollbackTo = 4, nil
	}
	to := func(class string) change {
		return func(g *given) { g.deployment.Spec.Template.Spec.Class.Name = class }
	}
	for name, tc := range map[string]struct {
		now  change
		done bool
		says string
	}{
		"not seen yet":     {rolls, false, ""},
		"not answered yet": {wished, false, ""},
		"rolled back":      {all(answered, to("a")), true, ""},
		"refused, gone":    {all(answered, func(g *given) { g.sets = g.sets[1:] }), false, "machine set pool-a of revision 1 is gone"},
		"changed since":    {all(answered, to("c")), false, "changed meanwhile"},
		"paused meanwhile": {all(wished, declared(isPaused)), false, "when it is resumed"},
	} {
		t.Run(name, func(t *testing.T) {
			then := give(wished)
			wish := Wish{Revision: 1, target: then.set("a"), deployment: then.deployment}
			done, err := wish.Answered(give(tc.now).facts())
			if done != tc.done || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("answers %t, %v; want %t, %q", done, err, tc.done, tc.says)
			}
		})
	}
}
