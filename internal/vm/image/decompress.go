package image

import (
	"bufio"
	"bytes"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// What files of a format begin with.
const (
	magicQCOW2 = "QFI\xfb"
	magicGzip  = "\x1f\x8b\x08"
	magicXZ    = "\xfd7zXZ\x00"
	magicZstd  = "\x28\xb5\x2f\xfd"
)

// maxWindow is how far back a zstd stream may refer, and so the memory that it takes.
// The format asks decoders for 8 MiB; --ultra --long=27 makes this.
const maxWindow = 128 << 20

func beginsWith(from *bufio.Reader, magic string) bool {
	start, _ := from.Peek(len(magic)) // less is no match
	return bytes.Equal(start, []byte(magic))
}

// decompress returns the content of a compressed file, nil if it is none. After an error
// there is nothing to close.
func decompress(from *bufio.Reader) (plain io.Reader, closer func(), err error) {
	switch {
	case beginsWith(from, magicGzip):
		reader, err := gzip.NewReader(from)
		if err != nil {
			return nil, nil, err
		}
		return reader, func() { _ = reader.Close() }, nil
	case beginsWith(from, magicXZ):
		reader, err := xz.NewReader(from)
		return reader, func() {}, err
	case beginsWith(from, magicZstd):
		reader, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return reader, reader.Close, nil
	default:
		return nil, nil, nil
	}
}
