// Package loop attaches files to loop devices, through which they are block devices of this machine.
//
// A file has at most one device, no matter how often and by which processes it is attached: with two, writes
// would be inconsistent, and a process could not open it exclusively. The device stays until it is detached or
// the machine is restarted.
package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrUnavailable means that this process cannot use loop devices: it lacks the privilege, or the kernel does
// not support them.
var ErrUnavailable = errors.New("loop devices are not available")

// control is the device that allocates loop devices.
const control = "/dev/loop-control"

// Available returns nil if this process can attach files. Errors: ErrUnavailable.
func Available() error {
	file, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return file.Close()
}

// Attach returns the path of the device of a file, which it attaches if necessary. It returns ErrUnavailable,
// and errors of the file system.
func Attach(file *os.File) (device string, err error) {
	unlock, err := lock(file)
	if err != nil {
		return "", err
	}
	defer unlock()
	if device, err = find(file); device != "" || err != nil {
		return device, err
	}
	free, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer free.Close()
	for {
		number, err := unix.IoctlRetInt(int(free.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("finding a free loop device: %w", err)
		}
		device = fmt.Sprintf("/dev/loop%d", number)
		err = configure(device, file)
		if errors.Is(err, unix.EBUSY) {
			continue // another process has attached another file to it
		}
		if err != nil {
			return "", fmt.Errorf("attaching %s to %s: %w", file.Name(), device, err)
		}
		return device, nil
	}
}

// lock excludes other processes that attach or detach the file.
func lock(file *os.File) (unlock func(), err error) {
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking %s: %w", file.Name(), err)
	}
	return func() { _ = unix.Flock(int(file.Fd()), unix.LOCK_UN) }, nil
}

func configure(device string, file *os.File) error {
	to, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	config := &unix.LoopConfig{Fd: uint32(file.Fd())}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], file.Name()) // informative only
	return unix.IoctlLoopConfigure(int(to.Fd()), config)
}

// find returns the device of a file, or "" if it has none.
func find(file *os.File) (device string, err error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &want); err != nil {
		return "", fmt.Errorf("inspecting %s: %w", file.Name(), err)
	}
	// Only devices with a file have a directory of this name.
	attached, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return "", err
	}
	for _, entry := range attached {
		device := filepath.Join("/dev", filepath.Base(filepath.Dir(entry)))
		info, err := status(device)
		switch {
		case errors.Is(err, unix.ENXIO), errors.Is(err, fs.ErrNotExist): // detached in the meantime
		case err != nil:
			return "", fmt.Errorf("inspecting %s: %w", device, err)
		case info.Inode == want.Ino && info.Device == want.Dev:
			return device, nil
		}
	}
	return "", nil
}

func status(device string) (*unix.LoopInfo64, error) {
	file, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return unix.IoctlLoopGetStatus64(int(file.Fd()))
}

// Detach detaches a file from its device, if it has one. A device that is in use is detached when it is closed.
func Detach(file *os.File) error { return withDevice(file, "detaching", unix.LOOP_CLR_FD) }

// Resize changes the size of a file's device, if it has one, to the file's current size.
func Resize(file *os.File) error { return withDevice(file, "resizing", unix.LOOP_SET_CAPACITY) }

func withDevice(file *os.File, doing string, request uint) error {
	unlock, err := lock(file)
	if err != nil {
		return err
	}
	defer unlock()
	device, err := find(file)
	if device == "" || err != nil {
		return err
	}
	of, err := os.OpenFile(device, os.O_RDWR, 0)
	if err == nil {
		err = errors.Join(unix.IoctlSetInt(int(of.Fd()), request, 0), of.Close())
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", doing, device, err)
	}
	return nil
}
