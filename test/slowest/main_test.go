package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOutputIsThatOfGoTest(t *testing.T) {
	tests := map[string]struct {
		reason  string
		in      []string
		verbose bool
		want    string
	}{
		"PackagePassed": {
			reason: "one line tells it, whatever its tests logged",
			in: []string{
				`{"Action":"start","Package":"a"}`,
				`{"Action":"run","Package":"a","Test":"TestOne"}`,
				`{"Action":"output","Package":"a","Test":"TestOne","Output":"=== RUN   TestOne\n"}`,
				`{"Action":"output","Package":"a","Test":"TestOne","Output":"    one_test.go:7: a log\n"}`,
				`{"Action":"output","Package":"a","Test":"TestOne","Output":"--- SKIP: TestOne (0.00s)\n"}`,
				`{"Action":"skip","Package":"a","Test":"TestOne","Elapsed":0}`,
				`{"Action":"output","Package":"a","Output":"PASS\n"}`,
				`{"Action":"output","Package":"a","Output":"ok  \ta\t0.010s\n"}`,
				`{"Action":"pass","Package":"a","Elapsed":0.01}`,
			},
			want: "ok  \ta\t0.010s\n",
		},
		"Verbose": {
			reason: "everything is printed as it comes",
			in: []string{
				`{"Action":"output","Package":"a","Test":"TestOne","Output":"=== RUN   TestOne\n"}`,
				`{"Action":"output","Package":"a","Test":"TestOne","Output":"--- SKIP: TestOne (0.00s)\n"}`,
				`{"Action":"skip","Package":"a","Test":"TestOne"}`,
				`{"Action":"output","Package":"a","Output":"PASS\n"}`,
				`{"Action":"pass","Package":"a"}`,
			},
			verbose: true,
			want:    "=== RUN   TestOne\n--- SKIP: TestOne (0.00s)\nPASS\n",
		},
		"TestFailed": {
			reason: "its output is shown together, that of a test that passed is not",
			in: []string{
				`{"Action":"output","Package":"a","Test":"TestBad","Output":"=== RUN   TestBad\n"}`,
				`{"Action":"output","Package":"a","Test":"TestBad","Output":"    bad_test.go:1: first\n"}`,
				`{"Action":"output","Package":"a","Test":"TestBad/sub","Output":"    bad_test.go:3: of a subtest\n"}`,
				`{"Action":"output","Package":"a","Test":"TestGood","Output":"    good_test.go:1: not shown\n"}`,
				`{"Action":"output","Package":"a","Test":"TestBad","Output":"    bad_test.go:2: second\n"}`,
				`{"Action":"output","Package":"a","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}`,
				`{"Action":"output","Package":"a","Test":"TestBad/sub","Output":"    --- FAIL: TestBad/sub (0.00s)\n"}`,
				`{"Action":"fail","Package":"a","Test":"TestBad/sub"}`,
				`{"Action":"fail","Package":"a","Test":"TestBad"}`,
				`{"Action":"pass","Package":"a","Test":"TestGood"}`,
				`{"Action":"output","Package":"a","Output":"FAIL\n"}`,
				`{"Action":"output","Package":"a","Output":"FAIL\ta\t0.010s\n"}`,
				`{"Action":"fail","Package":"a","Elapsed":0.01}`,
			},
			want: "    bad_test.go:1: first\n    bad_test.go:2: second\n--- FAIL: TestBad (0.00s)\n" +
				"    bad_test.go:3: of a subtest\n    --- FAIL: TestBad/sub (0.00s)\nFAIL\nFAIL\ta\t0.010s\n" + `
the slowest tests:
      0s  a  TestBad/sub
      0s  a  TestGood
`[1:],
		},
		"TestNeverEnded": {
			reason: "a test during which the process died has said why",
			in: []string{
				`{"Action":"output","Package":"a","Test":"TestBad","Output":"panic: no\n"}`,
				`{"Action":"output","Package":"a","Output":"FAIL\ta\t0.010s\n"}`,
				`{"Action":"fail","Package":"a","Elapsed":0.01}`,
			},
			want: "panic: no\nFAIL\ta\t0.010s\n",
		},
		"GoTestDied": {
			reason: "what was held back is shown",
			in:     []string{`{"Action":"output","Package":"a","Test":"TestBad","Output":"    bad_test.go:1: waiting\n"}`},
			want:   "    bad_test.go:1: waiting\n",
		},
		"BuildFailed": {
			reason: "the compiler's words are shown",
			in: []string{
				`{"ImportPath":"a","Action":"build-output","Output":"a.go:1: undefined\n"}`,
				`{"ImportPath":"a","Action":"build-fail"}`,
				`{"Action":"output","Package":"a","Output":"FAIL\ta [build failed]\n"}`,
				`{"Action":"fail","Package":"a","FailedBuild":"a"}`,
			},
			want: "a.go:1: undefined\nFAIL\ta [build failed]\n",
		},
		"NotOfGoTest": {
			reason: "other lines pass through, with or without an end",
			in:     []string{"go test (.)", "{}"},
			want:   "go test (.)\n{}",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := run(strings.NewReader(strings.Join(test.in, "\n")), &out, 10, test.verbose); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

func TestSlowestAreListed(t *testing.T) {
	in := strings.NewReader(`
{"Action":"pass","Package":"a","Test":"TestParent/slow","Elapsed":90.04}
{"Action":"pass","Package":"a","Test":"TestParent","Elapsed":91}
{"Action":"pass","Package":"b","Test":"TestParent","Elapsed":2}
{"Action":"skip","Package":"b","Test":"TestSkipped","Elapsed":3}
{"Action":"fail","Package":"b","Test":"TestFailed","Elapsed":4}
`[1:])
	var out strings.Builder
	if err := run(in, &out, 2, false); err != nil {
		t.Fatal(err)
	}
	want := "the slowest tests:\n   1m30s  a  TestParent/slow\n      4s  b  TestFailed\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("tests that only run others do not count, nor those that were skipped (-want +got):\n%s", diff)
	}
}
