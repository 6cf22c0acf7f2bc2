package layers

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryControllerTriesAgainSoon: with controller-runtime's rate limiter, objects that failed
// during an outage are left alone for up to a quarter of an hour after it.
func TestEveryControllerTriesAgainSoon(t *testing.T) {
	controllers := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		made := strings.Count(string(text), "ctrl.NewControllerManagedBy(")
		if made != strings.Count(string(text), "RateLimiter: expectations.RateLimiter()") {
			t.Errorf("%s makes %d controllers, not each with expectations.RateLimiter", path, made)
		}
		controllers += made
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if controllers == 0 {
		t.Error("no controller was found")
	}
}
