package controlplane

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// bare is a control plane without components: enough for what runs beside one.
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
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		if content, err := os.ReadFile(path); err == nil && len(content) > 0 {
			return
		}
		time.Sleep(time.Millisecond) // nobody tells when a file appears
	}
	t.Fatalf("%s did not appear", path)
}

// TestChildrenAreWatchedOver: a child that dies comes back, and one that is stopped gets
// to end in order and stays away.
func TestChildrenAreWatchedOver(t *testing.T) {
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
		t.Errorf("the child did not end in order: %v", err)
	}
	if err := cp.Kill("child"); err == nil {
		t.Error("there is still a child")
	}
}

// TestPortForIsKept: what was handed out to others stays right over restarts.
func TestPortForIsKept(t *testing.T) {
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
		t.Errorf("a taken port is answered with %v", err)
	}
}
