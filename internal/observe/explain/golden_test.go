package explain

import (
	"testing"

	"github.com/millwright-dev/millwright/test/support/explained"
	"github.com/millwright-dev/millwright/test/support/golden"
)

// TestExplain: what an operator reads in each situation. Golden files hold it; -update writes them.
func TestExplain(t *testing.T) {
	files := map[string]bool{}
	for _, table := range []map[string]situation{living, going, departed} {
		for name, s := range table {
			files[name+".txt"] = true
			explained.Golden(t, name, Machine(facts(s.given), now), s.verdict, s.cause)
		}
	}
	golden.Only(t, "testdata/*", func(name string) bool { return files[name] })
}
