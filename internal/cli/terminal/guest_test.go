package terminal

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestGuest checks what a terminal receives of a guest's output.
func TestGuest(t *testing.T) {
	for name, c := range map[string]struct{ wantText, shows, reset string }{
		"text":                     {"größer\r\n\tend\b\a", "größer\r\n\tend\b\a", ""},
		"colors":                   {"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m", "\x1b[m"},
		"an editor":                {"\x1b[?1049h\x1b[?25l\x1b[2J\x1b[3;4Hx\x1b[K", "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[3;4Hx\x1b[K", "\x1b[?1049l\x1b[?25h"},
		"an editor that exits":     {"\x1b[?1049h\x1b[?1049l", "\x1b[?1049h\x1b[?1049l", ""},
		"lines":                    {"\x1b(0lqk\x1b(B", "\x1b(0lqk\x1b(B", "\x1b(B"},
		"scrolling":                {"\x1b[2;9r\x1bM", "\x1b[2;9r\x1bM", "\x1b7\x1b[r\x1b8"},
		"where is the cursor":      {"a\x1b[6nb", "ab", ""},
		"who are you":              {"a\x1b[c\x1b[>c\x1b[0c\x1bZ\x05b", "ab", ""},
		"its title":                {"a\x1b]0;rm -rf\x07\x1b[21tb", "ab", ""},
		"the clipboard":            {"a\x1b]52;c;Y3VybA==\x1b\\b", "ab", ""},
		"a device string":          {"a\x1bP$qm\x1b\\b", "ab", ""},
		"eight bits":               {"a\u009b6nb\u009d0;x\x07c\x9b6n", "abc\ufffd6n", ""},
		"what has scrolled away":   {"a\x1b[3Jb", "ab", ""},
		"the mouse":                {"a\x1b[?1000h\x1b[?1006hb", "ab", ""},
		"other keys":               {"a\x1b[>4;2m\x1b[?1;2cb\x1b=", "ab", ""},
		"a letter a million times": {"a\x1b[9999999bc", "ac", ""},
		"a reset of the terminal":  {"a\x1bcb\x1b[!p", "ab", ""},
		"other letters":            {"a\x0eb\x0fc\x7f\x00", "abc", ""},
		"cut off":                  {"a\x1b[31\x18b\x1b]0;x\x1ac\xe5", "abc", ""},
		"a string within a string": {"a\x1b]0;x\x1b]0;y\x1b[6n\x07b", "ab", ""},
		"a string without an end":  {"a\x1b]" + strings.Repeat("x", longestString+1) + "b", "ab", ""},
		"a sequence without end":   {"a\x1b[" + strings.Repeat("1", longestControl+1) + "b", "ab", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			g := NewGuest(&out)
			for _, b := range []byte(c.wantText) {
				if _, err := g.Write([]byte{b}); err != nil {
					t.Fatal(err)
				}
			}
			if out.String() != c.shows {
				t.Errorf("shows %q, want %q", &out, c.shows)
			}
			out.Reset()
			if err := g.Close(); err != nil || out.String() != c.reset {
				t.Errorf("in the end writes %q (%v), want %q", &out, err, c.reset)
			}
		})
	}
}

// harmless matches all output that is allowed on a terminal.
var harmless = regexp.MustCompile("^(?:[^\\x00-\\x06\\x0e-\\x1f\\x7f\u0080-\u009f]" +
	"|\\x1b[78DEM]|\\x1b\\([0B]|\\x1b\\[[0-9;:]*[@A-IKLMPSTXZ`adefmrsu]|\\x1b\\[[012]?J|\\x1b\\[\\?(?:1|7|12|25|47|1047|1048|1049|2004)[hl])*$")

// FuzzGuest checks that only harmless sequences are shown, and that characters are never split, however the
// output of a guest is divided.
func FuzzGuest(f *testing.F) {
	f.Add([]byte("größer \x1b[2J\u009b31m大\x1b]0;x\x07\x1b[?25l\x1b[6n"), uint8(3))
	f.Add([]byte("\x1b[?10\x1b[49h\xe5\x1b\x9b"), uint8(1))
	f.Fuzz(func(t *testing.T, wantText []byte, size uint8) {
		var out, whole bytes.Buffer
		g, step := NewGuest(&out), int(size)%5+1
		for rest := wantText; len(rest) > 0; rest = rest[min(step, len(rest)):] {
			if _, err := g.Write(rest[:min(step, len(rest))]); err != nil {
				t.Fatal(err)
			}
		}
		if !utf8.Valid(out.Bytes()) || !harmless.Match(out.Bytes()) {
			t.Errorf("%q shows %q", wantText, &out)
		}
		if _, err := NewGuest(&whole).Write(wantText); err != nil || whole.String() != out.String() {
			t.Errorf("%q in pieces of %d shows %q, as a whole %q (%v)", wantText, step, &out, &whole, err)
		}
	})
}
