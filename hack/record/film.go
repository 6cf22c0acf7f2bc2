package main

import (
	"fmt"
	"html"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// together is the maximum interval of changes that are shown as one.
	together = 120 * time.Millisecond
	// longest is the maximum duration of a picture.
	longest = 1500 * time.Millisecond
	// last is the duration of the last picture.
	last = 6 * time.Second

	// Sizes of letters and margins, in pixels.
	letterWidth, lineHeight, margin, fontSize = 8, 18, 16, 13.3
)

// picture is the content of the terminal from a point in time.
type picture struct {
	at    time.Time
	lines []string
}

// film is the sequence of pictures of the terminal.
type film struct{ pictures []picture }

// add adds the current content of the terminal, unless it has not changed.
func (f *film) add(now time.Time, lines []string) {
	if n := len(f.pictures); n > 0 {
		before := &f.pictures[n-1]
		if slices.Equal(before.lines, lines) {
			return
		}
		if n > 1 && now.Sub(before.at) < together {
			before.lines = lines
			return
		}
	}
	f.pictures = append(f.pictures, picture{at: now, lines: lines})
}

// times returns the start time of each picture and the end time of the last one.
func (f *film) times() []time.Duration {
	begin, all := time.Duration(0), []time.Duration{}
	for i := range f.pictures {
		all = append(all, begin)
		if i+1 < len(f.pictures) {
			begin += min(f.pictures[i+1].at.Sub(f.pictures[i].at), longest)
		}
	}
	return append(all, begin+last)
}

// svg draws the film. Each line of text is written once and used in all its pictures. Viewers without animation
// show the last picture.
func (f *film) svg(columns, rows int) string {
	width, height := columns*letterWidth+2*margin, rows*lineHeight+2*margin
	times := f.times()
	end := times[len(times)-1]
	percent := func(at time.Duration) float64 { return 100 * at.Seconds() / end.Seconds() }
	var style, defs, body strings.Builder
	ids := map[string]string{}
	for i, shown := range f.pictures {
		if i < len(f.pictures)-1 {
			fmt.Fprintf(&style, "@keyframes p%d{0%%{visibility:hidden}%.3f%%{visibility:visible}%.3f%%{visibility:hidden}}\n", i, percent(times[i]), percent(times[i+1]))
			fmt.Fprintf(&style, "#p%d{visibility:hidden;animation:p%d %.2fs step-end infinite}\n", i, i, end.Seconds())
		} else {
			fmt.Fprintf(&style, "@keyframes p%d{0%%{visibility:hidden}%.3f%%{visibility:visible}}\n#p%d{animation:p%d %.2fs step-end infinite}\n", i, percent(times[i]), i, i, end.Seconds())
		}
		fmt.Fprintf(&body, `<g id="p%d">`, i)
		for row, line := range shown.lines {
			if line == "" {
				continue
			}
			if ids[line] == "" {
				ids[line] = fmt.Sprintf("l%d", len(ids))
				fmt.Fprintf(&defs, "<text id=%q%s>%s</text>\n", ids[line], class(line), html.EscapeString(line))
			}
			fmt.Fprintf(&body, `<use href="#%s" y="%d"/>`, ids[line], (row+1)*lineHeight)
		}
		body.WriteString("</g>\n")
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d">
<style>
text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:%[3]gpx;fill:#d6dde6;white-space:pre}
.typed{fill:#8fd18f}
@media (prefers-reduced-motion:reduce){g{animation:none!important}}
%[4]s</style>
<defs>
%[5]s</defs>
<rect width="100%%" height="100%%" rx="8" fill="#15191f"/>
<g transform="translate(%[6]d %[7]d)">
%[8]s</g>
</svg>
`, width, height, fontSize, style.String(), defs.String(), margin, margin-5, body.String())
}

// class returns the CSS class of a typed line.
func class(line string) string {
	if strings.HasPrefix(line, "$ ") {
		return ` class="typed"`
	}
	return ""
}

// screen is a terminal with the functions that recorded programs use.
type screen struct {
	columns, rows int
	text          [][]rune
	row, column   int
}

func newScreen(columns, rows int) *screen {
	return &screen{columns: columns, rows: rows, text: make([][]rune, rows)}
}

// control matches a control sequence; colors are ignored.
var control = regexp.MustCompile(`^\x1b\[([\d;]*)([A-Za-z])`)

func (s *screen) write(text string) {
	for len(text) > 0 {
		if found := control.FindStringSubmatch(text); found != nil {
			s.control(found[2], found[1])
			text = text[len(found[0]):]
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch r {
		case '\n':
			s.newLine()
		case '\r':
			s.column = 0
		case '\t':
			s.column = min(s.column/8*8+8, s.columns-1)
		default:
			s.put(r)
		}
	}
}

func (s *screen) control(what, number string) {
	switch n, _ := strconv.Atoi(number); what {
	case "A": // up
		s.row = max(0, s.row-n)
	case "K": // delete the rest of the row
		s.text[s.row] = s.text[s.row][:min(s.column, len(s.text[s.row]))]
	case "J": // and all rows below
		s.text[s.row] = s.text[s.row][:min(s.column, len(s.text[s.row]))]
		clear(s.text[s.row+1:])
	}
}

func (s *screen) put(r rune) {
	if s.column == s.columns {
		s.newLine()
	}
	line := s.text[s.row]
	for len(line) <= s.column {
		line = append(line, ' ')
	}
	line[s.column] = r
	s.text[s.row] = line
	s.column++
}

func (s *screen) newLine() {
	s.column = 0
	if s.row < s.rows-1 {
		s.row++
		return
	}
	s.text = append(slices.Clone(s.text[1:]), nil)
}

// lines returns the lines of the screen without trailing blanks.
func (s *screen) lines() []string {
	lines := make([]string, len(s.text))
	for i, line := range s.text {
		lines[i] = strings.TrimRight(string(line), " ")
	}
	return lines
}
