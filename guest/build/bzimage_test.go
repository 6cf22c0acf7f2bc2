package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

var kernel = append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel "), 100_000)...)

// image wraps a payload as Linux' build does: two setup sectors, code, the payload, and more code.
func image(payload []byte) []byte {
	const setup, code = 2, 100
	content := make([]byte, (setup+1)*sectorSize+code)
	content[setupSectorsAt] = setup
	copy(content[magicAt:], "HdrS")
	binary.LittleEndian.PutUint16(content[versionAt:], 0x20f)
	binary.LittleEndian.PutUint32(content[payloadOffsetAt:], code)
	binary.LittleEndian.PutUint32(content[payloadLengthAt:], uint32(len(payload)))
	return append(append(content, payload...), "more code"...)
}

func compress(t *testing.T, open func(io.Writer) (io.WriteCloser, error), content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := open(&out)
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func withSize(payload []byte, size int) []byte {
	return binary.LittleEndian.AppendUint32(payload, uint32(size))
}

func openLZ4(w io.Writer) (io.WriteCloser, error) {
	out := lz4.NewWriter(w)
	return out, out.Apply(lz4.LegacyOption(true))
}

func TestExtract(t *testing.T) {
	for name, payload := range map[string][]byte{
		"LZ4":  withSize(compress(t, openLZ4, kernel), len(kernel)),
		"gzip": compress(t, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }, kernel),
		"zstd": withSize(compress(t, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }, kernel), len(kernel)),
		"xz":   withSize(compress(t, func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) }, kernel), len(kernel)),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := extractKernel(image(payload))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, kernel) {
				t.Errorf("got %d different bytes, want the %d bytes of the kernel", len(got), len(kernel))
			}
		})
	}
}

func TestExtract_RejectsInvalidArchives(t *testing.T) {
	packed := compress(t, openLZ4, kernel)
	good := image(withSize(packed, len(kernel)))
	old := bytes.Clone(good)
	old[versionAt] = 0
	for name, content := range map[string][]byte{
		"Empty":       nil,
		"NoHeader":    make([]byte, 4096),
		"OldProtocol": old,
		"Truncated":   good[:len(good)/2],
		"NoPayload":   image(nil),
		"Unknown":     image([]byte("0123456789")),
		"SizeIsLess":  image(withSize(packed, len(kernel)-1)),
		"SizeIsMore":  image(withSize(packed, len(kernel)+1)),
		"NoELF":       image(withSize(compress(t, openLZ4, []byte("text")), 4)),
		"Garbled":     image(withSize(append(bytes.Clone(packed[:8]), bytes.Repeat([]byte{0xff}, 1000)...), len(kernel))),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := extractKernel(content); !errors.Is(err, errFormat) {
				t.Errorf("extractKernel = %v, want errFormat", err)
			}
		})
	}
}
