package pool

import (
	"testing"

	"github.com/millwright-dev/millwright/test/support/explained"
	"github.com/millwright-dev/millwright/test/support/golden"
)

// TestExplain compares the output for each situation with a golden file. To update these files, use -update.
func TestExplain(t *testing.T) {
	files := map[string]bool{}
	for name, s := range pools {
		files[name+".txt"] = true
		explained.Golden(t, name, Explain(facts(s.kind, s.given), now), s.verdict, s.cause)
	}
	golden.Only(t, "testdata/*", func(name string) bool { return files[name] })
}
