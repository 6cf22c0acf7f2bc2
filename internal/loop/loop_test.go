package loop

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFile(t *testing.T, bytes int64) *os.File {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	must(t, err)
	must(t, file.Truncate(bytes))
	t.Cleanup(func() {
		must(t, Detach(file))
		must(t, file.Close())
	})
	return file
}

func size(t *testing.T, device string) int64 {
	t.Helper()
	file, err := os.Open(device)
	must(t, err)
	end, err := file.Seek(0, io.SeekEnd)
	must(t, errors.Join(err, file.Close()))
	return end
}

// TestAttach_OneDevicePerFile checks that concurrent attachments of a file result in one device.
func TestAttach_OneDevicePerFile(t *testing.T) {
	file := newFile(t, 1<<20)
	devices := make([]string, 8)
	var all sync.WaitGroup
	for i := range devices {
		all.Go(func() {
			own, err := os.OpenFile(file.Name(), os.O_RDWR, 0)
			if err == nil {
				devices[i], err = Attach(own)
				err = errors.Join(err, own.Close())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, device := range devices {
		if device == "" || device != devices[0] {
			t.Fatalf("the devices are %q", devices)
		}
	}
	other := newFile(t, 1<<20)
	if device, err := Attach(other); err != nil || device == devices[0] {
		t.Errorf("another file has %s, %v", device, err)
	}
}

// TestAttach_IgnoresPartitionTable checks that the host's kernel does not parse the partition table that a guest writes to
// its disk.
func TestAttach_IgnoresPartitionTable(t *testing.T) {
	file := newFile(t, 4<<20)
	table := make([]byte, 512)
	copy(table[446:], []byte{0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0}) // 1 MiB, starting at the second MiB
	table[510], table[511] = 0x55, 0xaa
	_, err := file.WriteAt(table, 0)
	must(t, err)
	device, err := Attach(file)
	must(t, err)
	opened, err := os.Open(device) // the kernel would read the table now
	must(t, err)
	must(t, opened.Close())
	name := filepath.Base(device)
	partitions, err := filepath.Glob("/sys/block/" + name + "/" + name + "p*")
	must(t, err)
	if len(partitions) > 0 {
		t.Errorf("the kernel has found %q", partitions)
	}
}

func TestDevice_ResizeAndDetach(t *testing.T) {
	file := newFile(t, 1<<20)
	must(t, errors.Join(Resize(file), Detach(file))) // the file has no device
	device, err := Attach(file)
	must(t, err)
	must(t, file.Truncate(3<<20))
	must(t, Resize(file))
	if got := size(t, device); got != 3<<20 {
		t.Errorf("the device has %d bytes", got)
	}
	must(t, Detach(file))
	if found, err := find(file); found != "" || err != nil {
		t.Errorf("after detaching: %q, %v", found, err)
	}
}
