package hypervisor

import (
	"bytes"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// A hypervisor writes files completely or not at all, and terminates with the reason NoSpace.
func TestGuest_FullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while a hypervisor writes its run ID, the seed, the metadata, or its termination message")
	now := time.Unix(1_700_000_000, 5)
	fs := smallfs.New(t)
	userData := t.TempDir() + "/user-data"
	must(t, os.WriteFile(userData, []byte("#cloud-config\n"), 0o600))
	config := Config{Spec: &vmpb.VMSpec{Name: "vm"}, Paths: Paths{UserData: userData, Run: fs.Dir}}
	network := &qemu.UserNetwork{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	for file, write := range map[string]func() error{
		"run-id":   func() error { _, err := NextRun(fs.Dir, now); return err },
		"seed.iso": func() error { _, err := writeSeed(config, network); return err },
		"metadata": func() error { return writeMetadata(fs.Path("metadata"), config.Spec, network) },
	} {
		t.Run(file, func(t *testing.T) {
			must(t, write())
			old, err := os.ReadFile(fs.Path(file))
			must(t, err)
			fs.Fill(0)
			err = write()
			fs.FreeSpace()
			smallfs.WantNoSpace(t, err, fs.Path(file+".partial"))
			if reason := TerminationOf(err).Reason; reason != vmpb.EndNoSpace {
				t.Errorf("terminated with %s, want %s", reason, vmpb.EndNoSpace)
			}
			if content, err := os.ReadFile(fs.Path(file)); string(content) != string(old) {
				t.Errorf("the file has changed (%v)", err)
			}
			fs.WantFiles(fs.Dir, file)
			must(t, write())
			must(t, os.Remove(fs.Path(file)))
		})
	}
	t.Run("termination", func(t *testing.T) {
		fs.Fill(0)
		code, err := WriteTermination(fs.Path("message"), vmpb.Termination{Reason: vmpb.EndNoSpace, Message: strconv.Itoa(5)})
		fs.FreeSpace()
		smallfs.WantNoSpace(t, err, fs.Path("message"))
		if code != 1 {
			t.Errorf("exit code = %d, want 1", code)
		}
		must(t, os.Remove(fs.Path("message")))
	})
	t.Run("reserved", func(t *testing.T) {
		left := vmpb.Termination{Reason: vmpb.EndNoSpace, Message: "there is no space"}
		must(t, os.WriteFile(fs.Path("message"), bytes.Repeat([]byte(" "), MaxTerminationBytes), 0o600))
		fs.Fill(0)
		_, err := WriteTermination(fs.Path("message"), left)
		fs.FreeSpace()
		must(t, err)
		text, err := os.ReadFile(fs.Path("message"))
		must(t, err)
		if want, _ := encodeTermination(left); string(text) != string(want) {
			t.Errorf("file contains %q, want %q", text, want)
		}
		must(t, os.Remove(fs.Path("message")))
	})
	t.Run("disk", func(t *testing.T) {
		file, err := disk.CreatePartial(fs.Path("disk.img"), 0o600)
		must(t, err)
		fs.Fill(0)
		_, err = file.Write([]byte("x"))
		fs.FreeSpace()
		smallfs.WantNoSpace(t, err, fs.Path("disk.img.partial"))
		file.Discard()
		fs.WantFiles(fs.Dir)
	})
	t.Attr("outcome", "The hypervisor terminates with NoSpace and an error that names the file; the file is unchanged, and no temporary file remains; the next run succeeds once there is free space")
}
