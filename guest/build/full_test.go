package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestBuild_FailsOnFullDisk: the build fails with an error that names the file.
func TestBuild_FailsOnFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while the guest build writes its initrd and its disk")
	records := []cpio.Record{cpio.StaticFile("init", strings.Repeat("program\n", 4096), 0o755)}
	fs := smallfs.New(t)
	for name, write := range map[string]func(path string) error{
		"initrd":   func(path string) error { return writeArchive(path, records) },
		"boot.raw": func(path string) error { return createSparse(path, bytes.Repeat([]byte{1}, sectorSize)) },
	} {
		fs.Fill(0)
		smallfs.WantNoSpace(t, write(fs.Path(name)), fs.Path(name))
		fs.FreeSpace()
		if err := write(fs.Path(name)); err != nil {
			t.Errorf("%s, with free space: got error %v", name, err)
		}
	}
	t.Attr("outcome", "The build fails with an error that names the file; hack/guest.sh keeps no files of a failed build; the next build succeeds once there is free space")
}
