package hypervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNextRun_IDsIncrease(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	now := time.Unix(1_700_000_000, 5)
	for _, step := range []struct {
		at   time.Time
		want uint64
	}{
		{now, 1_700_000_000_000_000_005},
		{now, 1_700_000_000_000_000_006},                 // a clock that stands still
		{now.Add(-time.Hour), 1_700_000_000_000_000_007}, // or was set back
		{now.Add(time.Second), 1_700_000_001_000_000_005},
		{time.Unix(-5, 0), 1_700_000_001_000_000_006}, // far back
	} {
		got, err := NextRun(dir, step.at)
		must(t, err)
		if got != step.want {
			t.Errorf("at %s: got %d, want %d", step.at, got, step.want)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "run-id"), []byte(strings.Repeat("9", 40)), 0o600))
	if got, err := NextRun(dir, now); err != nil || got != uint64(now.UnixNano()) {
		t.Errorf("after invalid content: got %d, %v", got, err)
	}
}
