package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// The layout of the disk. Init stores the guest's credential between the boot sector and the partition.
const (
	sectorSize     = 512
	diskSize       = 64 << 20
	partitionStart = 1 << 20
	bootCodeSize   = 440
)

// disk is a disk that a BIOS boots with syslinux, in a partition with a FAT32 file system.
type disk struct {
	mbr    string // file with the boot sector's code
	kernel string
	initrd string
}

const bootConfig = `DEFAULT guest
PROMPT 0
TIMEOUT 0
LABEL guest
  KERNEL vmlinuz
  INITRD initrd
  APPEND ` + commandLine + "\n"

// write creates the disk with the tools of the packages dosfstools, mtools and syslinux, which work without
// mounting it.
func (d disk) write(path string) (err error) {
	sector, err := d.bootSector()
	if err != nil {
		return err
	}
	if err := createSparse(path, sector); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(path), ".disk-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	config := filepath.Join(work, "syslinux.cfg")
	if err := os.WriteFile(config, []byte(bootConfig), 0o644); err != nil {
		return err
	}
	partition := fmt.Sprintf("%s@@%d", path, partitionStart)
	blocks := fmt.Sprint((diskSize - partitionStart) / 1024)
	return run(
		[]string{"mkfs.vfat", "--invariant", "-F", "32", "-s", "1", "--offset", fmt.Sprint(partitionStart / sectorSize), path, blocks},
		[]string{"mcopy", "-i", partition, d.kernel, "::vmlinuz"},
		[]string{"mcopy", "-i", partition, d.initrd, "::initrd"},
		[]string{"mcopy", "-i", partition, config, "::syslinux.cfg"},
		[]string{"syslinux", "--install", "--offset", fmt.Sprint(partitionStart), path},
	)
}

// bootSector returns the boot code and a table with one active partition.
func (d disk) bootSector() ([]byte, error) {
	code, err := os.ReadFile(d.mbr)
	if err != nil {
		return nil, err
	}
	if len(code) > bootCodeSize {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d bytes of a boot sector's code", d.mbr, len(code), bootCodeSize)
	}
	sector := make([]byte, sectorSize)
	copy(sector, code)
	entry := sector[446:462]
	entry[0] = 0x80                            // active
	copy(entry[1:4], []byte{0xfe, 0xff, 0xff}) // no cylinders, heads and sectors: count blocks
	entry[4] = 0x0c                            // FAT32, addressed by blocks
	copy(entry[5:8], []byte{0xfe, 0xff, 0xff})
	binary.LittleEndian.PutUint32(entry[8:], partitionStart/sectorSize)
	binary.LittleEndian.PutUint32(entry[12:], (diskSize-partitionStart)/sectorSize)
	sector[510], sector[511] = 0x55, 0xaa
	return sector, nil
}

func createSparse(path string, begin []byte) error {
	if err := os.WriteFile(path, begin, 0o644); err != nil {
		return err
	}
	return os.Truncate(path, diskSize)
}

// run runs the commands until one fails.
func run(commands ...[]string) error {
	for _, command := range commands {
		output, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", command[0], err, output)
		}
	}
	return nil
}
