package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// writeVariable makes the test's executable write a disk from a file, so that its memory can be measured. Its
// arguments are the file and the disk.
const writeVariable = "MILLWRIGHT_TEST_WRITE_DISK"

func TestMain(m *testing.M) {
	if os.Getenv(writeVariable) == "" {
		os.Exit(m.Run())
	}
	source, target := Source{URL: "file://" + os.Args[1]}, Target{Path: os.Args[2], Bytes: 4 << 30}
	err := WriteDisk(context.Background(), source, target, noRetries)
	switch {
	case errors.Is(err, Rejected):
		fmt.Print("rejected")
	case err != nil:
		fmt.Print(err)
	default:
		fmt.Print("written")
	}
	status, err := os.ReadFile("/proc/self/status")
	fmt.Printf("\n%v\n%s", err, status)
	os.Exit(0)
}

var peakForm = regexp.MustCompile(`VmHWM:\s+([0-9]+) kB`)

// writeInProcess writes a disk in another process, and returns its result and its peak memory in MiB.
func writeInProcess(t *testing.T, image []byte) (outcome string, peak int) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "image")
	must(t, os.WriteFile(file, image, 0o600))
	command := exec.Command(os.Args[0], file, filepath.Join(dir, "disk.img"))
	command.Env = append(os.Environ(), writeVariable+"=1")
	output, err := command.CombinedOutput()
	must(t, err)
	outcome, status, _ := strings.Cut(string(output), "\n")
	found := peakForm.FindStringSubmatch(status)
	if found == nil {
		t.Fatalf("no peak memory in %s", output)
	}
	kib, err := strconv.Atoi(found[1])
	must(t, err)
	return outcome, kib / 1024
}

// contentSize is more than a decoder is allowed to keep in memory.
const contentSize = 256 * mib

// packed returns contentSize zeros in compressed form.
func packed(t *testing.T, with compressor) []byte {
	t.Helper()
	var out bytes.Buffer
	writer, err := with(&out)
	must(t, err)
	_, err = io.CopyN(writer, zeroReader{}, contentSize)
	must(t, errors.Join(err, writer.Close()))
	return out.Bytes()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// withWindow returns a single-block xz file whose header requests another window, in the encoding of LZMA2: 40 is
// 4 GiB - 1, and 28 is 64 MiB.
func withWindow(t *testing.T, file []byte, code byte) []byte {
	t.Helper()
	const block, filter = 12, 0x21
	changed := bytes.Clone(file)
	size := (int(changed[block]) + 1) * 4
	header := changed[block : block+size]
	at := bytes.Index(header[:size-4], []byte{filter, 1})
	if at < 0 {
		t.Fatalf("no LZMA2 filter in %x", header)
	}
	header[at+2] = code
	binary.LittleEndian.PutUint32(header[size-4:], crc32.ChecksumIEEE(header[:size-4]))
	return changed
}

// No image makes a decoder use much more memory than the largest accepted window, and images with common windows
// are accepted.
func TestDecoder_LimitsMemory(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("compresses large files for several seconds")
	}
	small := compressed(t, toXZ, diskContent())
	zeros := packed(t, func(w io.Writer) (io.WriteCloser, error) { return xz.WriterConfig{DictCap: 1 << 16}.NewWriter(w) })
	zstdOf := func(window byte) []byte {
		file := packed(t, toZstd)
		file[5] = window // in the header: eight times the base-2 logarithm of the number of KiB
		return file
	}
	tests := map[string]struct {
		reason string
		file   []byte
		want   string
	}{
		"xz":                   {"the window of xz -9", withWindow(t, zeros, 28), "written"},
		"xz, 96 MiB":           {"larger than any preset of xz", withWindow(t, zeros, 29), "rejected"},
		"xz, 4 GiB":            {"the largest possible window", withWindow(t, zeros, 40), "rejected"},
		"xz, 4 GiB afterwards": {"each stream has its own window", append(bytes.Clone(small), withWindow(t, zeros, 40)...), "rejected"},
		"zstd":                 {"the window of zstd --ultra --long=27", zstdOf(17 * 8), "written"},
		"zstd, 512 MiB":        {"the window of zstd --long=29", zstdOf(19 * 8), "rejected"},
		"gzip":                 {"it has a fixed window", packed(t, toGzip), "written"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, peak := writeInProcess(t, test.file)
			t.Logf("%d bytes, at most %d MiB: %s", len(test.file), peak, got)
			if got != test.want {
				t.Errorf("got %q, want %q: %s", got, test.want, test.reason)
			}
			if peak > peakLimit {
				t.Errorf("used %d MiB, want at most %d", peak, peakLimit)
			}
		})
	}
}

// peakLimit is the maximum memory of the process in MiB.
const peakLimit = 200
