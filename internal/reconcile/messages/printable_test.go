package messages

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// FuzzToPrintable checks that no terminal control characters remain, and that text without them is unchanged.
func FuzzToPrintable(f *testing.F) {
	for _, text := range []string{"no quota", "a\x1b]0;title\a\r\x9bb", "\u009b31m\u202ereversed\u2066", "one\n\ttwo", "größer 大", "\xff\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := ToPrintable(text)
		bad := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
		if strings.ContainsFunc(got, bad) || !utf8.ValidString(got) {
			t.Errorf("%q becomes %q", text, got)
		}
		if utf8.ValidString(text) && !strings.ContainsFunc(text, bad) && got != text {
			t.Errorf("%q becomes %q", text, got)
		}
		if line := Line(text); strings.ContainsAny(line, "\n\t") || strings.ContainsFunc(line, bad) || strings.HasSuffix(line, " ") {
			t.Errorf("%q becomes the line %q", text, line)
		}
	})
}
