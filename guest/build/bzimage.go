package main

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"
)

// errFormat is wrapped by errors about the format of the kernel.
var errFormat = errors.New("not a kernel that can be unpacked")

// Offsets in the boot sector; see Documentation/arch/x86/boot.rst of Linux.
const (
	setupSectorsAt  = 0x1f1
	magicAt         = 0x202
	versionAt       = 0x206
	payloadOffsetAt = 0x248
	payloadLengthAt = 0x24c
	headerSize      = 0x250

	oldestVersion   = 0x208 // the first version that locates the payload in the header
	unstatedSectors = 4     // the meaning of zero setup sectors
)

// extractKernel returns the uncompressed ELF kernel of a bzImage. A hypervisor that boots it directly skips the
// kernel's own decompression, which takes about 0.4 s under TCG.
func extractKernel(image []byte) ([]byte, error) {
	payload, err := payloadOf(image)
	if err != nil {
		return nil, err
	}
	kernel, err := decompress(payload)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(kernel, []byte(elf.ELFMAG)) {
		return nil, fmt.Errorf("%w: the payload is not an ELF file", errFormat)
	}
	return kernel, nil
}

func payloadOf(image []byte) ([]byte, error) {
	if len(image) < headerSize || string(image[magicAt:magicAt+4]) != "HdrS" {
		return nil, fmt.Errorf("%w: the boot sector has no kernel header", errFormat)
	}
	if version := binary.LittleEndian.Uint16(image[versionAt:]); version < oldestVersion {
		return nil, fmt.Errorf("%w: its boot protocol is %#x, older than %#x", errFormat, version, oldestVersion)
	}
	sectors := int(image[setupSectorsAt])
	if sectors == 0 {
		sectors = unstatedSectors
	}
	begin := uint64(sectors+1)*sectorSize + uint64(binary.LittleEndian.Uint32(image[payloadOffsetAt:]))
	end := begin + uint64(binary.LittleEndian.Uint32(image[payloadLengthAt:]))
	if end > uint64(len(image)) {
		return nil, fmt.Errorf("%w: the file is shorter than its payload", errFormat)
	}
	return image[begin:end], nil
}

// sizeLength is the length of the uncompressed size at the end of every payload. In gzip, it is part of the
// format.
const sizeLength = 4

func decompress(payload []byte) ([]byte, error) {
	if len(payload) < 2*sizeLength {
		return nil, fmt.Errorf("%w: the payload is empty", errFormat)
	}
	size := binary.LittleEndian.Uint32(payload[len(payload)-sizeLength:])
	reader, err := decompressor(payload)
	if err != nil {
		return nil, err
	}
	var kernel bytes.Buffer
	if _, err := io.Copy(&kernel, io.LimitReader(reader, int64(size)+1)); err != nil {
		return nil, fmt.Errorf("%w: unpacking the payload: %w", errFormat, err)
	}
	if kernel.Len() != int(size) {
		return nil, fmt.Errorf("%w: the payload does not unpack to the stated %d bytes", errFormat, size)
	}
	return kernel.Bytes(), nil
}

func decompressor(payload []byte) (io.Reader, error) {
	body := bytes.NewReader(payload[:len(payload)-sizeLength])
	switch {
	case bytes.HasPrefix(payload, []byte{0x02, 0x21, 0x4c, 0x18}): // LZ4's legacy frame
		return lz4.NewReader(body), nil
	case bytes.HasPrefix(payload, []byte{0x1f, 0x8b}):
		return gzip.NewReader(bytes.NewReader(payload))
	case bytes.HasPrefix(payload, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstd.NewReader(body)
	case bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")):
		return xz.NewReader(body)
	default:
		return nil, fmt.Errorf("%w: unknown compression that begins with % x", errFormat, payload[:sizeLength])
	}
}
