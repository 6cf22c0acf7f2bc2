package image

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

const mib = 1 << 20

// local allows files and the servers of the tests.
var local = Access{Files: "/", Servers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}}

// noRetries disables retries.
var noRetries = Options{Access: local, RetryTimeout: -1}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// diskContent returns content with holes and a size that is not a multiple of any block size.
func diskContent() []byte {
	content := make([]byte, 3*mib+777)
	noise := rand.NewChaCha8([32]byte{7})
	_, _ = noise.Read(content[:100_000])
	_, _ = noise.Read(content[2*mib+5 : 2*mib+90_005])
	content[len(content)-1] = 1
	return content
}

func sum(content []byte) string {
	hash := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(hash[:])
}

func sum512(content []byte) string {
	hash := sha512.Sum512(content)
	return "sha512:" + hex.EncodeToString(hash[:])
}

// padded returns the content as a disk of the given size.
func padded(content []byte, size int) []byte {
	return append(bytes.Clone(content), make([]byte, size-len(content))...)
}

type compressor func(io.Writer) (io.WriteCloser, error)

func toGzip(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }
func toXZ(w io.Writer) (io.WriteCloser, error)   { return xz.NewWriter(w) }
func toZstd(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }

func compressed(t testing.TB, with compressor, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	writer, err := with(&out)
	must(t, err)
	_, err = writer.Write(content)
	must(t, err)
	must(t, writer.Close())
	return out.Bytes()
}

// qcow2 creates an image of the content with qemu-img.
func qcow2(t testing.TB, content []byte, options ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	raw, image := filepath.Join(dir, "raw"), filepath.Join(dir, "qcow2")
	must(t, os.WriteFile(raw, content, 0o600))
	qemuImg(t, append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, options...), raw, image)...)
	made, err := os.ReadFile(image)
	must(t, err)
	return made
}

func qemuImg(t testing.TB, arguments ...string) {
	t.Helper()
	if output, err := exec.Command("qemu-img", arguments...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %q: %v: %s", arguments, err, output)
	}
}

// serve responds to every request with the content and supports resuming.
func serve(t testing.TB, content []byte) string {
	return serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", modified, bytes.NewReader(content))
	})
}

func serveBy(t testing.TB, handler http.HandlerFunc) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/disk.img"
}

// cut responds with only the first bytes of the content and closes the connection.
func cut(w http.ResponseWriter, content []byte, length string) {
	w.Header().Set("Content-Length", length)
	_, _ = w.Write(content)
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
	panic(http.ErrAbortHandler)
}

// wantFiles compares the names in a directory.
func wantFiles(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func wantContent(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes that differ from the expected %d bytes", filepath.Base(path), len(got), len(want))
	}
}
