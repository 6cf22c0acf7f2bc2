package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const played = `go: a line that is none of the test's
{"Action":"run","Package":"github.com/millwright-dev/millwright/test/crash","Test":"TestFaults/late"}
{"Action":"attr","Package":"github.com/millwright-dev/millwright/test/crash","Test":"TestFaults/late","Key":"fault","Value":"an answer | late"}
{"Action":"attr","Package":"github.com/millwright-dev/millwright/test/crash","Test":"TestFaults/late","Key":"outcome","Value":"3 scenarios"}
{"Action":"output","Package":"github.com/millwright-dev/millwright/test/crash","Test":"TestOther","Output":"=== RUN\n"}
{"Action":"pass","Package":"github.com/millwright-dev/millwright/test/crash","Test":"TestOther"}
{"Action":"%","Package":"github.com/millwright-dev/millwright/test/crash","Test":"TestFaults/late"}
`

func TestRun(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	for _, result := range []string{"pass", "fail"} {
		if err := os.WriteFile(page, []byte("# Page\n"+begin+"old\n"+end+"\nmore\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := run(strings.NewReader(strings.ReplaceAll(played, "%", result)), page)
		if (err == nil) != (result == "pass") {
			t.Errorf("a test that ends with %s: error %v", result, err)
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		want := "# Page\n" + begin + "| fault | what was seen | result | test |\n|---|---|---|---|\n" +
			"| an answer \\| late | 3 scenarios | " + result + " | `test/crash` TestFaults |\n" + end + "\nmore\n"
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	}
	if err := run(strings.NewReader(""), page); err == nil {
		t.Error("no error if no test told of a fault")
	}
	if err := os.WriteFile(page, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(strings.NewReader(played), page); err == nil {
		t.Error("no error if the page has no place for the table")
	}
}
