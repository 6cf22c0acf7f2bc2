package qmp

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// FuzzClient checks that every call returns whatever QEMU's side sends, before or after the greeting, and that the
// connection is closed when the other side closes it.
func FuzzClient(f *testing.F) {
	for _, text := range []string{
		"", "\n\n", greeting, `{"QMP": 1}` + "\n" + `{"return": {}, "id": "1"}`, `{"event": "STOP"}`, `{"return": null, "id": "2"}`,
		`{"error": {"class": 5}, "id": "1"}`, `{"error": null, "return": [], "id": "2"}`, "\x00\xff", `{"return": {}, "id": "2"}` + "\n" + `{"return": {}, "id": "2"}`,
	} {
		f.Add([]byte(text), true)
		f.Add([]byte(text), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, greeted bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }() // QEMU reads at any time
		go func() {
			defer theirs.Close()
			if greeted {
				_, _ = io.WriteString(theirs, greeting+"\n"+`{"return": {}, "id": "1"}`+"\n")
			}
			_, _ = theirs.Write(append(text, '\n'))
		}()
		client, err := New(ctx, ours, func(Event) {})
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				t.Error("New does not return")
			}
			return
		}
		var result any
		var refusal *Error
		if err := client.Execute(ctx, "query-status", nil, &result); errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a command does not return: %v", err)
		} else if errors.As(err, &refusal) && refusal.Command != "query-status" {
			t.Errorf("got the error of another command: %v", refusal)
		}
		select {
		case <-client.Done():
		case <-ctx.Done():
			t.Error("the connection is still open after the other side was closed")
		}
	})
}
