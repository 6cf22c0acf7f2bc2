package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// display shows lines that change, each under a name of its own: in place on a terminal,
// otherwise as a new line for each change.
type display struct {
	out   io.Writer
	live  bool
	shown map[string]string
	lines int // that are on the terminal and can be written over
}

func newDisplay(out io.Writer, live bool) *display {
	return &display{out: out, live: live, shown: map[string]string{}}
}

// isTerminal reports whether somebody watches, on a terminal that can be drawn on.
func isTerminal(out io.Writer) bool {
	file, ok := out.(interface{ Fd() uintptr })
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// show makes the display show what the map says, and nothing else.
func (d *display) show(lines map[string]string) {
	names := make([]string, 0, len(lines))
	for name := range lines {
		names = append(names, name)
	}
	slices.Sort(names)
	if d.live {
		d.redraw(names, lines)
	} else {
		d.append(names, lines)
	}
	d.shown = lines
}

// redraw writes over what was drawn before.
func (d *display) redraw(names []string, lines map[string]string) {
	var text strings.Builder
	if d.lines > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", d.lines)
	}
	for _, name := range names {
		fmt.Fprintf(&text, "\r\x1b[K  %s  %s\n", name, lines[name])
	}
	text.WriteString("\x1b[J")
	d.lines = len(names)
	fmt.Fprint(d.out, text.String())
}

// append writes what has changed.
func (d *display) append(names []string, lines map[string]string) {
	for _, name := range names {
		if d.shown[name] != lines[name] {
			fmt.Fprintf(d.out, "  %s  %s\n", name, lines[name])
		}
	}
	for _, name := range sortedKeys(d.shown) {
		if _, there := lines[name]; !there {
			fmt.Fprintf(d.out, "  %s  gone\n", name)
		}
	}
}

// done leaves what is shown where it is.
func (d *display) done() { d.lines, d.shown = 0, map[string]string{} }

func sortedKeys(of map[string]string) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
