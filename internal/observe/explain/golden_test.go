package explain

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

var update = flag.Bool("update", false, "write the golden files")

// TestExplain: what an operator reads in each situation. Golden files hold it; -update writes them.
func TestExplain(t *testing.T) {
	files := map[string]bool{}
	check := func(name string, got report.Report, verdict report.Verdict, cause report.Cause) {
		files[name+".txt"] = true
		t.Run(name, func(t *testing.T) {
			answers(t, got, verdict, cause)
			namesOurResources(t, name, got)
			var text bytes.Buffer
			if err := report.Print(&text, got); err != nil {
				t.Fatal(err)
			}
			isGolden(t, filepath.Join("testdata", name+".txt"), text.String())
		})
	}
	for _, table := range []map[string]situation{living, going, departed} {
		for name, s := range table {
			check(name, Machine(facts(s.given), now), s.verdict, s.cause)
		}
	}
	for name, s := range pools {
		check(name, Pool(poolFacts(s.kind, s.given), now), s.verdict, s.cause)
	}
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !files[entry.Name()] {
			t.Errorf("%s belongs to no situation", entry.Name())
		}
	}
}

// answers checks the verdict and the cause of the first finding, which is empty if there is none.
func answers(t *testing.T, got report.Report, verdict report.Verdict, cause report.Cause) {
	t.Helper()
	findings, first := got.Why, report.Cause("")
	if verdict == report.Gone && got.Machine != "" {
		findings = got.Replaced
	}
	if len(findings) > 0 {
		first = findings[0].Cause
	}
	if got.Verdict != verdict || first != cause {
		t.Errorf("%s because of %q, want %s because of %q: %v", got.Verdict, first, verdict, cause, findings)
	}
}

var shortResource = regexp.MustCompile(`kubectl( -n \S+)? [a-z]+ (machine|machineset|machinedeployment|virtualmachine)s? .*`)

// namesOurResources fails if a command names a resource without its group: where Cluster API is
// installed, too, "machine" is one of its own.
func namesOurResources(t *testing.T, name string, r report.Report) {
	t.Helper()
	said := slices.Clone(r.Advice)
	for _, finding := range r.Why {
		said = append(said, finding.Text)
	}
	for _, text := range said {
		if command := shortResource.FindString(text + " "); command != "" {
			t.Errorf("%s: %s", name, command)
		}
	}
}

// isGolden compares a text with a golden file, or writes it.
func isGolden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("text (-want +got; -update writes it):\n%s", diff)
	}
}
