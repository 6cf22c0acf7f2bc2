package terminal

import (
	"io"
	"sync"
	"unicode/utf8"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Text is an output for texts, some of which come from providers, guests and users. It replaces unprintable
// characters, so that texts cannot control the terminal on which they are read; see messages.ToPrintable. Use
// NewText to create one.
type Text struct {
	out io.Writer

	mu sync.Mutex
	// begun is an incomplete letter at the end of the last write.
	begun []byte
}

// NewText returns a Text that writes to another output.
func NewText(out io.Writer) *Text { return &Text{out: out} }

// Raw returns the output below a Text, and any other output itself. It is for control sequences of this
// program, and for the console of a guest with --raw.
func Raw(out io.Writer) io.Writer {
	if text, ok := out.(*Text); ok {
		return Raw(text.out)
	}
	return out
}

// Write implements io.Writer.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := append(t.begun, p...)
	end := whole(all)
	t.begun = append([]byte(nil), all[end:]...)
	if _, err := io.WriteString(t.out, messages.ToPrintable(string(all[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// whole returns the number of bytes before an incomplete letter at the end.
func whole(text []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if start := len(text) - back; utf8.RuneStart(text[start]) {
			if !utf8.FullRune(text[start:]) {
				return start
			}
			break
		}
	}
	return len(text)
}
