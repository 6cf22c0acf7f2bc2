package controlplane

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestServeFiles checks that the files of the directory are served until the context is canceled.
func TestServeFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "kernel"), []byte("content"), 0o600))
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte("secret"), 0o600))
	must(t, os.Symlink(secret, filepath.Join(dir, "out")))
	must(t, os.Symlink("kernel", filepath.Join(dir, "current")))
	port := value[int](t)(held(t).freePort())
	ctx, cancel := context.WithCancel(t.Context())
	served := value[<-chan error](t)(ServeFiles(ctx, dir, port))
	for path, want := range map[string]int{"kernel": http.StatusOK, "other": http.StatusNotFound, "../../etc/passwd": http.StatusNotFound, "current": http.StatusOK} {
		response := value[*http.Response](t)(http.Get("http://127.0.0.1:" + strconv.Itoa(port) + "/" + path))
		body := value[[]byte](t)(io.ReadAll(response.Body))
		must(t, response.Body.Close())
		if response.StatusCode != want || want == http.StatusOK && string(body) != "content" {
			t.Errorf("%s: %s %s", path, response.Status, body)
		}
	}
	// A symlink cannot lead outside the directory.
	response := value[*http.Response](t)(http.Get("http://127.0.0.1:" + strconv.Itoa(port) + "/out"))
	must(t, response.Body.Close())
	if response.StatusCode == http.StatusOK {
		t.Errorf("a link to another directory: %s", response.Status)
	}
	var taken *PortTakenError
	if _, err := ServeFiles(ctx, dir, port); !errors.As(err, &taken) || taken.Port != port || taken.PID != os.Getpid() {
		t.Errorf("a taken port gives %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("ended with %v", err)
	}
}
