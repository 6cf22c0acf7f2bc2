package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const played = `go: a line that is not from a test
{"Action":"run","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestDriver_Faults/late"}
{"Action":"attr","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestDriver_Faults/late","Key":"fault","Value":"a response | late"}
{"Action":"attr","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestDriver_Faults/late","Key":"outcome","Value":"3 scenarios"}
{"Action":"output","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestOther","Output":"=== RUN\n"}
{"Action":"pass","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestOther"}
{"Action":"%","Package":"github.com/millwright-dev/millwright/test/suites/crash","Test":"TestDriver_Faults/late"}
`

func TestRun(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	for _, result := range []string{"pass", "fail"} {
		if err := os.WriteFile(page, []byte("# Page\n"+begin+"old\n"+end+"\nmore\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := run(strings.NewReader(strings.ReplaceAll(played, "%", result)), page, false)
		if (err == nil) != (result == "pass") {
			t.Errorf("test with result %s: got error %v", result, err)
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		want := "# Page\n" + begin + "| Fault | Observed behavior | Result | Test |\n|---|---|---|---|\n" +
			"| a response \\| late | 3 scenarios | " + result + " | `test/suites/crash` TestDriver_Faults |\n" + end + "\nmore\n"
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	}
	if err := run(strings.NewReader(""), page, false); err == nil {
		t.Error("got no error although no test reported a fault")
	}
	if err := os.WriteFile(page, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(strings.NewReader(played), page, false); err == nil {
		t.Error("got no error although the page has no place for the table")
	}
}

// TestPart_KeepsOrderOfRows: the rows of tests that did not run stay in place.
func TestPart_KeepsOrderOfRows(t *testing.T) {
	const (
		other   = "| packets \\| lost | a leader | pass | `test/suites/scenario` TestCut |\n"
		sibling = "| a crash | 3 crash points | pass | `test/suites/crash` TestExplore |\n"
		stale   = "| a response | 1 scenarios | fail | `test/suites/crash` TestDriver_Faults |\n"
		fresh   = "| a response \\| late | 3 scenarios | pass | `test/suites/crash` TestDriver_Faults |\n"
	)
	for name, tc := range map[string]struct{ before, want string }{
		"replaces its rows":           {stale + stale + other + sibling, fresh + other + sibling},
		"after others of its package": {sibling + other, sibling + fresh + other},
		"at the end":                  {other, other + fresh},
		"no table before":             {"", fresh},
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
