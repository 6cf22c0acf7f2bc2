// Package language checks that the repository's text uses the terms of the table in CONTRIBUTING.md.
package language

import (
	"fmt"
	"regexp"
	"strings"
)

// terms are those of the table in CONTRIBUTING.md that must not appear, and what to write instead.
type terms struct {
	// inText and inNames match the terms that must not appear in text, and in the names of things.
	inText, inNames *regexp.Regexp
	write           map[string]string
}

// termsOf reads the table below a heading of a Markdown page. A row says what to write, and what not:
// terms separated by commas. A single word also matches its plural and, as a word of a name, names.
func termsOf(page, heading string) (*terms, error) {
	_, section, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		return nil, fmt.Errorf("no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	write := map[string]string{}
	var inText, inNames []string
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 2 || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[0]) == "Write" {
			continue
		}
		instead, onlyNames := strings.CutSuffix(strings.TrimSpace(cells[0]), " (in names)")
		for term := range strings.SplitSeq(cells[1], ",") {
			term = strings.TrimSpace(term)
			write[term] = instead
			if pattern := strings.ReplaceAll(regexp.QuoteMeta(term), " ", `\s+`); !onlyNames {
				inText = append(inText, pattern)
			}
			if !strings.Contains(term, " ") {
				inNames = append(inNames, term)
			}
		}
	}
	if len(write) == 0 {
		return nil, fmt.Errorf("no table below %q", heading)
	}
	return &terms{inText: anyOf(inText), inNames: anyOf(inNames), write: write}, nil
}

// anyOf matches one of several terms, or its plural.
func anyOf(patterns []string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + strings.Join(patterns, "|") + `)s?\b`)
}

// check returns a message for each term in a file that must not appear there, and for each sentence in telegraphic
// style.
func (t *terms) check(path, source string) ([]string, error) {
	texts, err := textsOf(path, source)
	if err != nil {
		return nil, err
	}
	var messages []string
	for _, text := range texts {
		not := t.inText
		if text.name {
			not = t.inNames
		}
		words := allowed.ReplaceAllStringFunc(text.words, onlyLines)
		for _, at := range not.FindAllStringSubmatchIndex(words, -1) {
			term := strings.ToLower(strings.Join(strings.Fields(words[at[2]:at[3]]), " "))
			line := text.line + strings.Count(words[:at[0]], "\n")
			messages = append(messages, fmt.Sprintf("%s:%d: %q: write %s", path, line, term, t.write[term]))
		}
		if !text.name {
			messages = append(messages, telegrams(path, text)...)
		}
	}
	return messages, nil
}

// telegram matches the condition of a sentence in telegraphic style, such as "Empty: none.".
var telegram = regexp.MustCompile(`(?m)(?:^|[.;)]\s)(Empty|Absent|Missing|Unset|Not set|Nil|nil|Zero|0|True|False|None|Otherwise):\s`)

// telegrams returns a message for each sentence of a text that has a colon instead of words.
func telegrams(path string, text text) []string {
	var messages []string
	for _, at := range telegram.FindAllStringSubmatchIndex(text.words, -1) {
		line := text.line + strings.Count(text.words[:at[2]], "\n")
		messages = append(messages, fmt.Sprintf("%s:%d: %q: write a full sentence, such as \"If empty, …\"", path, line, text.words[at[2]:at[3]]+":"))
	}
	return messages
}

// onlyLines removes everything but the ends of lines.
func onlyLines(words string) string { return strings.Repeat("\n", strings.Count(words, "\n")) }
