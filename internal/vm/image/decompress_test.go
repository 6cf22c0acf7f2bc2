package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// FuzzDecompress checks that reading any image does not panic, and that a small image does not use more memory
// than the allowed windows.
func FuzzDecompress(f *testing.F) {
	plain := bytes.Repeat([]byte("disk "), 1000)
	var zipped, xzipped bytes.Buffer
	to := gzip.NewWriter(&zipped)
	_, _ = to.Write(plain)
	_ = to.Close()
	if to, err := xz.NewWriter(&xzipped); err == nil {
		_, _ = to.Write(plain)
		_ = to.Close()
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{nil, plain, zipped.Bytes(), xzipped.Bytes(), encoder.EncodeAll(plain, nil)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const longest, output = 64 << 10, 1 << 20
		data = data[:min(len(data), longest)]
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		reader, end, err := decompress(bufio.NewReader(bytes.NewReader(data)))
		_ = formatOf(data)
		if err == nil && reader != nil {
			_, _ = io.CopyN(io.Discard, reader, output)
			end()
		}
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 4*max(maxXZWindow, maxZstdWindow)+64<<20 {
			t.Errorf("an image of %d bytes used %d MiB", len(data), taken>>20)
		}
	})
}
