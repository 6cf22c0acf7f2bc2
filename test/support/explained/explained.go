// Package explained checks explanations of "millwright explain".
package explained

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/test/support/golden"
)

// Golden runs a test that compares a report with a golden file. It also checks the verdict, the cause of the
// first finding (empty if there is none), and the commands.
func Golden(t *testing.T, name string, got report.Report, verdict report.Verdict, cause report.Cause) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		Finds(t, got, verdict, cause)
		NamesOurResources(t, got)
		var text bytes.Buffer
		if err := report.Print(&text, got); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, filepath.Join("testdata", name+".txt"), text.String())
	})
}

// Finds checks the verdict, and the cause of the first finding, which is empty if there is none.
func Finds(t *testing.T, got report.Report, verdict report.Verdict, cause report.Cause) {
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

// NamesOurResources fails the test if a command names a resource without its group. Where Cluster API is
// installed, "machine" alone is ambiguous.
func NamesOurResources(t *testing.T, r report.Report) {
	t.Helper()
	output := slices.Clone(r.Advice)
	for _, finding := range r.Why {
		output = append(output, finding.Text)
	}
	for _, text := range output {
		if command := shortResource.FindString(text + " "); command != "" {
			t.Errorf("the command names a resource of any group: %s", command)
		}
	}
}
