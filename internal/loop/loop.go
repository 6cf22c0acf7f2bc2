// Package loop attaches files to loop devices, by which they are block devices of this machine.
//
// A file has one device, however often and by whomever it is attached: two would not know of each other's writes, and
// a process could not have it for itself. The device stays until it is detached, or the machine is restarted.
package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrUnavailable means that this process cannot have loop devices: it lacks the privilege, or the kernel has none.
var ErrUnavailable = errors.New("loop devices are not to be had here")

// control is the device that gives free loop devices.
const control = "/dev/loop-control"

// Available returns nil if this process can attach files. Errors: ErrUnavailable.
func Available() error {
	file, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return file.Close()
}

// Attach returns the path of the device of a file, which it attaches if need be. Errors: ErrUnavailable, and those of
// the file system.
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
			return "", fmt.Errorf("looking for a free loop device: %w", err)
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

// lock excludes others that attach or detach the file.
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
	copy(config.Info.File_name[:len(config.Info.File_name)-1], file.Name()) // for those who look
	return unix.IoctlLoopConfigure(int(to.Fd()), config)
}

// find returns the device of a file; empty if it has none.
func find(file *os.File) (device string, err error) {
	var wanted unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &wanted); err != nil {
		return "", fmt.Errorf("looking at %s: %w", file.Name(), err)
	}
	// Only those with a file have a folder of this name.
	attached, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return "", err
	}
	for _, folder := range attached {
		device := filepath.Join("/dev", filepath.Base(filepath.Dir(folder)))
		info, err := status(device)
		switch {
		case errors.Is(err, unix.ENXIO), errors.Is(err, fs.ErrNotExist): // detached meanwhile
		case err != nil:
			return "", fmt.Errorf("looking at %s: %w", device, err)
		case info.Inode == wanted.Ino && info.Device == wanted.Dev:
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

// Detach takes a file from its device, if it has one. A device that is in use is detached when it is closed.
func Detach(file *os.File) error { return withDevice(file, "detaching", unix.LOOP_CLR_FD) }

// Resize makes the device of a file, if it has one, as large as the file is now.
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
