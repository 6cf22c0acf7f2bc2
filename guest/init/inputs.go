package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/metadata"
	"github.com/millwright-dev/millwright/guest/network"
	"github.com/millwright-dev/millwright/guest/userdata"
)

// The names of the metadata in fw_cfg; the second is the one that QEMU supports.
var metadataNames = []string{
	"vm.metropolis.monogon.dev/v1/metadata.pb", "opt/vm.metropolis.monogon.dev/v1/metadata.pb",
}

func readMetadata() (metadata.Metadata, error) {
	for _, name := range metadataNames {
		content, err := os.ReadFile(filepath.Join("/sys/firmware/qemu_fw_cfg/by_name", name, "raw"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return metadata.Metadata{}, err
		}
		return metadata.Parse(content)
	}
	return metadata.Metadata{}, errors.New("there is none in fw_cfg, so there is no network")
}

// connect sets the network up as the metadata says.
func (g *guest) connect(links []metadata.Link) error {
	if len(links) == 0 {
		return errors.New("the metadata has no address")
	}
	card, err := network.Card()
	if err != nil {
		return err
	}
	if err := network.Up(card); err != nil {
		return err
	}
	var ways []string
	for _, link := range links {
		if err := network.Connect(card, link.Address, link.Peer); err != nil {
			return fmt.Errorf("%s: %w", link.Address, err)
		}
		ways = append(ways, fmt.Sprintf("%s via %s", link.Address, link.Peer))
	}
	way := strings.Join(ways, ", ")
	g.network.set(way)
	g.out.Logf("network: %s", way)
	return nil
}

// Where the volume's name is in a file system of type ISO 9660, and what it is.
const (
	volumeNameAt     = 32768 + 40
	volumeNameLength = 32
	seedVolume       = "CIDATA"
	seedFile         = "user-data"
	seedFolder       = "/seed"
)

// readUserData finds the seed among the disks and reads the user data in it.
func readUserData(machine userdata.Machine) (userdata.UserData, error) {
	disks, err := filepath.Glob("/dev/vd[a-z]")
	if err != nil {
		return userdata.UserData{}, err
	}
	for _, disk := range disks {
		if !isSeed(disk) {
			continue
		}
		content, err := readSeed(disk)
		if err != nil {
			return userdata.UserData{}, fmt.Errorf("reading %s: %w", disk, err)
		}
		return userdata.Parse(content, machine)
	}
	return userdata.UserData{}, errors.New("there is no volume " + seedVolume + ", so there is nothing to join")
}

func isSeed(disk string) bool {
	file, err := os.Open(disk)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	name := make([]byte, volumeNameLength)
	if _, err := file.ReadAt(name, volumeNameAt); err != nil {
		return false
	}
	return strings.EqualFold(strings.TrimRight(string(name), " \x00"), seedVolume)
}

// readSeed mounts the volume while it reads.
func readSeed(disk string) (content []byte, err error) {
	if err := unix.Mount(disk, seedFolder, "iso9660", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("mounting it: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(seedFolder, 0)) }()
	entries, err := os.ReadDir(seedFolder)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if strings.EqualFold(entry.Name(), seedFile) {
			return os.ReadFile(filepath.Join(seedFolder, entry.Name()))
		}
	}
	return nil, fmt.Errorf("the volume has no file %s", seedFile)
}
