package recorder

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

func TestRecorder_RemovesControlCharacters(t *testing.T) {
	fake := record.NewFakeRecorder(3)
	recorder := New(fake)
	recorder.Event(nil, corev1.EventTypeNormal, "R", "a\x1b[2Jb")
	recorder.Eventf(nil, corev1.EventTypeNormal, "R", "%s", "a\x1b[2Jb")
	recorder.AnnotatedEventf(nil, nil, corev1.EventTypeNormal, "R", "%s", "a\x1b[2Jb")
	for range 3 {
		if got := <-fake.Events; got != "Normal R a [2Jb" {
			t.Errorf("sends %q", got)
		}
	}
	recorder.Event(nil, corev1.EventTypeNormal, "R", strings.Repeat("x", 1<<20))
	if got := <-fake.Events; len(got) > Longest+100 {
		t.Errorf("sends %d bytes", len(got))
	}
}

// TestRecorder_WrapsAllRecorders checks that every event recorder of the repository is wrapped by this package.
func TestRecorder_WrapsAllRecorders(t *testing.T) {
	made, seen := regexp.MustCompile(`\.NewRecorder\(|GetEventRecorder(For)?\(`), 0
	printable := regexp.MustCompile(`recorder\.New\([a-z.]+\.NewRecorder\(`)
	err := filepath.WalkDir("../../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(source)) {
			switch at := strings.TrimSpace(line); {
			case strings.HasPrefix(at, "//") || !made.MatchString(at):
			case printable.MatchString(at):
				seen++
			default:
				t.Errorf("%s creates a recorder without making its texts printable: %s", path, at)
			}
		}
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("%d recorders were checked: %v", seen, err)
	}
}
