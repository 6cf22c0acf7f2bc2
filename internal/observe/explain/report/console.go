package report

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Limits for console output, whose content the guest controls.
const (
	// consoleBytes is the size of the end of the output that is searched, in bytes.
	consoleBytes = 16 << 10
	// consoleLines is the maximum number of lines, and consoleLine is the maximum length of a line in bytes.
	consoleLines = 8
	consoleLine  = 400
)

// escapes matches terminal control sequences, for example titles and colors.
var escapes = regexp.MustCompile(`\x1b(?:[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\[[0-?]*[ -/]*[@-~]?|[ -/]*[0-~]?)`)

// hostKey matches lines of cloud-init's list of SSH host keys, which it writes to the console last, and which would hide
// all other lines: headings, fingerprints, keys, and lines between them.
var hostKey = regexp.MustCompile(`-----(BEGIN|END) SSH HOST KEY (FINGERPRINTS|KEYS)-----|(^|: )(` +
	`#{20,}|[0-9]+ SHA256:\S+ .*|(sk-)?(ssh|ecdsa)-[a-z0-9@.-]+ AAAA\S+( .*)?)$`)

// firmwareLine matches the lines that SeaBIOS prints, and those of OVMF before it starts its shell. OVMF starts its shell
// if no disk boots, so the prompt of the shell is then the last line.
var firmwareLine = regexp.MustCompile(`^(SeaBIOS \(version|Booting from [A-Za-z/ ]*\.*$|Boot failed: |No bootable device|BdsDxe: )`)

const firmwareShell = "Shell>"

// HasGuestOutput reports whether a console has more output than that of the firmware. A guest can imitate the firmware,
// so only advice may depend on the result.
func HasGuestOutput(console []byte) bool {
	lines := LastLines(console)
	if len(lines) == 0 || lines[len(lines)-1] == firmwareShell {
		return false
	}
	return slices.ContainsFunc(lines, func(line string) bool { return !firmwareLine.MatchString(line) })
}

// LastLines returns the last non-empty lines of a console's output, the latest last, without SSH host keys. They are
// printable, and limited in number and length. The guest controls their content, so they are only shown, and no decisions are
// based on them.
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
		line = line[strings.LastIndexByte(line, '\r')+1:] // a terminal shows only the text after the last carriage return
		if line = strings.TrimSpace(messages.Line(line)); line != "" && !hostKey.MatchString(line) {
			lines = append(lines, messages.Shorten(line, consoleLine))
		}
	}
	return lines[max(0, len(lines)-consoleLines):]
}
