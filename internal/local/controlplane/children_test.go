package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// bare returns a control plane without components, which is sufficient for children and ports.
func bare(t *testing.T, dir string) *ControlPlane {
	t.Helper()
	cp := &ControlPlane{config: Config{Dir: dir, Name: "test"}, dir: layout(dir), log: logr.Discard()}
	must(t, cp.dir.create())
	return cp
}

// script writes a shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "child")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	eventually(t, "a script has written "+path, func(context.Context) error {
		if content, err := os.ReadFile(path); err != nil || len(content) == 0 {
			return fmt.Errorf("it has %q: %w", content, err)
		}
		return nil
	})
}

// TestChild_IsSupervised checks that a child that crashes is restarted, and that a stopped child may exit
// gracefully and is not restarted.
func TestChild_IsSupervised(t *testing.T) {
	cp := bare(t, t.TempDir())
	begun, ended := filepath.Join(t.TempDir(), "begun"), filepath.Join(t.TempDir(), "ended")
	path := script(t, `trap 'echo yes >`+ended+`; exit 0' TERM; echo yes >`+begun+`; while :; do sleep 0.01; done`)
	must(t, cp.StartChild(t.Context(), Child{Name: "child", Path: path, Grace: 10 * time.Second}))
	awaitFile(t, begun)
	must(t, os.Remove(begun))
	must(t, cp.Kill("child"))
	awaitFile(t, begun)
	if err := cp.StartChild(t.Context(), Child{Name: "child", Path: path}); err == nil {
		t.Error("two children of one name")
	}
	must(t, cp.StopChildren(context.Background()))
	if _, err := os.Stat(ended); err != nil {
		t.Errorf("the child did not end gracefully: %v", err)
	}
	if err := cp.Kill("child"); err == nil {
		t.Error("there is still a child")
	}
}

// TestChild_PortIsKeptAcrossRestarts checks that a name keeps its port across restarts.
func TestChild_PortIsKeptAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	cp := bare(t, dir)
	first := value[int](t)(cp.PortFor("images", 0))
	again := bare(t, dir)
	again.ports = value[ports](t)(loadPorts(again.dir.ports()))
	if second := value[int](t)(again.PortFor("images", 0)); second != first {
		t.Errorf("port %d became %d", first, second)
	}
	taken := listen(t, 0)
	var problem *PortTakenError
	if _, err := cp.PortFor("images", taken); !errors.As(err, &problem) || problem.Port != taken {
		t.Errorf("a taken port gives %v", err)
	}
}

// TestOrphans_OnlyRunningProcesses checks that only running processes are counted.
func TestOrphans_OnlyRunningProcesses(t *testing.T) {
	cp := bare(t, t.TempDir())
	if names := value[[]string](t)(Orphans(cp.Dir())); len(names) != 0 {
		t.Errorf("an empty directory has %v", names)
	}
	began := filepath.Join(t.TempDir(), "began")
	path := script(t, `echo yes >`+began+`; while :; do sleep 0.01; done`)
	must(t, cp.StartChild(t.Context(), Child{Name: Etcd, Path: path, Grace: 10 * time.Second}))
	awaitFile(t, began)
	must(t, os.WriteFile(cp.dir.record(Scheduler), []byte(`{"pid":1}`), 0o600))
	if names := value[[]string](t)(Orphans(cp.Dir())); !slices.Equal(names, []string{Etcd}) {
		t.Errorf("want only etcd, got %v", names)
	}
	must(t, cp.StopChildren(context.Background()))
	if names := value[[]string](t)(Orphans(cp.Dir())); len(names) != 0 {
		t.Errorf("a stopped child counts: %v", names)
	}
}
