package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	cgroupMount  = "/sys/fs/cgroup"
	cgroupPrefix = "millwright-node-"
)

// makeCgroups creates a control group for a node in every hierarchy, and returns its name. It is removed at the
// end of the test. makeCgroups also removes the groups of tests that were killed.
func makeCgroups(t *testing.T, node string) string {
	t.Helper()
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	if len(hierarchies) == 0 {
		t.Skipf("a node takes control groups: nothing is mounted at or below %s (/proc/self/mountinfo)", cgroupMount)
	}
	name := fmt.Sprintf("%s%d-%s", cgroupPrefix, os.Getpid(), node)
	for _, hierarchy := range hierarchies {
		removeOrphans(t, hierarchy)
		if err := os.Mkdir(filepath.Join(hierarchy, name), 0o755); err != nil {
			t.Fatalf("making a control group: %v", err)
		}
	}
	t.Cleanup(func() {
		for _, hierarchy := range hierarchies {
			if err := removeCgroup(filepath.Join(hierarchy, name)); err != nil {
				t.Errorf("removing a control group: %v", err)
			}
		}
	})
	return name
}

// cgroupHierarchies returns the roots of the hierarchies: a single one for version 2, or several for version 1.
func cgroupHierarchies() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		mount, filesystem, _ := strings.Cut(line, " - ")
		at := strings.Fields(mount)[4]
		if strings.HasPrefix(filesystem, "cgroup") && (at == cgroupMount || strings.HasPrefix(at, cgroupMount+"/")) {
			found = append(found, at)
		}
	}
	return found, nil
}

// removeOrphans removes the groups of test processes that no longer exist.
func removeOrphans(t *testing.T, hierarchy string) {
	t.Helper()
	groups, err := filepath.Glob(filepath.Join(hierarchy, cgroupPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(group), cgroupPrefix+"%d", &pid); err != nil {
			continue
		}
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			t.Logf("removing the control group %s of a test that was killed: %v", group, removeCgroup(group))
		}
	}
}

// removeCgroup removes a group and its descendants.
func removeCgroup(group string) error {
	var groups []string
	err := filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			groups = append(groups, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, one := range slices.Backward(groups) {
		if err := os.Remove(one); err != nil {
			return err
		}
	}
	return nil
}
