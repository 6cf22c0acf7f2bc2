package archives

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entry is a file of an archive.
type entry struct {
	name, content, link string
	mode                int64
	kind                byte
}

func archiveOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var compressed bytes.Buffer
	plain := gzip.NewWriter(&compressed)
	archive := tar.NewWriter(plain)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), Linkname: e.link, Typeflag: e.kind}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := plain.Close(); err != nil {
		t.Fatal(err)
	}
	return compressed.Bytes()
}

func setOf(archive []byte) Set {
	sum := sha256.Sum256(archive)
	return Set{Version: "v1.2.3", Sums: map[string]string{Guest: hex.EncodeToString(sum[:])}}
}

var disk = strings.Repeat("\x00", 3*block) + "data" + strings.Repeat("\x00", block)

// TestDirectory_DownloadsOnce also checks the content: modes without more than a program needs, links, and holes.
func TestDirectory_DownloadsOnce(t *testing.T) {
	requests := 0
	archive := archiveOf(t,
		entry{name: "sub/", kind: tar.TypeDir, mode: 0o755},
		entry{name: "./program", content: "binary", kind: tar.TypeReg, mode: 0o4777},
		entry{name: "./other", link: "program", kind: tar.TypeSymlink},
		entry{name: "sub/disk", content: disk, kind: tar.TypeReg, mode: 0o644},
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if r.URL.Path != "/mirror/v1.2.3/millwright-guest_1.2.3_linux_amd64.tar.gz" {
			t.Errorf("requests %s", r.URL.Path)
		}
		_, _ = w.Write(archive)
	}))
	defer server.Close()
	set, cache := setOf(archive), t.TempDir()
	set.URL = server.URL + "/mirror/"
	for range 2 {
		dir, err := set.Directory(t.Context(), Guest, cache, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(filepath.Join(dir, "other")); err != nil || string(content) != "binary" {
			t.Errorf("link: %q, %v", content, err)
		}
		if info, err := os.Stat(filepath.Join(dir, "program")); err != nil || info.Mode() != 0o755 {
			t.Errorf("program: %v, %v", info.Mode(), err)
		}
		if content, err := os.ReadFile(filepath.Join(dir, "sub", "disk")); err != nil || string(content) != disk {
			t.Errorf("disk: %d bytes, %v", len(content), err)
		}
	}
	if requests != 1 {
		t.Errorf("%d requests, want 1", requests)
	}
	if left, err := filepath.Glob(filepath.Join(cache, Guest, ".[du]*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files remain: %v, %v", left, err)
	}
}

// TestDirectory_PrefersExistingFile uses no server: the default URL is not reached.
func TestDirectory_PrefersExistingFile(t *testing.T) {
	archive := archiveOf(t, entry{name: "program", content: "binary", kind: tar.TypeReg, mode: 0o755})
	set, dir := setOf(archive), t.TempDir()
	set.URL, set.Directories = "http://127.0.0.1:1", []string{t.TempDir(), dir}
	if err := os.WriteFile(filepath.Join(dir, set.File(Guest)), archive, 0o600); err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	if _, err := set.Directory(t.Context(), Guest, t.TempDir(), &progress); err != nil {
		t.Fatal(err)
	}
	if want := "Unpacking " + filepath.Join(dir, set.File(Guest)) + " ...\n"; progress.String() != want {
		t.Errorf("prints %q, want %q", &progress, want)
	}
}

func TestDirectory_RejectsOthersContent(t *testing.T) {
	archive := archiveOf(t, entry{name: "program", content: "binary", kind: tar.TypeReg, mode: 0o755})
	set, dir := setOf(archive), t.TempDir()
	other := archiveOf(t, entry{name: "program", content: "changed", kind: tar.TypeReg, mode: 0o755})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(other) }))
	defer server.Close()
	set.URL = server.URL
	if _, err := set.Directory(t.Context(), Guest, t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("download: %v", err)
	}
	set.Directories = []string{dir}
	if err := os.WriteFile(filepath.Join(dir, set.File(Guest)), other, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := set.Directory(t.Context(), Guest, t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "remove it to download it") {
		t.Errorf("in a directory: %v", err)
	}
}

func TestDirectory_NamesMirrorIfDownloadFails(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	set := setOf([]byte("archive"))
	set.URL = server.URL
	for range 2 {
		if _, err := set.Directory(t.Context(), Guest, t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "--download-url") {
			t.Errorf("%v", err)
		}
		server.Close() // the second time, nothing listens
	}
	if _, err := set.Directory(t.Context(), GuestFull, t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "has no archive") {
		t.Errorf("an archive that does not exist: %v", err)
	}
}

// TestDirectory_WritesNothingOutside has archives with the right checksum, as of a release that was built on a
// compromised machine.
func TestDirectory_WritesNothingOutside(t *testing.T) {
	for name, bad := range map[string]entry{
		"parent":        {name: "../outside", content: "x", kind: tar.TypeReg, mode: 0o644},
		"absolute":      {name: "/outside", content: "x", kind: tar.TypeReg, mode: 0o644},
		"link outside":  {name: "link", link: "../..", kind: tar.TypeSymlink},
		"absolute link": {name: "link", link: "/etc/passwd", kind: tar.TypeSymlink},
		"device":        {name: "device", kind: tar.TypeChar},
		"hard link":     {name: "hard", link: "/etc/passwd", kind: tar.TypeLink},
	} {
		t.Run(name, func(t *testing.T) {
			archive, dir, cache := archiveOf(t, bad), t.TempDir(), t.TempDir()
			set := setOf(archive)
			set.Directories = []string{dir}
			if err := os.WriteFile(filepath.Join(dir, set.File(Guest)), archive, 0o600); err != nil {
				t.Fatal(err)
			}
			if unpacked, err := set.Directory(t.Context(), Guest, cache, io.Discard); err == nil {
				t.Errorf("unpacked to %s", unpacked)
			}
			entries, err := os.ReadDir(filepath.Join(cache, Guest))
			if err != nil || len(entries) != 1 { // the lock
				t.Errorf("%v remain, %v", entries, err)
			}
		})
	}
}

func TestParseSums(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	sums, err := ParseSums("controlplane=" + sum + ",guest=" + sum)
	if err != nil || len(sums) != 2 || sums[Guest] != sum {
		t.Errorf("%v, %v", sums, err)
	}
	if sums, err := ParseSums(""); err != nil || len(sums) != 0 {
		t.Errorf("empty: %v, %v", sums, err)
	}
	for _, bad := range []string{"guest", "guest=abcd", "=" + sum, "guest=" + strings.Repeat("xy", 32)} {
		if _, err := ParseSums(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}
