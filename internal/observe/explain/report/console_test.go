package report

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// TestLastLines checks which lines of a console are shown.
func TestLastLines(t *testing.T) {
	for name, c := range map[string]struct {
		output string
		want   []string
	}{
		"nothing":                   {"", nil},
		"blank lines":               {"\r\n \r\n\n", nil},
		"incomplete last line":      {"one\r\ntwo", []string{"one", "two"}},
		"more lines than the limit": {"0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n", strings.Split("23456789", "")},
		"colors and a title":        {"\x1b[1;31mred\x1b[0m\x1b]0;rm -rf\x07 or not\x1b]52;c;Y3VybA==\x1b\\\n", []string{"red or not"}},
		"an escape at the end":      {"one\x1b[", []string{"one"}},
		"unterminated string":       {"one\n\x1b]0;two", []string{"one"}},
		"a progress bar":            {"10%\r50%\rdone\r\n", []string{"done"}},
		"other characters":          {"a\x00b\ac\u202ed\u009b31me\xff\n", []string{"a b c d 31me\ufffd"}},
	} {
		if diff := cmp.Diff(c.want, LastLines([]byte(c.output))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	long := LastLines([]byte(strings.Repeat("x", 2*consoleBytes) + "\n" + strings.Repeat("y", consoleBytes-1)))
	if len(long) != 1 || len(long[0]) > consoleLine || !strings.HasPrefix(long[0], "yyy") {
		t.Errorf("long lines: %q", long)
	}
}

// FuzzLastLines checks that any console output results in a limited number of printable lines.
func FuzzLastLines(f *testing.F) {
	f.Add([]byte("größer \x1b[2J\u009b31m\r\x1b]0;x\x07\n\x1b[?25l\x1b[6n\xff\u2028"))
	f.Fuzz(func(t *testing.T, output []byte) {
		lines := LastLines(output)
		if len(lines) > consoleLines {
			t.Errorf("%d lines", len(lines))
		}
		for _, line := range lines {
			if line == "" || len(line) > consoleLine || !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q shows %q", output, line)
			}
		}
	})
}
