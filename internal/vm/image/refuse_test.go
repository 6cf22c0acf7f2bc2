package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// patched returns an image with another number in its header.
func patched(image []byte, offset int, value uint64) []byte {
	changed := bytes.Clone(image)
	binary.BigEndian.PutUint64(changed[offset:], value)
	return changed
}

func withBackingFile(t *testing.T) []byte {
	dir := t.TempDir()
	base, overlay := filepath.Join(dir, "base"), filepath.Join(dir, "overlay")
	must(t, os.WriteFile(base, diskContent(), 0o600))
	qemuImg(t, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, overlay)
	content, err := os.ReadFile(overlay)
	must(t, err)
	return content
}

func withDataFile(t *testing.T) []byte {
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+filepath.Join(dir, "data"), path, "1M")
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

func TestImage_BadImagesAreRejected(t *testing.T) {
	content := diskContent()
	image := qcow2(t, content)
	gzipped := compressed(t, toGzip, content)
	tests := map[string]struct {
		reason   string
		served   []byte
		checksum string
		format   vmpb.InitialImage_Format
	}{
		"wrong checksum":        {"other bytes than expected", content, sum([]byte("other")), 0},
		"wrong sha512":          {"other bytes than expected", content, sum512([]byte("other")), 0},
		"wrong checksum, qcow2": {"checked before it is converted", image, sum([]byte("other")), 0},
		"wrong checksum, gzip":  {"the checksum applies to the served bytes", gzipped, sum(content), 0},
		"raw, too large":        {"detected from its length", make([]byte, 5*mib), "", 0},
		"bomb":                  {"it decompresses to more than the disk", compressed(t, toZstd, make([]byte, 64*mib)), "", 0},
		"qcow2, too large":      {"detected from its header", qcow2(t, make([]byte, 5*mib)), "", 0},
		"backing file":          {"it could refer to any file", withBackingFile(t), "", 0},
		"data file":             {"it could refer to any file", withDataFile(t), "", 0},
		"backing file in gzip":  {"compression does not hide it", compressed(t, toGzip, withBackingFile(t)), "", 0},
		"unknown feature":       {"from a future version", patched(image, atIncompatible, 1<<7), "", 0},
		"corrupt":               {"marked by QEMU", patched(image, atIncompatible, featureCorrupt), "", 0},
		"future version":        {"from a future version", patched(image, 0, 0x514649fb00000004), "", 0},
		"encrypted":             {"there is no password", patched(image, 32, 1<<32), "", 0},
		"half a header":         {"truncated", image[:80], "", 0},
		"invalid tables":        {"detected by qemu-img", patched(image, 40, 3), "", 0},
		"raw, named qcow2":      {"not in the set format", content, "", vmpb.InitialImage_FORMAT_QCOW2},
		"gzip, truncated":       {"completely received, but only half of a file", gzipped[:len(gzipped)/2], "", 0},
		"xz, truncated":         {"completely received, but only half of a file", compressed(t, toXZ, content)[:9000], "", 0},
		"zstd, truncated":       {"completely received, but only half of a file", compressed(t, toZstd, content)[:9000], "", 0},
		"gzip, invalid":         {"only its beginning looks like gzip", []byte(magicGzip + "and then something else"), "", 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			source := Source{URL: serve(t, test.served), Checksum: test.checksum, Format: test.format}
			err := WriteDisk(t.Context(), source, Target{Path: filepath.Join(dir, "disk.img"), Bytes: 4 * mib}, Options{Access: local})
			if !errors.Is(err, Rejected) {
				t.Errorf("got %v, want Rejected: %s", err, test.reason)
			}
			wantFiles(t, dir)
		})
	}
}

// A check sees the disk that would be created, in any format, or a file. If the check fails, no file remains, and
// an earlier file is unchanged.
func TestImage_CheckRejectsContent(t *testing.T) {
	content := diskContent()
	var seen []byte
	refuse := func(from io.ReaderAt) string {
		seen = make([]byte, len(content))
		_, err := from.ReadAt(seen, 0)
		must(t, err)
		return "it is for other machines"
	}
	options := Options{Access: local, RetryTimeout: -1, Check: refuse}
	for name, served := range map[string][]byte{
		"raw": content, "gzip": compressed(t, toGzip, content), "qcow2": qcow2(t, content), "file": nil,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, kept := filepath.Join(dir, "target"), []string(nil)
			var err error
			if name == "file" {
				must(t, os.WriteFile(path, []byte("the file of the last start"), 0o600))
				kept = []string{"target"}
				err = Fetch(t.Context(), Source{URL: serve(t, content)}, path, options)
				wantContent(t, path, []byte("the file of the last start"))
			} else {
				err = WriteDisk(t.Context(), Source{URL: serve(t, served)}, Target{Path: path, Bytes: 4 * mib}, options)
			}
			if failure, ok := errors.AsType[*Error](err); !ok || failure.Kind != Rejected || failure.Problem != "it is for other machines" {
				t.Errorf("got %v", err)
			}
			if !bytes.Equal(seen, content) {
				t.Error("the check did not see the content")
			}
			wantFiles(t, dir, kept...)
		})
	}
}

func TestImage_UnknownLengthIsLimited(t *testing.T) {
	var sent int
	url := serveBy(t, func(w http.ResponseWriter, _ *http.Request) {
		for block := make([]byte, mib); sent < 1<<30; sent += mib {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	dir := t.TempDir()
	err := WriteDisk(t.Context(), Source{URL: url}, Target{Path: filepath.Join(dir, "disk.img"), Bytes: 4 * mib}, noRetries)
	if !errors.Is(err, Rejected) {
		t.Errorf("got %v, want Rejected", err)
	}
	wantFiles(t, dir)
}

// closedPort returns an address on which nothing listens.
func closedPort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, listener.Close())
	return listener.Addr().String()
}

func redirectTo(t *testing.T, to string) string {
	return serveBy(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
}

func respondWith(t *testing.T, code int) string {
	return serveBy(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

func TestError_Messages(t *testing.T) {
	truncated := serveBy(t, func(w http.ResponseWriter, _ *http.Request) { cut(w, make([]byte, 1000), "2000") })
	missing := filepath.Join(t.TempDir(), "none")
	directory := t.TempDir()
	closed := closedPort(t)
	loop, out, gone := redirectTo(t, "/"), redirectTo(t, "file:///etc/passwd"), respondWith(t, http.StatusNotFound)
	down, garbled := respondWith(t, http.StatusBadGateway), redirectTo(t, "http://[?secret")
	tests := map[string]struct {
		source Source
		kind   Kind
		want   string
	}{
		"no server":        {Source{URL: "http://" + closed + "/a?sig=secret"}, Unavailable, "image http://" + closed + "/a: dial tcp " + closed + ": connect: connection refused"},
		"not found":        {Source{URL: gone}, Unavailable, "image " + gone + ": the server returned 404 Not Found"},
		"server error":     {Source{URL: down}, Unavailable, "image " + down + ": the server returned 502 Bad Gateway"},
		"redirects":        {Source{URL: loop}, Unavailable, "image " + loop + ": the server redirected more than 10 times"},
		"redirect to file": {Source{URL: out}, Rejected, "image " + out + `: the server redirects to a URL with the scheme "file"; only http and https are allowed`},
		"invalid redirect": {Source{URL: garbled}, Unavailable, "image " + garbled + ": the server redirects to an invalid URL"},
		"truncated":        {Source{URL: truncated}, Unavailable, "image " + truncated + ": the server closed the connection before the end of the content"},
		"no file":          {Source{URL: "file://" + missing}, Unavailable, "image file://" + missing + ": open " + missing + ": no such file or directory"},
		"directory":        {Source{URL: "file://" + directory}, Rejected, "image file://" + directory + ": it is not a regular file"},
		"no URL":           {Source{}, Invalid, "image : the scheme of the URL must be http, https or file"},
		"other scheme":     {Source{URL: "ftp://me:secret@host/a"}, Invalid, "image ftp://host/a: the scheme of the URL must be http, https or file"},
		"invalid URL":      {Source{URL: "http://me:secret@ho st/"}, Invalid, "image: cannot parse its URL"},
		"other host":       {Source{URL: "file://host/a"}, Invalid, "image file://host/a: a file URL must not name another host"},
		"short sha512":     {Source{URL: "http://host/a", Checksum: "sha512:" + strings.Repeat("0", 64)}, Invalid, `image http://host/a: the checksum must be "sha256:" and 64, or "sha512:" and 128, lower-case hexadecimal digits`},
		"other hash":       {Source{URL: "http://host/a", Checksum: "md5:00"}, Invalid, `image http://host/a: the checksum must be "sha256:" and 64, or "sha512:" and 128, lower-case hexadecimal digits`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := WriteDisk(t.Context(), test.source, Target{Path: filepath.Join(dir, "disk.img")}, noRetries)
			if !errors.Is(err, test.kind) || err.Error() != test.want {
				t.Errorf("got %q\nwant %s: %q", err, test.kind, test.want)
			}
			wantFiles(t, dir)
		})
	}
}

func TestQCOW2_NeedsQemuImg(t *testing.T) {
	source := Source{URL: serve(t, qcow2(t, diskContent()))}
	t.Setenv("PATH", t.TempDir())
	err := WriteDisk(t.Context(), source, Target{Path: filepath.Join(t.TempDir(), "disk.img"), Bytes: 4 * mib}, noRetries)
	if !errors.Is(err, ErrNoQemuImg) {
		t.Errorf("got %v, want ErrNoQemuImg", err)
	}
}

// limitFiles limits the size of files, as if the storage were full.
func limitFiles(t *testing.T, bytes uint64) {
	signal.Ignore(syscall.SIGXFSZ)
	var before syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before))
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: before.Max}))
	t.Cleanup(func() {
		must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before))
		signal.Reset(syscall.SIGXFSZ)
	})
}

func TestWriteDisk_FullStorage(t *testing.T) {
	t.Attr("fault", "The storage is full while an image is written to a disk (simulated with a file size limit)")
	t.Attr("outcome", "The write fails with a NoSpace error; no file remains")
	for name, served := range map[string][]byte{"raw": diskContent(), "qcow2": qcow2(t, diskContent())} {
		t.Run(name, func(t *testing.T) {
			url, dir := serve(t, served), t.TempDir()
			limitFiles(t, 512<<10)
			err := WriteDisk(t.Context(), Source{URL: url}, Target{Path: filepath.Join(dir, "disk.img"), Bytes: 4 * mib}, noRetries)
			if !errors.Is(err, NoSpace) {
				t.Errorf("got %v, want NoSpace", err)
			}
			wantFiles(t, dir)
		})
	}
}

// There is enough space for the image, but not for its content.
func TestWriteDisk_FullStorageInQemuImg(t *testing.T) {
	t.Attr("fault", "The storage is full while qemu-img writes the content of an image")
	t.Attr("outcome", "The write fails with a NoSpace error")
	source := Source{URL: serve(t, qcow2(t, diskContent()))}
	bin := t.TempDir()
	script := "#!/bin/sh\necho 'qemu-img: error while writing at byte 0: No space left on device' >&2\nexit 1\n"
	must(t, os.WriteFile(filepath.Join(bin, "qemu-img"), []byte(script), 0o700))
	t.Setenv("PATH", bin)
	err := WriteDisk(t.Context(), source, Target{Path: filepath.Join(t.TempDir(), "disk.img")}, noRetries)
	if !errors.Is(err, NoSpace) {
		t.Errorf("got %v, want NoSpace", err)
	}
}

// madeQCOW2 returns images created by qemu-img, of both versions and with everything that a header can contain:
// cluster sizes, compression types, passwords, snapshots, external files, and extensions.
func madeQCOW2(t testing.TB) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	base := filepath.Join(dir, "base")
	must(t, os.WriteFile(base, make([]byte, mib), 0o600))
	images := map[string][]byte{}
	for name, options := range map[string][]string{
		"version 2":                  {"-o", "compat=0.10"},
		"version 2, on a base":       {"-o", "compat=0.10", "-F", "raw", "-b", base},
		"version 3":                  {"-o", "compat=1.1"},
		"on a base":                  {"-F", "raw", "-b", base},
		"with an external data file": {"-o", "data_file=" + filepath.Join(dir, "data") + ",data_file_raw=on"},
		"small clusters":             {"-o", "cluster_size=512"},
		"large clusters":             {"-o", "cluster_size=2M"},
		"lazy references":            {"-o", "lazy_refcounts=on"},
		"narrow references":          {"-o", "refcount_bits=1"},
		"zstd":                       {"-o", "compression_type=zstd"},
		"extended tables":            {"-o", "extended_l2=on"},
		"with a legacy password":     {"--object", "secret,id=key,data=word", "-o", "encrypt.format=aes,encrypt.key-secret=key"},
	} {
		path := filepath.Join(dir, name)
		qemuImg(t, append(append([]string{"create", "-q", "-f", "qcow2"}, options...), path, "1M")...)
		images[name] = readFile(t, path)
	}
	path := filepath.Join(dir, "version 3")
	qemuImg(t, "snapshot", "-c", "first", path)
	images["with a snapshot"] = readFile(t, path)
	// qemu-img cannot create this image on every machine, because it measures the processor for the key.
	luks := bytes.Clone(images["with a legacy password"])
	binary.BigEndian.PutUint32(luks[32:], 2) // crypt_method
	images["with a password"] = luks
	return images
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

// TestQCOW2_Parse accepts only self-contained readable images.
func TestQCOW2_Parse(t *testing.T) {
	refused := map[string]bool{
		"version 2, on a base": true, "on a base": true, "with an external data file": true,
		"with a password": true, "with a legacy password": true,
	}
	for name, image := range madeQCOW2(t) {
		size, err := parseQCOW2(image)
		if refused[name] != (err != nil) || err == nil && size != mib {
			t.Errorf("%s: size = %d (%v)", name, size, err)
		}
	}
}

// longestHeader is the part of an image that a fuzz test starts with, in bytes: the header, its extensions, and
// the name of a backing file.
const longestHeader = 1024

func FuzzParseQCOW2(f *testing.F) {
	for _, image := range madeQCOW2(f) {
		for _, length := range []int{headerLength2, headerLength3, longestHeader} {
			f.Add(image[:length])
		}
		// Images that qemu-img does not create.
		f.Add(patched(image, atIncompatible, featureCorrupt)[:longestHeader])
		f.Add(patched(image, atIncompatible, featureDirty|featureExtendedL2)[:longestHeader])
		f.Add(patched(image, atIncompatible, 1<<63)[:longestHeader])
		f.Add(patched(image, atVirtualSize, 0)[:longestHeader])
		f.Add(patched(image, atVirtualSize, 1<<63)[:longestHeader])
		f.Add(patched(image, atHeaderLength-4, headerLength2)[:longestHeader])
	}
	f.Fuzz(func(t *testing.T, start []byte) {
		size, err := parseQCOW2(start)
		if err != nil {
			return
		}
		if size <= 0 || maxQCOW2(size) < size || uint64(size) != binary.BigEndian.Uint64(start[atVirtualSize:]) {
			t.Errorf("size = %d", size)
		}
		header := start[:headerLength2]
		if binary.BigEndian.Uint64(header[atBackingFile:]) != 0 {
			t.Error("accepted a backing file")
		}
		if binary.BigEndian.Uint32(header[atCrypt:]) != 0 {
			t.Error("accepted a password")
		}
		if version := binary.BigEndian.Uint32(header[atVersion:]); version != 2 {
			features := binary.BigEndian.Uint64(start[atIncompatible:])
			if version != 3 || features&^featuresWeCanHandle != 0 {
				t.Errorf("accepted version %d with features %#x", version, features)
			}
		}
	})
}

func FuzzSource(f *testing.F) {
	f.Add("http://me:hunter2@host/a?token=hunter2#hunter2", sum(nil))
	f.Add("http://host/a", sum512(nil))
	f.Add("file:///a%2fb", "")
	f.Add("https://[::1]:80/", "sha256:")
	f.Fuzz(func(t *testing.T, url, checksum string) {
		where, err := Source{URL: url, Checksum: checksum}.parse("image")
		if err != nil {
			if !errors.Is(err, Invalid) {
				t.Errorf("got %v, want Invalid", err)
			}
			return
		}
		if where.checksum.set() && where.checksum.String() != checksum {
			t.Errorf("checksum %q was parsed as %s", checksum, where.checksum)
		}
		if !where.checksum.set() && checksum != "" {
			t.Errorf("checksum %q was ignored", checksum)
		}
		if u := where.url; u.RawQuery != "" && strings.Contains(where.subject, "?"+u.RawQuery) {
			t.Errorf("%q contains the query", where.subject)
		}
	})
}
