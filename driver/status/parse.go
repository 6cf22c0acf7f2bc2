package status

import (
	"strings"

	"github.com/millwright-dev/millwright/driver/codes"
)

// The fixed parts of the text form.
const (
	prefix = "machine codes error: code = ["
	middle = "] message = ["
	suffix = "]"
)

// parse returns the code and the message of a text that contains the text form of a Status. For an unknown name of
// a code, it returns Unknown.
func parse(text string) (codes.Code, string, bool) {
	if code, message, ok := parseMarked(text); ok {
		return code, message, true
	}
	return parseGroups(text)
}

// parseMarked looks for the fixed parts of the text form. If a message quotes another Status, it returns the
// outermost one.
func parseMarked(text string) (codes.Code, string, bool) {
	before, rest, ok := strings.Cut(text, prefix)
	if !ok {
		return 0, "", false
	}
	name, rest, ok := strings.Cut(rest, middle)
	if !ok || strings.ContainsAny(name, "[]") {
		return 0, "", false
	}
	// If the text consists only of a text form, the last bracket closes the message. If more text may follow, the
	// message extends to where the brackets are balanced.
	end := -1
	if before != "" || !strings.HasSuffix(rest, suffix) {
		end = closing(rest)
	}
	if end < 0 {
		end = strings.LastIndex(rest, suffix)
	}
	if end < 0 {
		return 0, "", false
	}
	return codes.StringToCode(name), rest[:end], true
}

// closing returns the index of the bracket that closes the group that starts before text, or -1.
func closing(text string) int {
	depth := 1
	for i := range len(text) {
		switch text[i] {
		case '[':
			depth++
		case ']':
			depth--
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}

// parseGroups accepts the text forms of other implementations of the contract: any text with exactly two groups in
// brackets, of which the first is the name of a code. It does not accept OK and unknown names, since many other
// texts have two groups.
func parseGroups(text string) (codes.Code, string, bool) {
	var groups []string
	for rest := text; ; {
		start := strings.IndexByte(rest, '[')
		if start < 0 {
			break
		}
		rest = rest[start+1:]
		end := closing(rest)
		if end < 0 || len(groups) == 2 {
			return 0, "", false
		}
		groups = append(groups, rest[:end])
		rest = rest[end+1:]
	}
	if len(groups) != 2 {
		return 0, "", false
	}
	code := codes.StringToCode(groups[0])
	if code.String() != groups[0] || code == codes.OK {
		return 0, "", false
	}
	return code, groups[1], true
}
