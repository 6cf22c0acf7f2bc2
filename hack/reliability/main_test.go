package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const played = `go: a line that is none of the test's
{"Action":"run","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestFaults/late"}
{"Action":"attr","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestFaults/late","Key":"fault","Value":"an answer | late"}
{"Action":"attr","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestFaults/late","Key":"outcome","Value":"3 scenarios"}
{"Action":"output","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestOther","Output":"=== RUN\n"}
{"Action":"pass","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestOther"}
{"Action":"%","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestFaults/late"}
`

func TestRun(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	for _, result := range []string{"pass", "fail"} {
		if err := os.WriteFile(page, []byte("# Page\n"+begin+"old\n"+end+"\nmore\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := run(strings.NewReader(strings.ReplaceAll(played, "%", result)), page, false)
		if (err == nil) != (result == "pass") {
			t.Errorf("a test that ends with %s: error %v", result, err)
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		want := "# Page\n" + begin + "| fault | what was seen | result | test |\n|---|---|---|---|\n" +
			"| an answer \\| late | 3 scenarios | " + result + " | `test/suites/crash` TestFaults |\n" + end + "\nmore\n"
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	}
	if err := run(strings.NewReader(""), page, false); err == nil {
		t.Error("no error if no test told of a fault")
	}
	if err := os.WriteFile(page, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(strings.NewReader(played), page, false); err == nil {
		t.Error("no error if the page has no place for the table")
	}
}

// TestPart: the rows of tests that did not run stay where they are.
func TestPart(t *testing.T) {
	const (
		other   = "| packets \\| lost | a leader | pass | `test/suites/scenario` TestCut |\n"
		sibling = "| a death | 3 deaths | pass | `test/suites/crash` TestExplore |\n"
		stale   = "| an answer | 1 scenarios | fail | `test/suites/crash` TestFaults |\n"
		fresh   = "| an answer \\| late | 3 scenarios | pass | `test/suites/crash` TestFaults |\n"
	)
	for name, tc := range map[string]struct{ before, want string }{
		"in the place of its rows":      {stale + stale + other + sibling, fresh + other + sibling},
		"after others of its package":   {sibling + other, sibling + fresh + other},
		"at the end":                    {other, other + fresh},
		"where there has been no table": {"", fresh},
	} {
		t.Run(name, func(t *testing.T) {
			page := filepath.Join(t.TempDir(), "page.md")
			before := begin + heading + tc.before + end
			if tc.before == "" {
				before = begin + end
			}
			if err := os.WriteFile(page, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := run(strings.NewReader(strings.ReplaceAll(played, "%", "pass")), page, true); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(begin+heading+tc.want+end, string(got)); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}
