package program

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestMemory_IsLimitedLikeTheContainer(t *testing.T) {
	t.Cleanup(func() { debug.SetMemoryLimit(math.MaxInt64) })
	for name, tc := range map[string]struct {
		content, environment string
		want                 int64
	}{
		"a limit":                    {"1073741824\n", "", 966367638},
		"no limit":                   {"max\n", "", math.MaxInt64},
		"no file":                    {"", "", math.MaxInt64},
		"a limit in the environment": {"1073741824\n", "1GiB", math.MaxInt64}, // the runtime reads it at the start
	} {
		debug.SetMemoryLimit(math.MaxInt64)
		t.Setenv("GOMEMLIMIT", tc.environment) // restores the value after the test
		if tc.environment == "" {
			if err := os.Unsetenv("GOMEMLIMIT"); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(t.TempDir(), "memory.max")
		if tc.content != "" {
			if err := os.WriteFile(file, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		limitMemory(file)
		if got := debug.SetMemoryLimit(-1); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
