package console

// Keys that are more than letters.
const (
	backspace = 0x08
	rubout    = 0x7f
	killLine  = 0x15 // ctrl-U
	interrupt = 0x03 // ctrl-C
)

// longestLine bounds what is typed; more is not taken.
const longestLine = 128

// Editor makes lines out of what is typed, and says what to show meanwhile. The zero
// value has an empty line.
type Editor struct {
	line     []byte
	returned bool // the key before was a carriage return
}

// Type takes one byte. echo is what the terminal must show for it; done says that line
// is complete.
func (e *Editor) Type(key byte) (echo, line string, done bool) {
	returned := e.returned
	e.returned = key == '\r'
	switch {
	case key == '\n' && returned: // the second half of a line's end
		return "", "", false
	case key == '\r' || key == '\n':
		line, e.line = string(e.line), nil
		return "\n", line, true
	case key == backspace || key == rubout:
		return e.erase(1), "", false
	case key == killLine:
		return e.erase(len(e.line)), "", false
	case key == interrupt:
		e.line = nil
		return "^C\n", "", false
	case !e.takes(key):
		return "", "", false
	}
	e.line = append(e.line, key)
	return string(rune(key)), "", false
}

// takes reports whether the line may grow by this byte.
func (e *Editor) takes(key byte) bool {
	return key >= ' ' && key <= '~' && len(e.line) < longestLine
}

func (e *Editor) erase(count int) string {
	echo := ""
	for ; count > 0 && len(e.line) > 0; count-- {
		e.line = e.line[:len(e.line)-1]
		echo += "\b \b"
	}
	return echo
}
