package machine

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// isGolden compares a text with a golden file, or writes it.
func isGolden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("text (-want +got; -update writes it):\n%s", diff)
	}
}

// onlyThese fails if a folder has a golden file that belongs to no situation.
func onlyThese(t *testing.T, folder string, files map[string]bool) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !files[entry.Name()] && !entry.IsDir() {
			t.Errorf("%s/%s belongs to no situation", folder, entry.Name())
		}
	}
}
