package terminal

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Guest is the output of a guest's console on a terminal. A guest may write, colour and move the cursor. It gets
// no answer out of the terminal, which its user would seem to have typed; and it reaches neither the clipboard, nor
// the window and its title, nor what has scrolled away. Close undoes what it has switched on. Make one with NewGuest.
type Guest struct {
	out io.Writer

	state    guestState
	sequence []byte // of which the end is not known yet; the beginning of a letter in the ground state
	dropped  int    // bytes of the string that is left out
	modes    map[string]bool
	used     map[byte]bool // final bytes of sequences with an effect that stays
}

type guestState int

const (
	ground guestState = iota
	afterEscape
	inControl // ESC [
	inCharset // ESC (
	inString
	inStringAfterEscape
)

const (
	// longestControl is how long a control sequence may be, in bytes.
	longestControl = 64
	// longestString is after how many bytes a string counts as ended, which noise on the line may have begun.
	longestString = 4096

	escapeByte, bell, cancelByte, substitute, deleteByte = 0x1b, 0x07, 0x18, 0x1a, 0x7f
)

// guestModes are the modes that a guest may set: keys of the cursor, wrapping, the cursor, the other screen, and
// bracketed paste.
var guestModes = []string{"1", "7", "12", "25", "47", "1047", "1048", "1049", "2004"}

// NewGuest returns the output that writes to a terminal.
func NewGuest(out io.Writer) *Guest {
	return &Guest{out: out, modes: map[string]bool{}, used: map[byte]bool{}}
}

// Write implements io.Writer.
func (g *Guest) Write(p []byte) (int, error) {
	var shown []byte
	for _, b := range p {
		shown = g.take(shown, b)
	}
	if len(shown) > 0 {
		if _, err := g.out.Write(shown); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// take appends what is to be shown when a byte comes.
func (g *Guest) take(shown []byte, b byte) []byte {
	switch {
	case b == cancelByte || b == substitute:
		g.to(ground)
		return shown
	case g.state == ground:
		return g.text(shown, b)
	case g.state == inString || g.state == inStringAfterEscape:
		g.skip(b)
		return shown
	case b == escapeByte:
		g.to(afterEscape)
		return shown
	case b < ' ' || b >= deleteByte:
		return shown // in the middle of a sequence
	}
	g.sequence = append(g.sequence, b)
	switch g.state {
	case afterEscape:
		return g.escape(shown, b)
	case inCharset:
		return g.charset(shown, b)
	}
	return g.control(shown, b)
}

// to begins a sequence of that kind.
func (g *Guest) to(state guestState) {
	g.state, g.sequence, g.dropped = state, g.sequence[:0], 0
}

// text takes a byte of a letter, or a control character.
func (g *Guest) text(shown []byte, b byte) []byte {
	if b < utf8.RuneSelf {
		if len(g.sequence) > 0 {
			shown, g.sequence = utf8.AppendRune(shown, utf8.RuneError), g.sequence[:0]
		}
		switch {
		case b == escapeByte:
			g.to(afterEscape)
		case b >= ' ' && b != deleteByte, b >= bell && b <= '\r':
			shown = append(shown, b)
		}
		return shown
	}
	g.sequence = append(g.sequence, b)
	if !utf8.FullRune(g.sequence) {
		return shown
	}
	r, size := utf8.DecodeRune(g.sequence)
	rest := append([]byte(nil), g.sequence[size:]...)
	g.sequence = g.sequence[:0]
	if r >= 0x80 && r < 0xa0 {
		g.eightBit(r)
	} else {
		shown = utf8.AppendRune(shown, r)
	}
	for _, b := range rest {
		shown = g.take(shown, b)
	}
	return shown
}

// eightBit takes a control character that stands for ESC and another one.
func (g *Guest) eightBit(r rune) {
	switch r {
	case 0x9b:
		g.to(inControl)
	case 0x90, 0x98, 0x9d, 0x9e, 0x9f:
		g.to(inString)
	}
}

// escape takes the byte after ESC.
func (g *Guest) escape(shown []byte, b byte) []byte {
	switch b {
	case '[':
		g.to(inControl)
	case '(':
		g.to(inCharset)
	case ']', 'P', 'X', '^', '_':
		g.to(inString)
	case '7', '8', 'D', 'E', 'M':
		shown = append(shown, escapeByte, b)
		g.to(ground)
	default:
		g.to(ground)
	}
	return shown
}

// charset takes the letter of a set of characters: lines, or ASCII.
func (g *Guest) charset(shown []byte, b byte) []byte {
	g.to(ground)
	if b != '0' && b != 'B' {
		return shown
	}
	g.used['('] = true
	return append(shown, escapeByte, '(', b)
}

// skip takes a byte of a string, such as a title.
func (g *Guest) skip(b byte) {
	g.dropped++
	switch ended := g.state == inStringAfterEscape && b == '\\'; {
	case ended, b == bell, g.dropped > longestString:
		g.to(ground)
	case b == escapeByte:
		g.state = inStringAfterEscape
	default:
		g.state = inString
	}
}

// control takes a byte of a control sequence.
func (g *Guest) control(shown []byte, b byte) []byte {
	if b < '@' {
		if len(g.sequence) > longestControl {
			g.to(ground)
		}
		return shown
	}
	parameters := string(g.sequence[:len(g.sequence)-1])
	g.to(ground)
	if !g.allowed(parameters, b) {
		return shown
	}
	return append(append(append(shown, escapeByte, '['), parameters...), b)
}

// allowed reports whether a control sequence is shown, and remembers what stays of it.
func (g *Guest) allowed(parameters string, final byte) bool {
	if mode, private := strings.CutPrefix(parameters, "?"); private {
		if (final != 'h' && final != 'l') || !slices.Contains(guestModes, mode) {
			return false
		}
		g.modes[mode] = final == 'h'
		return true
	}
	if strings.Trim(parameters, "0123456789;:") != "" {
		return false
	}
	switch final {
	case 'J': // 3 would delete what has scrolled away
		return parameters == "" || parameters == "0" || parameters == "1" || parameters == "2"
	case 'm', 'r':
		g.used[final] = true
		return true
	}
	return bytes.IndexByte([]byte("@ABCDEFGHIKLMPSTXZ`adefsu"), final) >= 0
}

// Close undoes what the guest has switched on. It does not close the output.
func (g *Guest) Close() error {
	reset := ""
	for _, mode := range slices.Sorted(maps.Keys(g.modes)) {
		switch normal := mode == "7" || mode == "25"; {
		case normal && !g.modes[mode]:
			reset += fmt.Sprintf("\x1b[?%sh", mode)
		case !normal && g.modes[mode]:
			reset += fmt.Sprintf("\x1b[?%sl", mode)
		}
	}
	if g.used['r'] {
		reset += "\x1b7\x1b[r\x1b8" // it moves the cursor
	}
	if g.used['('] {
		reset += "\x1b(B"
	}
	if g.used['m'] {
		reset += "\x1b[m"
	}
	clear(g.modes)
	clear(g.used)
	if reset == "" {
		return nil
	}
	_, err := io.WriteString(g.out, reset)
	return err
}
