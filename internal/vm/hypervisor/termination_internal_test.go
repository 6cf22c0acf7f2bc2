package hypervisor

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func TestTermination_ExitCode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	for reason, want := range map[string]int{
		vmpb.EndGuestShutdown: 0, vmpb.EndTerminated: 0, vmpb.EndStopped: 0,
		vmpb.EndInvalidSpec: 1, vmpb.EndQEMUFailed: 1, vmpb.EndInternal: 1, "": 1, "Future": 1,
	} {
		// The second time, the file exists and is longer.
		for _, message := range []string{"a sentence", ""} {
			left := vmpb.Termination{Reason: reason, Message: message}
			code, err := WriteTermination(path, left)
			must(t, err)
			if code != want {
				t.Errorf("exit code for %q = %d, want %d", reason, code, want)
			}
			if got := readTermination(t, path); got != left {
				t.Errorf("wrote %+v, read %+v", left, got)
			}
		}
	}
}

func readTermination(t *testing.T, path string) (termination vmpb.Termination) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	if len(text) > 4096 {
		t.Errorf("%d bytes exceed the limit of Kubernetes", len(text))
	}
	must(t, json.Unmarshal(text, &termination))
	return termination
}

func TestTermination_LongMessageIsTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	for name, text := range map[string]string{
		"plain": "x", "quotes": `"`, "letters of two bytes": "ä", "not UTF-8": "\xffx", "control": "\x01",
	} {
		message := strings.Repeat(text, 20_000)
		_, err := WriteTermination(path, vmpb.Termination{Reason: vmpb.EndQEMUFailed, Message: message})
		must(t, err)
		got := readTermination(t, path)
		if got.Reason != vmpb.EndQEMUFailed || len(got.Message) < 500 || !utf8.ValidString(got.Message) {
			t.Errorf("%s: the message has only %d bytes", name, len(got.Message))
		}
	}
}

func TestTermination_FileCannotBeWritten(t *testing.T) {
	code, err := WriteTermination(filepath.Join(t.TempDir(), "nothing", "log"), vmpb.Termination{Reason: vmpb.EndStopped})
	if !errors.Is(err, os.ErrNotExist) || code != 0 {
		t.Errorf("exit code = %d, error = %v; want a valid exit code and ErrNotExist", code, err)
	}
}
