package podstate

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTruncate(t *testing.T) {
	for extra := range 4 {
		text := strings.Repeat("x", extra) + strings.Repeat("\u00e4", maxMessage)
		got := Truncate(text)
		if len(got) > maxMessage || len(got) < maxMessage-1 || !strings.HasPrefix(text, got) || !utf8.ValidString(got) {
			t.Errorf("%d bytes of %d: %q", len(got), len(text), got)
		}
	}
	if got := Truncate("a\x1b[2J\r\u202eb"); got != "a [2J  b" {
		t.Errorf("what controls a terminal is left in %q", got)
	}
	if got := Truncate("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("garbled text becomes %q", got)
	}
}
