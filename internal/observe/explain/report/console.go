package report

import (
	"bytes"
	"regexp"
	"strings"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Limits of what is taken over from a console, which a guest fills as it likes.
const (
	// consoleBytes is how much of its end is looked at, in bytes.
	consoleBytes = 16 << 10
	// consoleLines is how many of its lines are shown, and consoleLine how long each may be, in bytes.
	consoleLines = 8
	consoleLine  = 400
)

// escapes are what a guest sends to a terminal beside text: strings such as a title, and commands as for colours.
var escapes = regexp.MustCompile(`\x1b(?:[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\[[0-?]*[ -/]*[@-~]?|[ -/]*[0-~]?)`)

// LastLines returns the last lines of a console's output in which there is something to read, the newest last. They
// are printable, bounded in number and length, and the guest's words: they are shown, and nothing is decided on them.
func LastLines(console []byte) []string {
	if cut := len(console) - consoleBytes; cut > 0 {
		console = console[cut:]
		if _, whole, found := bytes.Cut(console, []byte("\n")); found {
			console = whole
		}
	}
	text := escapes.ReplaceAllString(strings.ToValidUTF8(string(console), "\ufffd"), "")
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimRight(line, "\r")
		line = line[strings.LastIndexByte(line, '\r')+1:] // the last one that was written over the others
		if line = strings.TrimSpace(messages.Line(line)); line != "" {
			lines = append(lines, messages.Shorten(line, consoleLine))
		}
	}
	return lines[max(0, len(lines)-consoleLines):]
}
