package explain

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/test/golden"
)

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
			golden.Compare(t, filepath.Join("testdata", name+".txt"), text.String())
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
	golden.Only(t, "testdata/*", func(name string) bool { return files[name] })
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
