package vm

import (
	"context"
	"errors"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// images fetches a hypervisor's images with package image.
type images struct{}

// WriteDisk implements hypervisor.Images.
func (images) WriteDisk(ctx context.Context, from *vmpb.InitialImage, disk string, size uint64, listener hypervisor.Listener) error {
	source := image.Source{URL: from.GetUrl(), Checksum: from.GetChecksum(), Format: from.GetFormat()}
	return imageError(image.WriteDisk(ctx, source, image.Target{Path: disk, Bytes: int64(size)}, image.Options{
		Progress: func(done, total int64) { listener.Progress(uint64(done), uint64(total)) },
		Trouble:  listener.Trouble,
	}))
}

// Fetch implements hypervisor.Images.
func (images) Fetch(ctx context.Context, file *vmpb.BootFile, path string, listener hypervisor.Listener) error {
	source := image.Source{URL: file.GetUrl(), Checksum: file.GetChecksum()}
	return imageError(image.Fetch(ctx, source, path, image.Options{Trouble: listener.Trouble}))
}

// imageError gives an error of package image its class in package hypervisor.
func imageError(err error) error {
	for kind, class := range map[image.Kind]error{
		image.Unavailable: hypervisor.ErrImageUnavailable,
		image.Rejected:    hypervisor.ErrImageRejected,
		image.Invalid:     hypervisor.ErrImageRejected,
	} {
		if errors.Is(err, kind) {
			return &classified{err: err, class: class}
		}
	}
	return err
}

// classified is an error of a class, with its own text.
type classified struct{ err, class error }

// Error implements error.
func (e *classified) Error() string { return e.err.Error() }

// Unwrap returns error and class.
func (e *classified) Unwrap() []error { return []error{e.err, e.class} }
