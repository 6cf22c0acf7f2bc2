package hostrunner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/confine"
	"github.com/millwright-dev/millwright/internal/local/folder"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// layout has the paths in a host's folder.
type layout string

func (d layout) pods() string { return filepath.Join(string(d), "pods") }
func (d layout) lock() string { return filepath.Join(string(d), "lock") }

// pod returns the folder of a Pod. The API server makes UIDs; what is no name of a folder
// becomes one.
func (d layout) pod(uid string) podFolder {
	name, err := confine.Element(uid)
	if err != nil {
		name = fmt.Sprintf("invalid-%x", uid)
	}
	return podFolder(filepath.Join(d.pods(), name))
}

// Folders in that of a Pod.
const (
	rootFolder    = "root"
	volumesFolder = "volumes"
)

// podFolder is the folder of one Pod.
type podFolder string

func (f podFolder) path(elements ...string) string {
	return filepath.Join(append([]string{string(f)}, elements...)...)
}
func (f podFolder) root() string              { return f.path(rootFolder) }
func (f podFolder) volume(name string) string { return f.path(volumesFolder, name) }
func (f podFolder) log() string               { return f.path("log") }
func (f podFolder) manifest() string          { return f.path("pod.json") }
func (f podFolder) process() string           { return f.path("process.json") }

// podFiles opens files below a Pod's folder, without leaving it by a name or by a link that
// the process may have left there.
type podFiles struct {
	*os.Root
	folder podFolder
}

// create opens the folder, which it creates if need be.
func (f podFolder) create() (podFiles, error) {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return podFiles{}, err
	}
	return f.open()
}

func (f podFolder) open() (podFiles, error) {
	root, err := os.OpenRoot(string(f))
	return podFiles{root, f}, err
}

// remove removes the folder with everything in it.
func (f podFolder) remove() error {
	return confine.Remove(filepath.Dir(string(f)), filepath.Base(string(f)))
}

// makeVolume makes the folder of a volume, and returns its path.
func (p podFiles) makeVolume(name string) (string, error) {
	if _, err := confine.Element(name); err != nil {
		return "", err
	}
	if err := p.MkdirAll(path.Join(volumesFolder, name), 0o700); err != nil {
		return "", err
	}
	return p.folder.volume(name), nil
}

// writeTo writes a file of a volume.
func (p podFiles) writeTo(volume, file string, content []byte) error {
	name, err := confine.Name(file)
	if err != nil {
		return err
	}
	files, err := p.OpenRoot(path.Join(volumesFolder, volume))
	if err != nil {
		return err
	}
	defer files.Close()
	return folder.WriteFileIn(files, name, content)
}

// ContainerPath returns the path on this machine of a path in a Pod's container, while the
// Pod exists. dir is that of the host's Config.
func ContainerPath(dir string, pod types.UID, path string) string {
	return filepath.Join(layout(dir).pod(string(pod)).root(), filepath.Clean("/"+path))
}

// lockDir locks the folder for this process. The kernel releases the lock when the process
// ends.
func lockDir(dir string) (*os.File, error) {
	lock, err := folder.LockWithRetry(layout(dir).lock())
	if errors.Is(err, folder.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("the host's folder cannot be locked: %w", err)
	}
	return lock, nil
}

// readManifest returns the Pod as an earlier host runner saved it, nil if it did not.
func readManifest(f podFolder) *corev1.Pod {
	content, err := os.ReadFile(f.manifest())
	pod := &corev1.Pod{}
	if err != nil || json.Unmarshal(content, pod) != nil {
		return nil
	}
	return pod
}

// maxMessage limits a termination message, in bytes, as the kubelet does.
const maxMessage = 4096

// readMessage returns the container's termination message, empty if there is none.
func readMessage(f podFolder) string {
	files, err := os.OpenRoot(f.root())
	if err != nil {
		return ""
	}
	defer files.Close()
	file, err := openRegular(files, strings.TrimPrefix(vmpb.TerminationMessagePath, "/"), os.O_RDONLY)
	if err != nil {
		return ""
	}
	defer file.Close()
	content, _ := io.ReadAll(io.LimitReader(file, maxMessage))
	return strings.TrimSpace(messages.Printable(strings.ToValidUTF8(string(content), "?")))
}

// openRegular opens a file that a process may have replaced. A link or a pipe, on which
// opening it would wait, is an error.
func openRegular(files *os.Root, name string, flag int) (*os.File, error) {
	named, err := files.Lstat(name)
	if err != nil {
		return nil, err
	}
	file, err := files.OpenFile(name, flag|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	opened, err := file.Stat()
	if err == nil && !(opened.Mode().IsRegular() && os.SameFile(named, opened)) {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// rotate moves the content of a log over the limit, in bytes, to PATH.1. The process goes on
// writing to the same file, so the content is copied and truncated; what is written between
// the two is lost.
func rotate(path string, limit int64) error {
	files, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer files.Close()
	log, err := openRegular(files, filepath.Base(path), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	if info, err := log.Stat(); err != nil || info.Size() <= limit {
		return err
	}
	if err := copyTail(log, files, filepath.Base(path)+".1", limit); err != nil {
		return err
	}
	return log.Truncate(0)
}

// copyTail copies the last bytes of a file to one that it replaces.
func copyTail(source *os.File, files *os.Root, name string, limit int64) error {
	if _, err := source.Seek(-limit, io.SeekEnd); err != nil {
		return err
	}
	if err := files.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	target, err := files.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(target, source, limit) // the process may write faster
	if err = errors.Join(err, target.Close()); err != nil {
		return errors.Join(err, files.Remove(name)) // a part of it would take the room of others
	}
	return nil
}
