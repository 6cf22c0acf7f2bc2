package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// sample is a package whose test notices some mutants only.
const sample = "testdata/sample"

// survivors are the mutants of the sample that its test does not notice, with the reason in the report.
var survivors = []string{
	"Clamp: n > 10 → off by one (no test fails)",
	"Clamp: n < 0 → off by one (no test fails)",
	"Clamp: n > -100 → true (no test fails)",
	"Clamp: n > -100 → off by one (no test fails)",
	"Untested: !on → true (no test evaluates it)",
	"Untested: !on → false (no test evaluates it)",
}

func sampleOptions(t *testing.T) options {
	t.Helper()
	return options{
		packages: []string{"./" + sample}, only: regexp.MustCompile(""), run: ".", timeout: time.Minute,
		accepted: filepath.Join(t.TempDir(), "accepted.txt"),
	}
}

func TestOptions_SurvivorsAreMutantsThatNoTestNotices(t *testing.T) {
	found, err := sampleOptions(t).survivors(t.Context(), "./"+sample)
	if err != nil {
		t.Fatal(err)
	}
	var reports []string
	for _, m := range found {
		_, report, _ := strings.Cut(m.report(), ": "+sample+" ")
		reports = append(reports, report)
	}
	if diff := cmp.Diff(survivors, reports); diff != "" {
		t.Error(diff)
	}
}

func TestOptions_MutateComparesWithAcceptedSurvivors(t *testing.T) {
	tier.All(t)
	var all []string
	for _, survivor := range survivors {
		key, _, _ := strings.Cut(survivor, " (")
		all = append(all, sample+" "+key+" # makes no difference")
	}
	for name, test := range map[string]struct {
		accepted []string
		problem  string
	}{
		"all accepted":        {all, ""},
		"one is not accepted": {all[1:], "unguarded conditions: 1;"},
		"one does not exist":  {append(all, sample+" Gone: n > 1 → true # was removed"), "unguarded conditions: 1;"},
		"no reason":           {[]string{sample + " Clamp: n > 10 → off by one"}, "no reason given"},
	} {
		t.Run(name, func(t *testing.T) {
			o := sampleOptions(t)
			if err := os.WriteFile(o.accepted, []byte(strings.Join(test.accepted, "\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			switch err := o.mutate(t.Context()); {
			case err == nil && test.problem != "":
				t.Errorf("no error, want %q", test.problem)
			case err != nil && (test.problem == "" || !strings.Contains(err.Error(), test.problem)):
				t.Errorf("got %v, want %q", err, test.problem)
			}
		})
	}
}

func TestOptions_SurvivorsFailsIfTestsFailWithoutMutant(t *testing.T) {
	tier.All(t)
	o := sampleOptions(t)
	o.run = "["
	if _, err := o.survivors(t.Context(), "./"+sample); err == nil || !strings.Contains(err.Error(), "the tests fail without any mutant") {
		t.Errorf("got %v", err)
	}
}

func TestSlowTests_FromOutput(t *testing.T) {
	const out = "=== RUN   TestFast\n--- PASS: TestFast (0.25s)\n=== RUN   TestModel\n    --- PASS: TestModel/one (3.00s)\n" +
		"--- PASS: TestModel (6.10s)\n--- SKIP: TestSkipped (1.00s)\n--- PASS: TestOther (0.26s)\nPASS\n"
	if got, want := slowTests([]byte(out)), "^(TestModel|TestOther)$"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := slowTests([]byte("--- PASS: TestFast (0.00s)\n")); got != "" {
		t.Errorf("got %q without slow tests", got)
	}
}
