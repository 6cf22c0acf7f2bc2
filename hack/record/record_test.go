package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestScreen_Text(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"lines":       {"one\r\ntwo\r\n", []string{"one", "two", ""}},
		"overwritten": {"one\ntwo\n\x1b[2A\r\x1b[KONE\n\r\x1b[K2\n\x1b[J", []string{"ONE", "2", ""}},
		"scrolls":     {"1\n2\n3\n4", []string{"2", "3", "4"}},
		"wraps":       {"12345678901", []string{"1234567890", "1", ""}},
		"colors":      {"\x1b[1;32mgreen\x1b[0m", []string{"green", "", ""}},
		"tab":         {"a\tb", []string{"a       b", "", ""}},
		"cleared":     {"1\n2\n3\x1b[2A\r\x1b[J", []string{"", "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScreen(10, 3)
			s.write(tc.text)
			if diff := cmp.Diff(tc.want, s.lines()); diff != "" {
				t.Errorf("screen (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFilm_ShortensPauses: long pauses are shortened, simultaneous changes are one picture, and each line is written once.
func TestFilm_ShortensPauses(t *testing.T) {
	f, begin := &film{}, time.Now()
	for _, shown := range []struct {
		after time.Duration
		lines []string
	}{
		{0, []string{"$ <demo>"}},
		{time.Hour, []string{"$ <demo>", "1"}},
		{time.Hour + time.Millisecond, []string{"$ <demo>", "2"}},
		{time.Hour + time.Second, []string{"$ <demo>", "2"}},
		{time.Hour + 2*time.Second, []string{"$ <demo>", "3"}},
	} {
		f.add(begin.Add(shown.after), shown.lines)
	}
	if diff := cmp.Diff([]time.Duration{0, longest, 2 * longest, 2*longest + last}, f.times()); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
	svg := f.svg(20, 2)
	if n := strings.Count(svg, "&lt;demo&gt;"); n != 1 {
		t.Errorf("the command is written %d times, want once", n)
	}
	if strings.Contains(svg, ">1</text>") || !strings.Contains(svg, ">2</text>") {
		t.Errorf("draws:\n%s", svg)
	}
}
