package rollout

import (
	"bytes"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/golden"
)

// past returns a deployment with three revisions, and two sets that it cannot be rolled back to.
func past(g *given) {
	rolls(g)
	hasSet("c", 4, 0, 0)(g)
	g.set("a").Annotations[annotationCause] = "first try"
	g.set("c").Annotations[annotationCause] = "bigger machines\n\x1b[31mfor the shop"
	hasSet("gone", 3, 0, 0)(g)
	now := before(0)
	g.set("gone").DeletionTimestamp = &now
	hasSet("none", 0, 0, 0)(g)
}

func TestRollout_History(t *testing.T) {
	var text bytes.Buffer
	if err := PrintHistory(&text, give(past).facts(), noon); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/history.txt", text.String())
}

func TestRollout_Revision(t *testing.T) {
	var text bytes.Buffer
	if err := PrintRevision(&text, give(past).facts(), 4); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/revision.txt", text.String())
}

func TestPick(t *testing.T) {
	for name, tc := range map[string]struct {
		given  change
		number int64
		set    string
		err    string
	}{
		"by number":                       {past, 1, "pool-a", ""},
		"the last":                        {past, 4, "pool-c", ""},
		"the previous one":                {rolls, 0, "pool-a", ""},
		"being deleted":                   {past, 3, "", "has no revision 3; it has 1, 2, 4"},
		"never existed":                   {past, 9, "", "has no revision 9; it has 1, 2, 4"},
		"only one":                        {func(*given) {}, 0, "", "no revision before the current one"},
		"no set for the template yet":     {all(rolls, to("d")), 0, "pool-b", ""},
		"template of an old set":          {past, 0, "pool-c", ""},
		"two sets with the same template": {all(rolls, twice("b")), 0, "pool-a", ""},
		"no revisions":                    {func(g *given) { g.sets = nil }, 1, "", "has no revision 1; it has none"},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Find(give(tc.given).facts(), tc.number)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("got error %v, want %q", err, tc.err)
			}
			if err == nil && set.Name != tc.set {
				t.Errorf("%s, want %s", set.Name, tc.set)
			}
		})
	}
}

// to gives the template another class.
func to(class string) change {
	return func(g *given) { g.deployment.Spec.Template.Spec.Class.Name = class }
}

// twice adds a second set with the template of a class, and the next revision.
func twice(class string) change {
	return func(g *given) {
		hasSet("second", 3, 0, 0)(g)
		g.set("second").Spec.Template.Spec.Class.Name = class
	}
}
