package controlplane

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// scripts returns a directory with shell scripts in place of the real executables.
func scripts(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	return dir
}

func TestStart_Errors(t *testing.T) {
	failing := scripts(t, "echo the disk is on fire; exit 3")
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	taken := listen(t, 0)
	tests := map[string]struct {
		reason string
		config Config
		want   func(error) bool
	}{
		"NoBinaries": {
			"they are not built",
			Config{Dir: t.TempDir(), Binaries: t.TempDir()},
			func(err error) bool { return errors.Is(err, ErrBinariesMissing) },
		},
		"NoDir": {
			"there is no default directory",
			Config{Binaries: failing},
			func(err error) bool { return err != nil },
		},
		"DirNotWritable": {
			"a file is in the way; permissions do not stop a test that runs as root",
			Config{Dir: filepath.Join(file, "cp"), Binaries: failing},
			func(err error) bool { return errors.Is(err, syscall.ENOTDIR) },
		},
		"PortTaken": {
			"the port was asked for, another one would not do",
			Config{Dir: t.TempDir(), Binaries: failing, APIServerPort: taken},
			func(err error) bool {
				var problem *PortTakenError
				return errors.As(err, &problem) && problem.Port == taken && problem.PID == os.Getpid()
			},
		},
		"NoPort": {
			"",
			Config{Dir: t.TempDir(), Binaries: failing, APIServerPort: 70000},
			func(err error) bool { return err != nil },
		},
		"WithoutEtcd": {
			"nothing works without it",
			Config{Dir: t.TempDir(), Binaries: failing, Without: []string{Etcd}},
			func(err error) bool { return err != nil },
		},
		"ChildFails": {
			"the error has the end of the child's log",
			Config{Dir: t.TempDir(), Binaries: failing},
			func(err error) bool { return err != nil && strings.Contains(err.Error(), "the disk is on fire") },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cp, err := Start(t.Context(), test.config)
			if cp != nil || !test.want(err) {
				t.Errorf("%s: got %v, error %v", test.reason, cp, err)
			}
		})
	}
}

func TestStart_FailureLeavesNoProcess(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	// This etcd never becomes ready.
	_, err := Start(ctx, Config{Dir: dir, Binaries: scripts(t, "echo up; exec sleep 1000")})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("want the context's error, got %v", err)
	}
	if left := value[[]string](t)(filepath.Glob(filepath.Join(dir, "run", "*.json"))); len(left) > 0 {
		t.Errorf("children may be left: %v", left)
	}
	lock := value[*os.File](t)(lockDir(layout(dir)))
	must(t, lock.Close())
}

func TestStart_LocksDirectory(t *testing.T) {
	dir := newLayout(t)
	lock := value[*os.File](t)(lockDir(dir))
	_, err := Start(t.Context(), Config{Dir: string(dir), Binaries: scripts(t, "exit 1")})
	var problem *InUseError
	if !errors.As(err, &problem) || problem.PID != os.Getpid() || problem.Dir != string(dir) {
		t.Errorf("want the directory to be in use by this process, got %v", err)
	}
	must(t, lock.Close())
	again := value[*os.File](t)(lockDir(dir))
	must(t, again.Close())
}

func TestFindBinaries(t *testing.T) {
	cache := t.TempDir()
	if _, err := FindBinaries(cache); !errors.Is(err, ErrBinariesMissing) {
		t.Errorf("want them to be missing, got %v", err)
	}
	must(t, os.MkdirAll(filepath.Join(cache, "controlplane"), 0o700))
	must(t, os.Symlink(scripts(t, ""), filepath.Join(cache, "controlplane", "current")))
	dir := value[string](t)(FindBinaries(cache))
	must(t, os.Chmod(filepath.Join(dir, Scheduler), 0o600))
	if _, err := FindBinaries(cache); !errors.Is(err, ErrBinariesMissing) {
		t.Errorf("want one that cannot be run to count as missing, got %v", err)
	}
}
