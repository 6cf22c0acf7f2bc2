package image

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// formatStart is how many of the first bytes of an image are inspected. A file is text only if all of them are text:
// a disk may begin with a few lines.
const formatStart = 64 << 10

// format is a format of files that are not the content of a disk.
type format struct {
	// name completes the sentence "it is". remedy is what a user can do.
	name, remedy string
	matches      func(start []byte) bool
	// document reports whether servers send such files instead of the requested one. They are rejected even if the
	// format Raw is set.
	document bool
}

const (
	remedyConvert    = "convert it with qemu-img convert -O qcow2"
	remedyDecompress = "decompress it, or compress it with gzip, xz or zstd instead"
	remedyExtract    = "extract the disk image from it"
	remedyURL        = "check that the URL is correct and does not require a login"
	remedyPointer    = "use the URL of the content that it refers to"
	remedyOnce       = "compress it only once"
)

// formats are tried in this order.
var formats = []format{
	{name: "an HTML page", remedy: remedyURL, document: true, matches: hasType("text/html")},
	{name: "an XML document", remedy: remedyURL, document: true, matches: hasType("text/xml")},
	{name: "a Git LFS pointer", remedy: remedyPointer, document: true, matches: begins("version https://git-lfs.github.com/spec/")},
	{name: "a VMDK image", remedy: remedyConvert, matches: begins("KDMV", "COWD", "# Disk DescriptorFile", "\xbe\xba\xfe\xca\x00\x00\x00\x00")},
	{name: "a VDI image", remedy: remedyConvert, matches: isVDI},
	{name: "a VHD image", remedy: remedyConvert, matches: begins("conectix")},
	{name: "a VHDX image", remedy: remedyConvert, matches: begins("vhdxfile")},
	{name: "a QED image", remedy: remedyConvert, matches: begins("QED\x00")},
	{name: "a Parallels image", remedy: remedyConvert, matches: begins("WithoutFreeSpace", "WithouFreSpacExt")},
	{name: "compressed with bzip2", remedy: remedyDecompress, matches: isBzip2},
	{name: "compressed with lzma", remedy: remedyDecompress, matches: isLZMA},
	{name: "compressed with lzip", remedy: remedyDecompress, matches: begins("LZIP\x01")},
	{name: "compressed with lz4", remedy: remedyDecompress, matches: begins("\x04\x22\x4d\x18", "\x02\x21\x4c\x18")},
	{name: "compressed with lzop", remedy: remedyDecompress, matches: begins("\x89LZO\x00\r\n\x1a\n")},
	{name: "a ZIP archive", remedy: remedyExtract, matches: begins("PK\x03\x04", "PK\x05\x06", "PK\x07\x08")},
	{name: "a 7z archive", remedy: remedyExtract, matches: begins("7z\xbc\xaf\x27\x1c")},
	{name: "a RAR archive", remedy: remedyExtract, matches: begins("Rar!\x1a\x07")},
	{name: "a cpio archive", remedy: remedyExtract, matches: begins("070701", "070702", "070707")},
	{name: "a tar archive, as OVA files are", remedy: remedyExtract, matches: isTar},
	{name: "a text file", remedy: remedyURL, matches: isText},
	// These are decompressed, but only once.
	{name: "compressed with gzip", remedy: remedyOnce, matches: begins(magicGzip)},
	{name: "compressed with xz", remedy: remedyOnce, matches: begins(magicXZ)},
	{name: "compressed with zstd", remedy: remedyOnce, matches: isZstd},
}

// formatOf returns the format of a file, or nil if the file may be the content of a disk.
func formatOf(start []byte) *format {
	for i := range formats {
		if formats[i].matches(start) {
			return &formats[i]
		}
	}
	return nil
}

// documentProblem returns why a file with these first bytes is neither a disk nor a boot file, or "".
func documentProblem(start []byte) string {
	if len(start) == 0 {
		return "it is empty; " + remedyURL
	}
	if found := formatOf(start); found != nil && found.document {
		return "it is " + found.name + "; " + found.remedy
	}
	return ""
}

// problem returns why an image with these first bytes is not written to a disk, or "".
func (d *decoded) problem(start []byte, set vmpb.InitialImage_Format) string {
	if d.qcow2 {
		return ""
	}
	if problem := documentProblem(start); problem != "" || set == vmpb.InitialImage_FORMAT_RAW {
		return problem
	}
	found := formatOf(start)
	switch {
	case set == vmpb.InitialImage_FORMAT_QCOW2 && found == nil:
		return "it is not in the QCOW2 format"
	case found == nil:
		return ""
	case set == vmpb.InitialImage_FORMAT_QCOW2:
		return "it is not in the QCOW2 format, but " + found.name
	case d.plain:
		return "it is " + found.name + "; " + found.remedy
	default:
		return "after decompression, it is " + found.name + "; " + found.remedy
	}
}

func begins(texts ...string) func([]byte) bool {
	return func(start []byte) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return bytes.HasPrefix(start, []byte(text)) })
	}
}

// hasType returns whether browsers detect a content type that begins like this.
func hasType(prefix string) func([]byte) bool {
	return func(start []byte) bool {
		start = bytes.TrimPrefix(start, []byte("\ufeff"))
		return strings.HasPrefix(http.DetectContentType(start), prefix)
	}
}

// isVDI looks behind the comment at the beginning, which depends on the program that wrote it.
func isVDI(start []byte) bool {
	const at, signature = 64, "\x7f\x10\xda\xbe"
	return len(start) > at && bytes.HasPrefix(start[at:], []byte(signature))
}

// isBzip2 requires the level and the beginning of the first block or, in an empty file, of the end.
func isBzip2(start []byte) bool {
	rest, ok := bytes.CutPrefix(start, []byte("BZh"))
	return ok && len(rest) > 0 && rest[0] >= '1' && rest[0] <= '9' && begins("1AY&SY", "\x17rE8P\x90")(rest[1:])
}

// isLZMA detects the old format of lzma, which has no magic number, as xz does: by the default properties, a window
// of 2^n or 2^n + 2^(n-1) bytes, a size that is unknown or plausible, and a first byte of data that is always zero.
func isLZMA(start []byte) bool {
	const properties, atWindow, atSize, atData = 0x5d, 1, 5, 13
	if len(start) <= atData || start[0] != properties || start[atData] != 0 {
		return false
	}
	window, size := binary.LittleEndian.Uint32(start[atWindow:]), binary.LittleEndian.Uint64(start[atSize:])
	ones := bits.OnesCount32(window)
	regular := ones == 1 || ones == 2 && bits.Len32(window)-bits.TrailingZeros32(window) == 2
	return regular && window >= 1<<12 && (size == math.MaxUint64 || size > 0 && size < 1<<38)
}

// isZstd also detects a file that begins with a frame that decoders skip.
func isZstd(start []byte) bool {
	return begins(magicZstd)(start) || len(start) > 0 && start[0]&0xf0 == 0x50 && begins(skippableZstd)(start[1:])
}

// isTar verifies the checksum of the first header.
func isTar(start []byte) bool {
	_, err := tar.NewReader(bytes.NewReader(start)).Next()
	return err == nil
}

// isText reports whether there are only complete characters of text. The last one may be cut off.
func isText(start []byte) bool {
	for len(start) > 0 {
		r, size := utf8.DecodeRune(start)
		if r == utf8.RuneError && size == 1 && utf8.FullRune(start) || unicode.IsControl(r) && !unicode.IsSpace(r) && r != '\x1b' {
			return false
		}
		start = start[size:]
	}
	return true
}
