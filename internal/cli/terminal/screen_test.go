package terminal

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// emulator emulates a terminal for the output of Screen. It rejects any other sequences.
type emulator struct {
	columns, rows int
	screen        []string // from the top, without trailing blanks
	row, column   int
	scrolled      []string
}

func newEmulator(columns, rows int) *emulator {
	return &emulator{columns: columns, rows: rows, screen: make([]string, rows)}
}

func (t *emulator) size() (int, int) { return t.columns, t.rows }

var sequence = regexp.MustCompile(`^\x1b\[(\d*)([AKJ])`)

func (t *emulator) Write(p []byte) (int, error) {
	for text := string(p); text != ""; {
		if at := sequence.FindStringSubmatch(text); at != nil {
			t.control(at[2], at[1])
			text = text[len(at[0]):]
			continue
		}
		r := []rune(text)[0]
		switch {
		case r == '\n': // the terminal driver adds a carriage return
			t.column = 0
			t.down()
		case r == '\r':
			t.column = 0
		case r < ' ':
			return 0, fmt.Errorf("control character %q", r)
		default:
			t.put(r)
		}
		text = text[len(string(r)):]
	}
	return len(p), nil
}

func (t *emulator) control(what, number string) {
	switch n, _ := strconv.Atoi(number); what {
	case "A":
		t.row = max(0, t.row-n)
	case "K":
		t.screen[t.row] = t.upTo(t.column)
	case "J":
		t.screen[t.row] = t.upTo(t.column)
		clear(t.screen[t.row+1:])
	}
}

// upTo returns the part of the row before a column.
func (t *emulator) upTo(column int) string {
	letters := []rune(t.screen[t.row])
	return string(letters[:min(column, len(letters))])
}

func (t *emulator) put(r rune) {
	if t.column == t.columns {
		t.column = 0
		t.down()
	}
	letters := []rune(t.screen[t.row])
	for len(letters) <= t.column {
		letters = append(letters, ' ')
	}
	letters[t.column] = r
	t.screen[t.row] = string(letters)
	t.column++
}

func (t *emulator) down() {
	if t.row < t.rows-1 {
		t.row++
		return
	}
	t.scrolled = append(t.scrolled, t.screen[0])
	t.screen = append(t.screen[1:], "")
}

// shown returns all rows that were not overwritten, including those scrolled out, without trailing empty rows.
func (t *emulator) shown() []string {
	all := append(append([]string{}, t.scrolled...), t.screen...)
	for len(all) > 0 && all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

func draw(t interface{ Fatal(...any) }, screen *Screen, lines ...string) {
	if err := screen.Draw(lines); err != nil {
		t.Fatal(err)
	}
}

func TestScreen_Redraws(t *testing.T) {
	term := newEmulator(20, 6)
	fmt.Fprintln(term, "$ millwright rollout")
	screen := &Screen{Out: term, Size: term.size}
	draw(t, screen, "one", "two", "three")
	draw(t, screen, "ONE", "a line that is longer than the terminal is wide")
	draw(t, screen, "1", "2", "3", "4", "5", "6", "7")
	draw(t, screen, "end")
	fmt.Fprintln(term, "done")
	want := []string{"$ millwright rollout", "end", "done"}
	if diff := cmp.Diff(want, term.shown()); diff != "" {
		t.Errorf("the terminal shows (-want +got):\n%s", diff)
	}
}

func TestScreen_TruncatesLines(t *testing.T) {
	for name, tc := range map[string]struct {
		columns, rows int
		lines, want   []string
	}{
		"fits":               {10, 5, []string{"123456789"}, []string{"123456789"}},
		"too long":           {10, 5, []string{"1234567890"}, []string{"12345678…"}},
		"letters, not bytes": {10, 5, []string{"äöüäöüäöü"}, []string{"äöüäöüäöü"}},
		"wide letters":       {10, 5, []string{"機械機械機械"}, []string{"機械機械…"}},
		"item":               {20, 9, []string{"  - one two three four five", "x"}, []string{"  - one two three", "    four five", "x"}},
		"item of one word":   {12, 9, []string{"  - 1234567890"}, []string{"  - 1234567", "    890"}},
		"item of wide words": {12, 9, []string{"  - 機械機械機械"}, []string{"  - 機械機", "    械機械"}},
		"long item":          {12, 9, []string{"  - one two three four five six seven"}, []string{"  - one two", "    three", "    four", "    five s…"}},
		"item, too narrow":   {6, 9, []string{"  - one two"}, []string{"  - …"}},
		"table": {26, 9, []string{"x", "", "      SET   MACHINES", "new   a     1 New, 2 Running, 1 Failed", "old   b     3 Running"},
			[]string{"x", "", "      SET   MACHINES", "new   a     1 New,", "        2 Running,", "        1 Failed", "old   b     3 Running"}},
		"wide table": {36, 9, []string{"      SET   MACHINES", "new   a     1 New, 2 Running, 1 Failed", "old   b     3 Running"},
			[]string{"      SET   MACHINES", "new   a     1 New, 2 Running,", "            1 Failed", "old   b     3 Running"}},
		"narrow table":      {20, 9, []string{"      SET   MACHINES", "new   a     1 New, 2 Running"}, []string{"      SET   MACHINES"[:18] + "…", "new   a     1 New,…"}},
		"no rows for table": {40, 6, []string{"head", "", "      SET   MACHINES", "new   a     none", "", "Waiting:", "  - for it"}, []string{"head", "", "Waiting:", "  - for it", "… and 3 more lines"}},
		"few rows":          {40, 4, []string{"head", "", "      SET   MACHINES", "new   a     none", "", "Waiting:", "  - for it"}, []string{"head", "", "… and 5 more lines"}},
		"few rows, no wait": {40, 4, []string{"head", "", "      SET   MACHINES", "new   a     none"}, []string{"head", "", "… and 2 more lines"}},
		"too many":          {40, 4, []string{"1", "2", "3", "4", "5"}, []string{"1", "2", "… and 3 more lines"}},
		"one row":           {40, 1, []string{"1", "2"}, []string{"… and 2 more lines"}},
		"unknown size":      {0, 0, []string{strings.Repeat("x", 90)}, []string{strings.Repeat("x", 78) + "…"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			screen := &Screen{Out: &out, Size: func() (int, int) { return tc.columns, tc.rows }}
			draw(t, screen, tc.lines...)
			got := strings.Split(strings.TrimSuffix(strings.NewReplacer("\r", "", "\x1b[K", "", "\x1b[J", "").Replace(out.String()), "\n"), "\n")
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("draws (-want +got):\n%s", diff)
			}
		})
	}
}

// TestScreen_BecomesNarrower checks that Screen redraws all rows after earlier output wraps on a narrower terminal.
func TestScreen_BecomesNarrower(t *testing.T) {
	var out strings.Builder
	columns := 40
	screen := &Screen{Out: &out, Size: func() (int, int) { return columns, 24 }}
	draw(t, screen, strings.Repeat("x", 39), "short")
	out.Reset()
	columns = 20
	draw(t, screen, "short")
	if !strings.HasPrefix(out.String(), "\x1b[3A") {
		t.Errorf("does not go up three rows: %q", out.String())
	}
}

func TestScreen_ReportsWriteError(t *testing.T) {
	gone := errors.New("gone")
	screen := &Screen{Out: writerFunc(func([]byte) (int, error) { return 0, gone }), Size: func() (int, int) { return 80, 24 }}
	if err := screen.Draw([]string{"x"}); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

// TestScreen_RedrawLeavesNoRemnants checks that a terminal shows only the last drawing, and everything that was
// printed before the first one.
func TestScreen_RedrawLeavesNoRemnants(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		term := newEmulator(rapid.IntRange(2, 30).Draw(t, "columns"), rapid.IntRange(2, 8).Draw(t, "rows"))
		earlier := rapid.IntRange(0, 10).Draw(t, "earlier")
		var want []string
		for i := range earlier {
			fmt.Fprintln(term, i)
			want = append(want, strconv.Itoa(i))
		}
		screen := &Screen{Out: term, Size: term.size}
		lines := rapid.SliceOf(rapid.StringMatching(`[a-z]{1,40}`))
		for range rapid.IntRange(1, 6).Draw(t, "draws") {
			draw(t, screen, lines.Draw(t, "lines")...)
		}
		draw(t, screen, "x")
		if diff := cmp.Diff(append(want, "x"), term.shown()); diff != "" {
			t.Fatalf("the terminal shows (-want +got):\n%s", diff)
		}
	})
}

// TestScreen_UnknownHeight checks that everything is shown if the height is unknown, and that an empty line
// occupies a row.
func TestScreen_UnknownHeight(t *testing.T) {
	var out strings.Builder
	s := &Screen{Out: &out, Size: func() (int, int) { return 80, 0 }}
	for range 2 {
		out.Reset()
		if err := s.Draw([]string{"one", "", "two"}); err != nil {
			t.Fatal(err)
		}
	}
	if text := out.String(); !strings.HasPrefix(text, "\x1b[3A") || !strings.Contains(text, "two") {
		t.Errorf("drew %q", text)
	}
}
