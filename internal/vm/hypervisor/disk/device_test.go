package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/blockdev"
)

const deviceBytes = 8 << 20

func newDevice(t *testing.T) (d Disk, file string) {
	t.Helper()
	file, device := blockdev.New(t, deviceBytes)
	return Disk{Path: device, Bytes: 4 << 20}, file
}

func wantContent(t *testing.T, d Disk, want Content) {
	t.Helper()
	if got, err := d.Content(); err != nil || got != want {
		t.Fatalf("Content() = %s, %v; want %s", got, err, want)
	}
}

func write(t *testing.T, path string, data []byte, at int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	_, err = file.WriteAt(data, at)
	must(t, errors.Join(err, file.Sync(), file.Close()))
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

// The lock belongs to the device, because each container has its own device node.
func TestDevice_IsLocked(t *testing.T) {
	d, _ := newDevice(t)
	other := blockdev.Node(t, d.Path)
	lock, err := Acquire(d.Path)
	must(t, err)
	for _, path := range []string{d.Path, other} {
		if _, err := Acquire(path); !errors.Is(err, ErrLocked) {
			t.Errorf("error = %v, want ErrLocked", err)
		}
	}
	if _, err := os.Stat(d.Path + ".lock"); err == nil {
		t.Error("there is a file next to the device node")
	}
	must(t, lock.Release())
	lock, err = Acquire(other)
	must(t, err)
	must(t, lock.Release())
}

func TestDevice_Content(t *testing.T) {
	for name, test := range map[string]struct {
		data []byte
		at   int64
		want Content
	}{
		"nothing":               {nil, 0, Blank},
		"a boot sector":         {[]byte{0x55, 0xaa}, 510, Data},
		"a superblock of btrfs": {[]byte("_BHRfS_M"), 64<<10 + 64, Data},
		"a backup of a table":   {[]byte("EFI PART"), deviceBytes - 512, Data},
		"an incomplete image":   {mark, 0, Begun},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDevice(t)
			write(t, d.Path, test.data, test.at)
			wantContent(t, d, test.want)
		})
	}
}

// If writing is interrupted at any point, the disk does not count as complete, and the next disk contains none of
// its data.
func TestDraft_IncompleteUntilCommit(t *testing.T) {
	d, _ := newDevice(t)
	want := make([]byte, deviceBytes)
	copy(want[HeadBytes-2:], "across")
	copy(want[3<<20:], "more")
	first, err := d.Draft(t.Context())
	must(t, err)
	_, err = first.WriteAt([]byte("data of an earlier image"), 5<<20)
	must(t, err)
	_, err = first.WriteAt([]byte("head"), 0)
	must(t, err)
	wantContent(t, d, Begun)
	first.Discard()
	wantContent(t, d, Begun)

	draft, err := d.Draft(t.Context())
	must(t, err)
	for at, data := range map[int64]string{HeadBytes - 2: "across", 3 << 20: "more"} {
		_, err := draft.WriteAt([]byte(data), at)
		must(t, err)
	}
	wantContent(t, d, Begun)
	got := make([]byte, HeadBytes*2)
	_, err = draft.ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got, want[:len(got)]) {
		t.Error("the draft does not contain the data that was written")
	}
	must(t, draft.Truncate(deviceBytes))
	must(t, draft.Commit())
	wantContent(t, d, Data)
	if !bytes.Equal(readAll(t, d.Path), want) {
		t.Error("the content of the device differs from the disk")
	}
}

func TestDevice_ClearZeroes(t *testing.T) {
	d, _ := newDevice(t)
	draft, err := d.Draft(t.Context())
	must(t, err)
	_, err = draft.WriteAt([]byte("left"), 6<<20)
	must(t, err)
	draft.Discard()
	must(t, d.Clear(t.Context()))
	wantContent(t, d, Blank)
	if !bytes.Equal(readAll(t, d.Path), make([]byte, deviceBytes)) {
		t.Error("data remains on the device")
	}
}

func TestDevice_IsTooSmall(t *testing.T) {
	d, file := newDevice(t)
	d.Bytes = deviceBytes + 1
	before := readAll(t, file)
	if _, err := d.Draft(t.Context()); !errors.Is(err, ErrTooSmall) {
		t.Errorf("error = %v, want ErrTooSmall", err)
	}
	if !bytes.Equal(readAll(t, file), before) {
		t.Error("the device was modified")
	}
	d.Bytes = 0 // any size
	draft, err := d.Draft(t.Context())
	must(t, err)
	defer draft.Discard()
	if err := draft.Truncate(deviceBytes + 512); !errors.Is(err, ErrTooSmall) {
		t.Errorf("error = %v, want ErrTooSmall", err)
	}
}

func TestDevice_Length(t *testing.T) {
	d, file := newDevice(t)
	for _, want := range []int64{deviceBytes, 2 * deviceBytes} {
		blockdev.Grow(t, file, want)
		if got, err := d.Length(); err != nil || got != uint64(want) {
			t.Errorf("Length() = %d, %v; want %d", got, err, want)
		}
	}
}

// A link to a device is rejected. Otherwise, anyone who can write to a volume could use any device of the host.
func TestDevice_LinkIsRejected(t *testing.T) {
	d, _ := newDevice(t)
	link := Disk{Path: t.TempDir() + "/disk.img"}
	must(t, os.Symlink(d.Path, link.Path))
	if link.IsDevice() {
		t.Error("a link counts as a device")
	}
	if _, err := link.Exists(); !errors.Is(err, ErrNotFile) {
		t.Errorf("error = %v, want ErrNotFile", err)
	}
	if _, err := link.Draft(t.Context()); err == nil {
		t.Error("a link was followed")
	}
}

func TestDevice_ClearRespectsContext(t *testing.T) {
	d, _ := newDevice(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("canceled")
	cancel(cause)
	if _, err := d.Draft(ctx); !errors.Is(err, cause) {
		t.Errorf("error = %v, want %v", err, cause)
	}
	wantContent(t, d, Begun)
}
