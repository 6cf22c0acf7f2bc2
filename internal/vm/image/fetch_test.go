package image

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestFetch_KeepsContent(t *testing.T) {
	content := compressed(t, toGzip, diskContent())
	local := filepath.Join(t.TempDir(), "kernel here")
	must(t, os.WriteFile(local, content, 0o600))
	tests := map[string]Source{
		"http":                   {URL: serve(t, content)},
		"http and checksum":      {URL: serve(t, content), Checksum: sum(content)},
		"http and sha512":        {URL: serve(t, content), Checksum: sum512(content)},
		"file":                   {URL: "file://" + local},
		"file and checksum":      {URL: "file://" + local, Checksum: sum(content)},
		"file on localhost, %20": {URL: "file://localhost" + filepath.Dir(local) + "/kernel%20here"},
	}
	for name, source := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "kernel")
			must(t, os.WriteFile(path, []byte("the file of the last start"), 0o600))
			must(t, os.WriteFile(path+".partial", padded([]byte("left by a crash"), 5*mib), 0o600))
			must(t, Fetch(t.Context(), source, path, noRetries))
			wantContent(t, path, content)
			wantFiles(t, dir, "kernel")
		})
	}
}

func TestFetch_ReplacesFileAtomically(t *testing.T) {
	content := diskContent()
	local := filepath.Join(t.TempDir(), "kernel")
	must(t, os.WriteFile(local, content, 0o600))
	large := serveBy(t, func(w http.ResponseWriter, _ *http.Request) { cut(w, nil, "3000000000") })
	tests := map[string]struct {
		source Source
		want   Kind
	}{
		"wrong checksum":           {Source{URL: serve(t, content), Checksum: sum(nil)}, Rejected},
		"wrong sha512":             {Source{URL: serve(t, content), Checksum: sum512(nil)}, Rejected},
		"wrong checksum of a file": {Source{URL: "file://" + local, Checksum: sum(nil)}, Rejected},
		"too large":                {Source{URL: large}, Rejected},
		"not found":                {Source{URL: respondWith(t, http.StatusGone)}, Unavailable},
		"no source":                {Source{}, Invalid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "kernel")
			must(t, os.WriteFile(path, []byte("the file of the last start"), 0o600))
			if err := Fetch(t.Context(), test.source, path, noRetries); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			wantContent(t, path, []byte("the file of the last start"))
			wantFiles(t, dir, "kernel")
		})
	}
}

func TestFetch_FullStorage(t *testing.T) {
	t.Attr("fault", "The storage is full while a kernel is copied (simulated with a file size limit)")
	t.Attr("outcome", "The copy fails with a NoSpace error; no file remains")
	local, dir := filepath.Join(t.TempDir(), "kernel"), t.TempDir()
	must(t, os.WriteFile(local, diskContent(), 0o600))
	limitFiles(t, 512<<10)
	err := Fetch(t.Context(), Source{URL: "file://" + local}, filepath.Join(dir, "kernel"), noRetries)
	if !errors.Is(err, NoSpace) {
		t.Errorf("got %v, want NoSpace", err)
	}
	wantFiles(t, dir)
}

// A server that sends many headers exhausts no memory.
func TestFetch_LimitsHeaders(t *testing.T) {
	url := serveBy(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 10_000 {
			w.Header().Set("A"+strconv.Itoa(i), "")
		}
	})
	err := Fetch(t.Context(), Source{URL: url}, filepath.Join(t.TempDir(), "kernel"), Options{RetryTimeout: -1, Access: local})
	if !errors.Is(err, Unavailable) {
		t.Errorf("got %v, want %q", err, Unavailable)
	}
}
