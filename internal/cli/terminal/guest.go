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

// Guest writes the output of a guest's console to a terminal. A guest may write, set colors and move the
// cursor. It cannot query the terminal, whose responses would appear to be typed by the user, and it cannot
// access the clipboard, the window and its title, or the scrollback. Close resets what it has changed. Use
// NewGuest to create one.
type Guest struct {
	out io.Writer

	state    guestState
	sequence []byte // an incomplete sequence; in the ground state, an incomplete letter
	dropped  int    // bytes of the string that is being dropped
	modes    map[string]bool
	used     map[byte]bool // final bytes of sequences with a lasting effect
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
	// longestControl is the maximum length of a control sequence, in bytes.
	longestControl = 64
	// longestString is the length in bytes after which a string is considered terminated, since noise on the
	// line may have begun it.
	longestString = 4096

	escapeByte, bell, cancelByte, substitute, deleteByte = 0x1b, 0x07, 0x18, 0x1a, 0x7f
)

// guestModes are the modes that a guest may set: cursor keys, wrapping, the cursor, the alternate screen, and
// bracketed paste.
var guestModes = []string{"1", "7", "12", "25", "47", "1047", "1048", "1049", "2004"}

// NewGuest returns a Guest that writes to a terminal.
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

// take processes a byte, and appends what is to be shown.
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

// to begins a sequence of the given kind.
func (g *Guest) to(state guestState) {
	g.state, g.sequence, g.dropped = state, g.sequence[:0], 0
}

// text processes a byte of a letter, or a control character.
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

// eightBit processes a control character that stands for ESC and another character.
func (g *Guest) eightBit(r rune) {
	switch r {
	case 0x9b:
		g.to(inControl)
	case 0x90, 0x98, 0x9d, 0x9e, 0x9f:
		g.to(inString)
	}
}

// escape processes the byte after ESC.
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

// charset processes the letter of a character set: line drawing or ASCII.
func (g *Guest) charset(shown []byte, b byte) []byte {
	g.to(ground)
	if b != '0' && b != 'B' {
		return shown
	}
	g.used['('] = true
	return append(shown, escapeByte, '(', b)
}

// skip processes a byte of a string, such as a title.
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

// control processes a byte of a control sequence.
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

// allowed reports whether a control sequence is shown, and records its lasting effects.
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
	case 'J': // 3 would clear the scrollback
		return parameters == "" || parameters == "0" || parameters == "1" || parameters == "2"
	case 'm', 'r':
		g.used[final] = true
		return true
	}
	return bytes.IndexByte([]byte("@ABCDEFGHIKLMPSTXZ`adefsu"), final) >= 0
}

// Close resets what the guest has changed. It does not close the output.
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
		reset += "\x1b7\x1b[r\x1b8" // the reset moves the cursor
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
