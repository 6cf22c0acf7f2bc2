package qemu

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/test/support/blockdev"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// onDevice returns a device as a disk that starts with the guest.
func onDevice(t *testing.T, bytes int64, guest []byte) (of Disk, file string) {
	t.Helper()
	file, path := blockdev.New(t, bytes)
	device, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = device.WriteAt(guest, 0)
	must(t, errors.Join(err, device.Close()))
	of, err = DiskAt(path)
	must(t, err)
	return of, file
}

// devicePair has a root disk and a data disk on devices. The devices of the target are larger and have other
// content.
func devicePair(t *testing.T, guest []byte) Config {
	t.Helper()
	config, more := machine(t, nil), int64(0)
	var content [2][]byte
	content[0] = guest
	if guest == nil {
		more = 1 << 20
		content = [2][]byte{bytes.Repeat([]byte("other"), scribeDisk/5), bytes.Repeat([]byte("other"), dataSize/5)}
	}
	config.Disks.Root, _ = onDevice(t, scribeDisk+more, content[0])
	data, _ := onDevice(t, dataSize+more, content[1])
	config.Disks.Data = []DataDisk{{Disk: data, Serial: "logs"}}
	return config
}

// The guest boots from a device, and the next guest finds what it has written.
func TestDevice_GuestBoots(t *testing.T) {
	tier.All(t)
	config := machine(t, nil)
	config.Disks.Root, _ = onDevice(t, scribeDisk, bootSector("scribe"))
	run := func() uint64 {
		p := start(t, config)
		console := attach(t, p)
		must(t, p.Cont(bounded(t)))
		console.until(scribeBanner)
		_, last := console.numbers(200)
		must(t, p.Kill(bounded(t)))
		return lastNumber(t, console, last)
	}
	wantNumbers(t, config.Disks.Root.Path, run())
	wantNumbers(t, config.Disks.Root.Path, run())
}

// The device is locked until QEMU has terminated, even if the process that started QEMU has released it: at that
// point, only this lock prevents a second guest.
func TestDevice_LockIsHeldUntilQEMUExits(t *testing.T) {
	tier.All(t)
	config := machine(t, nil)
	config.Disks.Root, _ = onDevice(t, 1<<20, counter)
	config.Sockets = t.TempDir()
	other := blockdev.Node(t, config.Disks.Root.Path)
	lock, err := disk.Acquire(config.Disks.Root.Path)
	must(t, err)
	config.Disks.Locks = []*os.File{lock.Device()}
	p := start(t, config)
	must(t, lock.Release())
	if _, err := disk.Acquire(other); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("error = %v, want ErrLocked", err)
	}
	must(t, p.Kill(bounded(t)))
	lock, err = disk.Acquire(other)
	must(t, err)
	must(t, lock.Release())
}

// The device is enlarged before the disk, which then uses the whole device.
func TestDevice_Grows(t *testing.T) {
	tier.All(t)
	config := machine(t, counter)
	data, file := onDevice(t, 1<<20, nil)
	config.Disks.Data = []DataDisk{{Disk: data, Serial: "db"}}
	p := start(t, config)
	must(t, p.Cont(bounded(t)))
	if err := p.Grow(bounded(t), "db", 2<<20); err == nil {
		t.Error("the disk is larger than its device")
	}
	blockdev.Grow(t, file, 3<<20)
	must(t, p.Grow(bounded(t), "db", 2<<20))
	var devices []struct {
		Inserted struct {
			Image struct {
				Bytes uint64 `json:"virtual-size"`
			} `json:"image"`
		} `json:"inserted"`
	}
	must(t, p.Monitor().Execute(bounded(t), "query-block", nil, &devices))
	var sizes []uint64
	for _, device := range devices {
		sizes = append(sizes, device.Inserted.Image.Bytes)
	}
	if slices.Sort(sizes); !slices.Equal(sizes, []uint64{1 << 20, 3 << 20}) {
		t.Errorf("disk sizes = %d bytes", sizes)
	}
}
