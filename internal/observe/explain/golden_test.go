package explain

import (
	"testing"

	"github.com/millwright-dev/millwright/test/support/explained"
	"github.com/millwright-dev/millwright/test/support/golden"
)

// TestExplain compares the output for each situation with a golden file. To update these files, use -update.
func TestExplain(t *testing.T) {
	files := map[string]bool{}
	for _, table := range []map[string]situation{existingMachines, deletingMachines, deletedMachines} {
		for name, s := range table {
			files[name+".txt"] = true
			explained.Golden(t, name, Machine(facts(s.given), now), s.verdict, s.cause)
		}
	}
	golden.Only(t, "testdata/*", func(name string) bool { return files[name] })
}
