// Package terminal draws changing lines on a terminal.
package terminal

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Screen draws lines on a terminal and replaces those that it drew before.
type Screen struct {
	// Out is the terminal.
	Out io.Writer
	// Size returns the current number of columns and rows. Zero means unknown.
	Size func() (columns, rows int)
	// shown holds the widths of the lines on the terminal.
	shown []int
}

// Open returns a screen on an output, or nil if the output is not a terminal that supports drawing.
func Open(out io.Writer) *Screen {
	out = Raw(out)
	file, ok := out.(interface{ Fd() uintptr })
	if !ok || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return &Screen{Out: out, Size: func() (columns, rows int) {
		columns, rows, _ = term.GetSize(int(file.Fd()))
		return columns, rows
	}}
}

// Columns returns the width of a terminal, or 0 for any other output.
func Columns(out io.Writer) int {
	screen := Open(out)
	if screen == nil {
		return 0
	}
	columns, _ := screen.Size()
	return columns
}

// Draw replaces the lines that were shown before. List items, which begin with "  - ", and the last column of a
// table, whose titles are in capital letters, continue on the next line. Other lines are truncated: a line that
// wraps, or has left the screen, cannot be replaced.
func (s *Screen) Draw(lines []string) error {
	columns, rows := s.Size()
	if columns <= 0 || rows <= 0 {
		columns, rows = 80, 24
	}
	lines = printable(lines)
	lines = broken(lines, columns-1)
	lines = fitted(lines, max(rows-1, 1)) // the cursor is below the last line
	var text strings.Builder
	if up := s.rows(columns); up > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", min(up, rows-1))
	}
	s.shown = s.shown[:0]
	for _, line := range lines {
		line, width := cut(line, columns-1)
		fmt.Fprintf(&text, "\r\x1b[K%s\n", line)
		s.shown = append(s.shown, width)
	}
	text.WriteString("\x1b[J")
	if _, err := io.WriteString(s.Out, text.String()); err != nil {
		return fmt.Errorf("cannot write to the terminal: %w", err)
	}
	return nil
}

// printable returns lines without terminal control characters.
func printable(lines []string) []string {
	all := make([]string, 0, len(lines))
	for _, line := range lines {
		all = append(all, messages.Line(line))
	}
	return all
}

// fitted drops lines if there are too many: first those of the table, then the last lines.
func fitted(lines []string, most int) []string {
	all := len(lines)
	if all <= most {
		return lines
	}
	if from := slices.Index(lines, ""); from >= 0 {
		if to := slices.Index(lines[from+1:], ""); to >= 0 {
			lines = slices.Concat(lines[:from], lines[from+1+to:])
		}
	}
	lines = lines[:min(len(lines), most-1)]
	return append(slices.Clip(lines), fmt.Sprintf("… and %d more lines", all-len(lines)))
}

// rows returns how many rows the shown lines take on a terminal of that width, which may have become narrower.
func (s *Screen) rows(columns int) int {
	sum := 0
	for _, width := range s.shown {
		sum += max(1, (width+columns-1)/columns)
	}
	return sum
}

// item is the prefix of list items.
const item = "  - "

// broken breaks long list items between words into several lines.
func broken(lines []string, columns int) []string {
	const most = 4
	var all []string
	column := 0 // start of the last column of a table
	for _, line := range lines {
		switch {
		case line == "":
			column = 0
		case isTitles(line):
			column = strings.LastIndex(line, "  ") + 2
		}
		if column > 0 {
			all = append(all, row(line, column, columns)...)
			continue
		}
		indent := strings.Repeat(" ", len(item))
		if !strings.HasPrefix(line, item) || columns < 2*len(item) {
			all = append(all, line)
			continue
		}
		for n := 1; n < most && !fits(line, columns); n++ {
			at := lineBreak(line, columns)
			if at <= len(item) {
				break
			}
			all = append(all, strings.TrimRight(line[:at], " "))
			line = indent + strings.TrimLeft(line[at:], " ")
		}
		all = append(all, line)
	}
	return all
}

// isTitles reports whether a line is the first one of a table.
func isTitles(line string) bool {
	return strings.Contains(strings.TrimLeft(line, " "), "  ") && strings.ToUpper(line) == line
}

// row breaks a row of the table between the parts of its last column.
func row(line string, column, columns int) []string {
	const enough = 16 // for most parts
	indent := strings.Repeat(" ", column)
	if columns-column < enough {
		indent = strings.Repeat(" ", 2*len(item))
	}
	if fits(line, columns) || len(line) <= column || isTitles(line) || columns < len(indent)+enough {
		return []string{line}
	}
	var all []string
	now := strings.TrimRight(line[:column], " ")
	for i, part := range strings.SplitAfter(line[column:], ", ") {
		next := now + part
		if i == 0 {
			next = line[:column] + part
		}
		if !fits(strings.TrimRight(next, " "), columns) {
			all = append(all, strings.TrimRight(now, " "))
			next = indent + part
		}
		now = next
	}
	return append(all, now)
}

func fits(line string, columns int) bool {
	short, _ := cut(line, columns)
	return short == line
}

// lineBreak returns the number of bytes after which to break a line that is too long: after the last word that
// fits, or else within the first word.
func lineBreak(line string, columns int) int {
	width, blank := 0, 0
	for at, r := range line {
		if r == ' ' && at > len(item) {
			blank = at
		}
		if width += widthOf(r); width > columns {
			return cmp.Or(blank, at)
		}
	}
	return len(line)
}

// cut truncates a line to a number of columns, and returns its width.
func cut(line string, columns int) (string, int) {
	width := 0
	for at, r := range line {
		next := width + widthOf(r)
		if next > columns || next == columns && at+len(string(r)) < len(line) {
			return line[:at] + "…", width + 1
		}
		width = next
	}
	return line, width
}

// widthOf returns the maximum number of columns that a letter takes on any terminal.
func widthOf(r rune) int {
	const hangul = 0x1100 // all wide letters come after these
	if r >= hangul && (r < 0x2000 || r > 0x27ff) {
		return 2
	}
	return 1
}
