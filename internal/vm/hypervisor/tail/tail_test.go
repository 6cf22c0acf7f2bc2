package tail

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestWriter_KeepsEnd(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		kept := Writer{Limit: rapid.IntRange(1, 20).Draw(t, "limit")}
		var all []byte
		for _, part := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 50)).Draw(t, "parts") {
			_, _ = kept.Write(part)
			all = append(all, part...)
			if len(kept.data) > 2*kept.Limit {
				t.Fatalf("stored %d bytes with a limit of %d", len(kept.data), kept.Limit)
			}
		}
		if want := all[max(0, len(all)-kept.Limit):]; !bytes.Equal(want, kept.Bytes()) {
			t.Errorf("kept %q, want %q", kept.Bytes(), want)
		}
	})
}
