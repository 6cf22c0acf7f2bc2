package controlplane

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestControlPlane_KeysSurviveFullDisk checks that no CA or key is replaced however little disk space is free, and that the
// same ones are used when there is more.
func TestControlPlane_KeysSurviveFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while a control plane creates its CAs, certificates, and keys")
	fs := smallfs.New(t)
	dir := layout(fs.Path("cp"))
	must(t, dir.create())
	kept := map[string]string{}
	full := 0
	for capacity := 0; ; capacity++ { // one page suffices for one more file
		fs.Fill(capacity)
		_, err := ensurePKI(dir, nil, now)
		fs.FreeSpace()
		wantKept(t, dir, kept)
		if err == nil {
			break
		}
		full++
		if !errors.Is(err, syscall.ENOSPC) || capacity > 60 {
			t.Fatalf("with space for %d pages: %v", capacity, err)
		}
	}
	if full < 3 {
		t.Errorf("there was no space only %d times", full)
	}
	t.Attr("outcome", "The start fails with an error that names the file, and existing keys are kept; the next start succeeds once there is free space")
}

// wantKept fails the test if a signing file has a different key than before.
func wantKept(t *testing.T, dir layout, kept map[string]string) {
	t.Helper()
	for _, name := range []string{clusterCA, frontProxyCA, etcdCA, serviceAccountKey} {
		path := dir.pki(name) + ".key"
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && kept[name] == "" {
			continue
		}
		must(t, err)
		if before := kept[name]; before != "" && before != string(content) {
			t.Errorf("%s is another one than before: %s", filepath.Base(path), cmp.Diff(before, string(content)))
		}
		kept[name] = string(content)
	}
}
