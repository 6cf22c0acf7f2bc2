//go:build linux

package vm

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// images fetches images and boot files with the access that the host's operator allows.
type images struct{ access image.Access }

// imagesFrom reads the environment.
func imagesFrom(getenv func(string) string) (images, error) {
	servers, err := image.ParseServers(getenv(vmpb.EnvImageServers))
	if err != nil {
		return images{}, fmt.Errorf("%s: %w", vmpb.EnvImageServers, err)
	}
	return images{image.Access{Files: getenv(vmpb.EnvImages), Servers: servers}}, nil
}

// WriteDisk is image.WriteDisk, with limited memory.
func (i images) WriteDisk(ctx context.Context, source image.Source, target image.Target, options image.Options) (err error) {
	restore, err := limitMemory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	options.Access = i.access
	return image.WriteDisk(ctx, source, target, options)
}

// Fetch is image.Fetch.
func (i images) Fetch(ctx context.Context, source image.Source, path string, options image.Options) error {
	options.Access = i.access
	return image.Fetch(ctx, source, path, options)
}

// Limits of the memory of a process that writes a disk, in bytes. What package image accepts needs less than
// softMemory, at which garbage is collected more often. At hardMemory, the kernel refuses more memory to this
// process and to qemu-img, in case a decoder has a bug.
const (
	softMemory = 256 << 20
	hardMemory = 1 << 30
)

// limitMemory limits the memory of this process and its children until restore is called, which must be before
// QEMU is started.
func limitMemory() (restore func() error, err error) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_DATA, &before); err != nil {
		return nil, fmt.Errorf("cannot read the memory limit: %w", err)
	}
	limited := unix.Rlimit{Cur: min(hardMemory, before.Cur), Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &limited); err != nil {
		return nil, fmt.Errorf("cannot set the memory limit: %w", err)
	}
	soft := debug.SetMemoryLimit(softMemory)
	return func() error {
		debug.SetMemoryLimit(soft)
		return unix.Setrlimit(unix.RLIMIT_DATA, &before)
	}, nil
}
