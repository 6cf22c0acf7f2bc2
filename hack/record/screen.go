package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// screen is a terminal with the functions that recorded programs use.
type screen struct {
	columns, rows int
	text          [][]rune
	row, column   int
}

func newScreen(columns, rows int) *screen {
	return &screen{columns: columns, rows: rows, text: make([][]rune, rows)}
}

// control matches a control sequence; colours are ignored.
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
