package image

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

var modified = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

const (
	raw     = vmpb.InitialImage_FORMAT_RAW
	isQCOW2 = vmpb.InitialImage_FORMAT_QCOW2
)

func TestDisk_HoldsImage(t *testing.T) {
	content := diskContent()
	gzipped := compressed(t, toGzip, content)
	vmdk := []byte("# Disk DescriptorFile\nversion=1\ncreateType=\"monolithicFlat\"\nRW 8 FLAT \"/etc/passwd\" 0\n")
	tests := map[string]struct {
		reason string
		served []byte
		format vmpb.InitialImage_Format
		bytes  int64
		want   []byte
	}{
		"raw":            {"after the image, the disk is zero", content, 0, 4 * mib, padded(content, 4*mib)},
		"raw, named":     {"formats can be set", content, raw, 4 * mib, padded(content, 4*mib)},
		"raw, exact":     {"an image may be as large as the disk", content, 0, 3*mib + 777, content},
		"raw, no size":   {"the size of the image, rounded up to whole sectors", content, 0, 0, padded(content, 3*mib+1024)},
		"gzip":           {"detected by its first bytes", gzipped, 0, 4 * mib, padded(content, 4*mib)},
		"gzip, as raw":   {"the set format applies to the downloaded bytes", gzipped, raw, 4 * mib, padded(gzipped, 4*mib)},
		"xz":             {"detected by its first bytes", compressed(t, toXZ, content), 0, 4 * mib, padded(content, 4*mib)},
		"zstd":           {"detected by its first bytes", compressed(t, toZstd, content), 0, 4 * mib, padded(content, 4*mib)},
		"qcow2":          {"detected by its first bytes", qcow2(t, content), 0, 4 * mib, padded(content, 4*mib)},
		"qcow2, named":   {"formats can be set", qcow2(t, content), isQCOW2, 4 * mib, padded(content, 4*mib)},
		"qcow2, no size": {"the size of the image", qcow2(t, content), 0, 0, padded(content, 3*mib+1024)},
		"old qcow2":      {"version 2", qcow2(t, content, "-o", "compat=0.10"), 0, 4 * mib, padded(content, 4*mib)},
		"qcow2, compressed": {"compressed by QCOW2 itself",
			qcow2(t, content, "-c", "-o", "compression_type=zstd"), 0, 4 * mib, padded(content, 4*mib)},
		"vmdk, as raw":  {"the set format applies to the downloaded bytes", vmdk, raw, 4 * mib, padded(vmdk, 4*mib)},
		"qcow2, as raw": {"the set format applies to the downloaded bytes", qcow2(t, content), raw, 4 * mib, padded(qcow2(t, content), 4*mib)},
		"qcow2 in gzip": {"both are detected", compressed(t, toGzip, qcow2(t, content)), 0, 4 * mib, padded(content, 4*mib)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "disk.img")
			source := Source{URL: serve(t, test.served), Checksum: sum(test.served), Format: test.format}
			must(t, WriteDisk(t.Context(), source, Target{Path: path, Bytes: test.bytes}, noRetries))
			wantContent(t, path, test.want)
			wantFiles(t, dir, "disk.img")
		})
	}
}

func TestDisk_IsSparse(t *testing.T) {
	for name, served := range map[string][]byte{"raw": diskContent(), "qcow2": qcow2(t, diskContent())} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.img")
			must(t, WriteDisk(t.Context(), Source{URL: serve(t, served)}, Target{Path: path, Bytes: 64 * mib}, noRetries))
			var stat syscall.Stat_t
			must(t, syscall.Stat(path, &stat))
			if used := stat.Blocks * 512; used > mib || stat.Size != 64*mib {
				t.Errorf("a disk of %d bytes uses %d bytes of storage, want less than 1 MiB", stat.Size, used)
			}
		})
	}
}

func TestDisk_IsRenamedWhenComplete(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	content := diskContent()
	// A crash may have left more than the new content, so a remainder would be detected.
	for _, partial := range []string{"disk.img.partial", "disk.img.qcow2.partial"} {
		must(t, os.WriteFile(filepath.Join(dir, partial), padded([]byte("half a disk"), 5*mib), 0o600))
	}
	var calls int
	var last [2]int64
	options := Options{Access: local, RetryTimeout: -1, Progress: func(done, total int64) {
		calls++
		last = [2]int64{done, total}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the disk exists after only %d bytes", done)
		}
	}}
	must(t, WriteDisk(t.Context(), Source{URL: serve(t, content)}, Target{Path: path, Bytes: 4 * mib}, options))
	wantContent(t, path, padded(content, 4*mib))
	wantFiles(t, dir, "disk.img")
	if size := int64(len(content)); calls < 3 || last != [2]int64{size, size} {
		t.Errorf("%d progress calls, the last one with %v; want at least one, the last one with %d", calls, last, size)
	}
}

func TestDisk_IsNeverReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	must(t, os.WriteFile(path, []byte("a disk that ran"), 0o600))
	err := WriteDisk(t.Context(), Source{URL: serve(t, diskContent())}, Target{Path: path, Bytes: 4 * mib}, noRetries)
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want fs.ErrExist", err)
	}
	wantContent(t, path, []byte("a disk that ran"))
}

func TestDisk_WritingRespectsContext(t *testing.T) {
	dir := t.TempDir()
	reason := errors.New("the Pod is deleted")
	ctx, cancel := context.WithCancelCause(t.Context())
	url := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, mib))
		cancel(reason)
		<-r.Context().Done()
	})
	err := WriteDisk(ctx, Source{URL: url}, Target{Path: filepath.Join(dir, "disk.img")}, Options{Access: local})
	if !errors.Is(err, reason) {
		t.Errorf("got %v, want the context's cause", err)
	}
	wantFiles(t, dir)
}
