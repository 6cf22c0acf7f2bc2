package image

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz/lzma"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func toLZMA(w io.Writer) (io.WriteCloser, error) { return lzma.NewWriter(w) }

// converted returns the beginning of an image in another format of qemu-img.
func converted(t testing.TB, format string, options ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	raw, image := filepath.Join(dir, "raw"), filepath.Join(dir, "image")
	must(t, os.WriteFile(raw, diskContent(), 0o600))
	qemuImg(t, append(append([]string{"convert", "-f", "raw", "-O", format}, options...), raw, image)...)
	content := readFile(t, image)
	return content[:min(len(content), 2*formatStart)]
}

func decodeHex(t testing.TB, digits string) []byte {
	t.Helper()
	content, err := hex.DecodeString(digits)
	must(t, err)
	return content
}

// tarred returns an archive with a disk. The format is that of tar before POSIX if v7 is set: without a magic number.
func tarred(t testing.TB, v7 bool) []byte {
	t.Helper()
	var out bytes.Buffer
	writer := tar.NewWriter(&out)
	must(t, writer.WriteHeader(&tar.Header{Name: "disk.raw", Mode: 0o644, Size: int64(len(diskContent())), Format: tar.FormatUSTAR}))
	_, err := writer.Write(diskContent())
	must(t, err)
	must(t, writer.Close())
	archive := out.Bytes()
	if v7 {
		const atMagic, atSum = 257, 148
		clear(archive[atMagic:512])
		copy(archive[atSum:], "        ")
		sum := 0
		for _, b := range archive[:512] {
			sum += int(b)
		}
		copy(archive[atSum:], []byte{'0' + byte(sum>>15&7), '0' + byte(sum>>12&7), '0' + byte(sum>>9&7), '0' + byte(sum>>6&7), '0' + byte(sum>>3&7), '0' + byte(sum&7), 0})
	}
	return archive
}

func zipped(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	writer := zip.NewWriter(&out)
	file, err := writer.Create("disk.raw")
	must(t, err)
	_, err = file.Write(diskContent())
	must(t, err)
	must(t, writer.Close())
	return out.Bytes()
}

// otherFormats returns files that are not disks, by what they are.
func otherFormats(t testing.TB) map[string][]byte {
	text := []byte("a file that someone else wrote\n")
	return map[string][]byte{
		"a VMDK image":                   converted(t, "vmdk"),
		"a VMDK image (stream)":          converted(t, "vmdk", "-o", "subformat=streamOptimized"),
		"a VMDK image (descriptor)":      []byte("# Disk DescriptorFile\nversion=1\ncreateType=\"monolithicFlat\"\nRW 8 FLAT \"/etc/passwd\" 0\n"),
		"a VMDK image (ESX)":             padded([]byte("COWD\x01\x00\x00\x00"), 1024),
		"a VMDK image (space-efficient)": padded([]byte("\xbe\xba\xfe\xca\x00\x00\x00\x00\x01\x00\x00\x00\x02"), 1024),
		"a VDI image":                    converted(t, "vdi"),
		"a VHD image":                    converted(t, "vpc"),
		"a VHDX image":                   converted(t, "vhdx"),
		"a QED image":                    converted(t, "qed"),
		"a Parallels image":              converted(t, "parallels"),
		"compressed with bzip2":          decodeHex(t, "425a6839314159265359cb3644e70000049980400400102eaa0c80200031000004a9a64c989a6d4919e34f45d8a5da5188c49040a8267c5dc914e142432cd9139c"),
		"compressed with lzma":           compressed(t, toLZMA, text),
		"compressed with lz4":            decodeHex(t, "04224d186440a724000000f30b61206469736b20696d6167652c20736169642074776963653a201a0050696d61676500000000d245c8ca"),
		"compressed with lz4 (legacy)":   decodeHex(t, "02214c1824000000f30b61206469736b20696d6167652c20736169642074776963653a201a0050696d616765"),
		"compressed with lzip":           []byte("LZIP\x01\x0c\x00\x30\x98"),
		"compressed with lzop":           []byte("\x89LZO\x00\r\n\x1a\n\x10\x40"),
		"a ZIP archive":                  zipped(t),
		"a ZIP archive (empty)":          padded([]byte("PK\x05\x06"), 22),
		"a 7z archive":                   []byte("7z\xbc\xaf\x27\x1c\x00\x04\x00\x00"),
		"a RAR archive":                  []byte("Rar!\x1a\x07\x01\x00"),
		"a cpio archive":                 padded([]byte("070701000002D1"), 512),
		"a tar archive":                  tarred(t, false),
		"a tar archive (v7)":             tarred(t, true),
		"an HTML page":                   []byte("\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"),
		"an HTML page (Latin-1)":         []byte("<html><body>Verbindung abgelehnt f\xfcr Sie</body></html>"),
		"an HTML page (BOM)":             []byte("\ufeff<html><body>Log in</body></html>"),
		"an XML document":                []byte("<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code></Error>"),
		"a Git LFS pointer":              []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
		"a text file":                    []byte("{\"error\": \"the token has expired\"}\n"),
		"a text file (long)":             bytes.Repeat([]byte("die Größe der Datei\r\n"), 100_000),
		"empty":                          {},
	}
}

// what removes the part of a name that distinguishes files of one format.
func what(name string) string {
	kind, _, _ := strings.Cut(name, " (")
	return kind
}

// A file that is not a disk would become a disk that does not boot, or a disk whose guest sees no error.
func TestImage_OtherFormatsAreRejected(t *testing.T) {
	for name, content := range otherFormats(t) {
		for how, test := range map[string]struct {
			served []byte
			format vmpb.InitialImage_Format
			want   string
		}{
			"plain":    {content, 0, "it is " + what(name)},
			"gzip":     {compressed(t, toGzip, content), 0, "it is " + what(name)},
			"as QCOW2": {content, isQCOW2, what(name)},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				wantRejected(t, Source{URL: serve(t, test.served), Format: test.format}, test.want)
			})
		}
	}
}

func wantRejected(t *testing.T, source Source, want string) {
	t.Helper()
	dir := t.TempDir()
	err := WriteDisk(t.Context(), source, Target{Path: filepath.Join(dir, "disk.img"), Bytes: 4 * mib}, noRetries)
	failure, ok := errors.AsType[*Error](err)
	if !ok || failure.Kind != Rejected || !strings.Contains(failure.Problem, want) {
		t.Errorf("got %v, want Rejected: %q", err, want)
	}
	wantFiles(t, dir)
}

// The message contains a remedy.
func TestImage_OtherFormatsHaveRemedies(t *testing.T) {
	for name, test := range map[string]struct {
		served []byte
		want   string
	}{
		"VMDK":             {[]byte("KDMV"), "it is a VMDK image; convert it with qemu-img convert -O qcow2"},
		"VMDK in gzip":     {compressed(t, toGzip, []byte("KDMV")), "after decompression, it is a VMDK image; convert it with qemu-img convert -O qcow2"},
		"tar":              {tarred(t, false), "it is a tar archive, as OVA files are; extract the disk image from it"},
		"lz4":              {[]byte("\x04\x22\x4d\x18"), "it is compressed with lz4; decompress it, or compress it with gzip, xz or zstd instead"},
		"compressed twice": {compressed(t, toXZ, compressed(t, toGzip, diskContent())), "after decompression, it is compressed with gzip; compress it only once"},
		"HTML":             {[]byte("<html>"), "it is an HTML page; check that the URL is correct and does not require a login"},
		"Git LFS":          {[]byte("version https://git-lfs.github.com/spec/v1\n"), "it is a Git LFS pointer; use the URL of the content that it refers to"},
		"empty":            {nil, "it is empty; check that the URL is correct and does not require a login"},
	} {
		t.Run(name, func(t *testing.T) {
			wantRejected(t, Source{URL: serve(t, test.served)}, test.want)
		})
	}
}

// With the format Raw, any content is a disk, except documents that a server sends instead of the image.
func TestImage_RawAcceptsOtherFormats(t *testing.T) {
	documents := []string{"an HTML page", "an XML document", "a Git LFS pointer", "empty"}
	for name, content := range otherFormats(t) {
		t.Run(name, func(t *testing.T) {
			source, path := Source{URL: serve(t, content), Format: raw}, filepath.Join(t.TempDir(), "disk.img")
			for _, document := range documents {
				if what(name) == document {
					wantRejected(t, source, "it is "+document)
					return
				}
			}
			must(t, WriteDisk(t.Context(), source, Target{Path: path, Bytes: 8 * mib}, noRetries))
			wantContent(t, path, padded(content, 8*mib))
		})
	}
}

// Whatever the first sector of a disk contains, it is a disk.
func TestImage_DisksAreAccepted(t *testing.T) {
	at := func(offset int, text string) []byte {
		disk := make([]byte, mib)
		copy(disk[offset:], text)
		return disk
	}
	dotted := bytes.Repeat([]byte("text"), mib/4)
	copy(dotted[formatStart-1:], "\x00")
	for name, disk := range map[string][]byte{
		"zeros":                 make([]byte, mib),
		"boot sector":           at(510, "\x55\xaa"),
		"GPT":                   at(512, "EFI PART"),
		"ext4":                  at(0x438, "\x53\xef"),
		"xfs":                   at(0, "XFSB"),
		"btrfs":                 at(0x10040, "_BHRfS_M"),
		"squashfs":              at(0, "hsqs"),
		"LVM":                   at(512, "LABELONE"),
		"LUKS":                  at(0, "LUKS\xba\xbe"),
		"ISO 9660":              at(0x8001, "CD001"),
		"swap":                  at(4086, "SWAPSPACE2"),
		"ones":                  bytes.Repeat([]byte{0xff}, mib),
		"noise":                 padded(diskContent()[:1000], mib),
		"text and then data":    at(0, "#!/bin/sh\n"),
		"text and a single NUL": dotted,
		"one sector":            make([]byte, 512),
		"incomplete bzip2":      at(0, "BZh9"),
		"other lzma":            at(0, "\x5d\x00\x00\x00\x01\x00\x00\x00"),
		"another tar":           at(257, "ustar"),
	} {
		for how, served := range map[string][]byte{"plain": disk, "zstd": compressed(t, toZstd, disk)} {
			t.Run(name+", "+how, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk.img")
				must(t, WriteDisk(t.Context(), Source{URL: serve(t, served)}, Target{Path: path, Bytes: mib}, noRetries))
				wantContent(t, path, padded(disk, mib))
			})
		}
	}
}

// pzstd and seekable files have frames that decoders skip, also at the beginning.
func TestImage_SkippableZstdFramesAreSkipped(t *testing.T) {
	content := diskContent()
	var served []byte
	for i, part := range [][]byte{content[:mib], content[mib:]} {
		served = append(served, byte(0x50+7*i))
		served = append(served, "\x2a\x4d\x18\x04\x00\x00\x00\x01\x02\x03\x04"...)
		served = append(served, compressed(t, toZstd, part)...)
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	must(t, WriteDisk(t.Context(), Source{URL: serve(t, served)}, Target{Path: path, Bytes: 4 * mib}, noRetries))
	wantContent(t, path, padded(content, 4*mib))
}

func TestFetch_DocumentsAreRejected(t *testing.T) {
	for name, content := range otherFormats(t) {
		document := formatOf(content) != nil && formatOf(content).document || len(content) == 0
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kernel")
			file := filepath.Join(t.TempDir(), "file")
			must(t, os.WriteFile(file, content, 0o600))
			for _, url := range []string{serve(t, content), "file://" + file} {
				err := Fetch(t.Context(), Source{URL: url}, path, noRetries)
				if document && (!errors.Is(err, Rejected) || !strings.Contains(err.Error(), "it is "+what(name)+"; ")) || !document && err != nil {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}
