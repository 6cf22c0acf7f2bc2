package image

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestImage_FullFileSystem requires the permission to mount a file system. TestWriteDisk_FullStorage works without it.
func TestImage_FullFileSystem(t *testing.T) {
	t.Attr("fault", "The disk is full while an image in any format is written to a disk, or a kernel is downloaded")
	text := bytes.Repeat([]byte("an image that can be compressed\x00"), mib/32)
	for name, test := range map[string]struct {
		served []byte
		// file is the file with the limited space. The space is a number of pages.
		file  string
		pages int
	}{
		"raw":                     {diskContent(), "disk.img.partial", 30},
		"compressed":              {compressed(t, toZstd, text), "disk.img.partial", 30},
		"qcow2":                   {qcow2(t, diskContent()), "disk.img.qcow2.partial", 30},
		"qcow2, with a full disk": {qcow2(t, text, "-c"), "disk.img.partial", 130},
		"kernel":                  {diskContent(), "kernel.partial", 30},
	} {
		t.Run(name, func(t *testing.T) {
			fs := smallfs.NewSize(t, 8*mib)
			source := Source{URL: serve(t, test.served), Checksum: sum(test.served)}
			write := func() error {
				return WriteDisk(t.Context(), source, Target{Path: fs.Path("disk.img"), Bytes: 4 * mib}, Options{Access: local})
			}
			made := "disk.img"
			if name == "kernel" {
				write = func() error { return Fetch(t.Context(), source, fs.Path("kernel"), Options{Access: local}) }
				made = "kernel"
			}
			fs.Fill(test.pages)
			err := write()
			smallfs.WantNoSpace(t, err, fs.Path(test.file))
			if !errors.Is(err, NoSpace) {
				t.Errorf("got %v, want NoSpace", err)
			}
			fs.WantFiles(fs.Dir)
			fs.FreeSpace()
			must(t, write())
			fs.WantFiles(fs.Dir, made)
			if made == "kernel" {
				wantContent(t, fs.Path(made), test.served)
			} else if info, err := os.Stat(fs.Path(made)); err != nil || info.Size() != 4*mib {
				t.Errorf("disk = %v (%v), want none", info, err)
			}
		})
	}
	t.Attr("outcome", "The operation fails without retries, with a NoSpace error that names the file; no file remains; the next attempt succeeds once there is free space")
}
