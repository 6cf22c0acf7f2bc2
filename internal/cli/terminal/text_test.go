package terminal

import (
	"bytes"
	"testing"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// FuzzText checks that the output does not depend on how the text is split into writes, and that it contains no
// control sequences.
func FuzzText(f *testing.F) {
	f.Add([]byte("größer \x1b[2J\u009b31m大"), uint8(3))
	f.Add([]byte("one\ttwo\r\n\xe5"), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		var out bytes.Buffer
		to, step := NewText(&out), int(size)%5+1
		for rest := append(bytes.Clone(text), '\n'); len(rest) > 0; rest = rest[min(step, len(rest)):] {
			if n, err := to.Write(rest[:min(step, len(rest))]); n != min(step, len(rest)) || err != nil {
				t.Fatalf("wrote %d: %v", n, err)
			}
		}
		if want := messages.ToPrintable(string(text) + "\n"); out.String() != want {
			t.Errorf("%q in pieces of %d becomes %q, want %q", text, step, &out, want)
		}
	})
}
