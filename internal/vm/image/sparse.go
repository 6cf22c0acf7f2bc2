package image

import (
	"bytes"
	"errors"
	"io"
)

const (
	// blockSize is how much is read and written at once.
	blockSize = 1 << 20
	// holeSize is the grain of holes: what is all zero is left out.
	holeSize = 64 << 10
)

// errLimit says that there is more to read than may be written.
var errLimit = errors.New("more than the limit")

// readError is an error of the reader, not of the writer.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }

func (e *readError) Unwrap() error { return e.err }

// copySparse writes what it reads to the same offsets of an empty file, but for zeros.
// It returns how many bytes it read, zeros included; the file may be shorter. A limit of
// 0 is none.
func copySparse(to io.WriterAt, from io.Reader, limit int64) (int64, error) {
	block := make([]byte, blockSize)
	var offset int64
	for {
		n, err := readBlock(from, block)
		if limit > 0 && offset+int64(n) > limit {
			return offset, errLimit
		}
		if writeErr := writeData(to, block[:n], offset); writeErr != nil {
			return offset, writeErr
		}
		offset += int64(n)
		if err == io.EOF {
			return offset, nil
		}
		if err != nil {
			return offset, &readError{err}
		}
	}
}

// readBlock fills block as far as it can. Unlike io.ReadFull it gives the reader's error
// as it is: io.EOF is the end, and io.ErrUnexpectedEOF a decoder's word for half a file.
func readBlock(from io.Reader, block []byte) (n int, err error) {
	for n < len(block) && err == nil {
		var got int
		got, err = from.Read(block[n:])
		n += got
	}
	return n, err
}

var zeros [holeSize]byte

// writeData writes the parts of block that are not all zero, neighbours at once.
func writeData(to io.WriterAt, block []byte, offset int64) error {
	begin := 0 // of what is to be written
	for at := 0; at < len(block); at += holeSize {
		end := min(at+holeSize, len(block))
		if !bytes.Equal(block[at:end], zeros[:end-at]) {
			continue
		}
		if err := writeAt(to, block[begin:at], offset+int64(begin)); err != nil {
			return err
		}
		begin = end
	}
	return writeAt(to, block[begin:], offset+int64(begin))
}

func writeAt(to io.WriterAt, data []byte, offset int64) error {
	if len(data) == 0 {
		return nil
	}
	_, err := to.WriteAt(data, offset)
	return err
}
