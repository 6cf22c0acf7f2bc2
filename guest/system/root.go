// Package system runs the system on the root disk of the full guest: its mounts, its services and
// the kubelet that joins the cluster.
package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Location of the magic number in an ext4 file system.
const (
	magicAt = 1024 + 56
	magic   = 0xef53
)

// OnDisk reports whether the disk has the file system of a full guest.
func OnDisk(disk string) bool {
	file, err := os.Open(disk)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	found := make([]byte, 2)
	if _, err := file.ReadAt(found, magicAt); err != nil {
		return false
	}
	return int(found[0])|int(found[1])<<8 == magic
}

// newRoot is the directory of the initial file system on which the disk is first mounted.
const newRoot = "/root"

// Enter makes the file system of the disk the root, and moves /dev, /proc and /sys along. The program continues
// to run.
func Enter(disk string) error {
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(disk, newRoot, "ext4", unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", disk, err)
	}
	if err := grow(disk, newRoot); err != nil {
		return fmt.Errorf("growing the file system of %s: %w", disk, err)
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := unix.Mount(dir, newRoot+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("moving %s: %w", dir, err)
		}
	}
	err := os.Chdir(newRoot)
	if err == nil {
		err = unix.Mount(".", "/", "", unix.MS_MOVE, "")
	}
	if err == nil {
		err = unix.Chroot(".")
	}
	if err == nil {
		err = os.Chdir("/")
	}
	if err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	return mountAll()
}

// resizeFS is EXT4_IOC_RESIZE_FS of linux/fs/ext4/ext4.h.
const resizeFS = 0x40086610

// blockSize of the file system, as created by hack/guest-full.sh.
const blockSize = 4096

// grow enlarges a mounted file system to the size of its disk.
func grow(disk, mounted string) error {
	size, err := sizeOf(disk)
	if err != nil {
		return err
	}
	root, err := os.Open(mounted)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	blocks := uint64(size) / blockSize
	return ioctl(root, resizeFS, &blocks)
}

func sizeOf(disk string) (int64, error) {
	file, err := os.Open(disk)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	return file.Seek(0, 2)
}

// mountAll mounts what the programs of a Linux system expect.
func mountAll() error {
	var problems []error
	for _, m := range []struct {
		kind, target, options string
		flags                 uintptr
	}{
		{"devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"mqueue", "/dev/mqueue", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"cgroup2", "/sys/fs/cgroup", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"bpf", "/sys/fs/bpf", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "/run", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		// Directories of /sys belong to the kernel.
		if err := os.MkdirAll(m.target, 0o755); err != nil && !errors.Is(err, os.ErrPermission) {
			problems = append(problems, err)
			continue
		}
		if err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.options); err != nil {
			problems = append(problems, fmt.Errorf("mounting %s: %w", m.target, err))
		}
	}
	// Mounts in containers must propagate: kubelet and runc expect shared mounts.
	problems = append(problems, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	return errors.Join(problems...)
}

// setSysctls sets kernel parameters. A key is a path below /proc/sys.
func setSysctls(values map[string]string) error {
	var problems []error
	for key, value := range values {
		problems = append(problems, os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0))
	}
	return errors.Join(problems...)
}
