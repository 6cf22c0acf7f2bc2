package provisioner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/loop"
)

// deviceFile is the name of the file that backs a block device, in the directory of its volume. Hosts attach it
// to a loop device.
const deviceFile = "device.img"

// isBlock reports whether a claim or a volume is for a block device.
func isBlock(mode *corev1.PersistentVolumeMode) bool {
	return ptr.Deref(mode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
}

// makeDevice creates the file that backs a device, unless an earlier attempt did.
func (w *worker) makeDevice(dir string, bytes int64) error {
	file, err := w.files.OpenFile(path.Join(dir, deviceFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return w.growDevice(dir, bytes)
	}
	if err != nil {
		return fmt.Errorf("creating the file of the volume: %w", err)
	}
	if err := errors.Join(file.Truncate(bytes), file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("creating the file of the volume: %w", err)
	}
	return nil
}

// growDevice enlarges the file, and then the device.
func (w *worker) growDevice(dir string, bytes int64) error {
	file, err := w.openDevice(dir)
	if err != nil {
		return fmt.Errorf("opening the file of the volume: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && info.Size() < bytes {
		err = file.Truncate(bytes)
	}
	if err == nil {
		err = loop.Resize(file)
	}
	if err != nil {
		return fmt.Errorf("enlarging the device of the volume: %w", err)
	}
	return nil
}

// openDevice opens the file that backs a device. A compromised process may have replaced it.
func (w *worker) openDevice(dir string) (*os.File, error) {
	file, err := w.files.OpenFile(path.Join(dir, deviceFile), os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", deviceFile), err, file.Close())
	}
	return file, nil
}

// destroy removes a directory with everything in it. A file that stays attached to a device would use its disk
// space forever.
func (w *worker) destroy(dir string) error {
	if file, err := w.openDevice(dir); err == nil {
		if err := errors.Join(loop.Detach(file), file.Close()); err != nil {
			return err
		}
	}
	return w.files.RemoveAll(dir)
}
