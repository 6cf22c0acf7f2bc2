package controlplane

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestLeftOversAreNamed: those that run, and none that has ended.
func TestLeftOversAreNamed(t *testing.T) {
	cp := bare(t, t.TempDir())
	if names := value[[]string](t)(LeftOvers(cp.Dir())); len(names) != 0 {
		t.Errorf("an empty folder has %v", names)
	}
	began := filepath.Join(t.TempDir(), "began")
	path := script(t, `echo yes >`+began+`; while :; do sleep 0.01; done`)
	must(t, cp.StartChild(t.Context(), Child{Name: Etcd, Path: path, Grace: 10 * time.Second}))
	awaitFile(t, began)
	must(t, os.WriteFile(cp.dir.pidFile(Scheduler), []byte(`{"pid":1,"start":1,"boot":"another"}`), 0o600))
	if names := value[[]string](t)(LeftOvers(cp.Dir())); !slices.Equal(names, []string{Etcd}) {
		t.Errorf("want only etcd, got %v", names)
	}
	must(t, cp.StopChildren(context.Background()))
	if names := value[[]string](t)(LeftOvers(cp.Dir())); len(names) != 0 {
		t.Errorf("a stopped child is named: %v", names)
	}
}
