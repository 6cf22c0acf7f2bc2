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
	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// layout has the paths in a host's directory.
type layout string

func (d layout) pods() string { return filepath.Join(string(d), "pods") }
func (d layout) lock() string { return filepath.Join(string(d), "lock") }

// pod returns the directory of a Pod. The API server generates UIDs; a UID that is not a valid name is
// converted to one.
func (d layout) pod(uid string) podDir {
	name, err := confine.Element(uid)
	if err != nil {
		name = fmt.Sprintf("invalid-%x", uid)
	}
	return podDir(filepath.Join(d.pods(), name))
}

// Subdirectories of a Pod's directory.
const (
	rootDir    = "root"
	volumesDir = "volumes"
)

// podDir is the directory of one Pod.
type podDir string

func (f podDir) path(elements ...string) string {
	return filepath.Join(append([]string{string(f)}, elements...)...)
}
func (f podDir) root() string              { return f.path(rootDir) }
func (f podDir) volume(name string) string { return f.path(volumesDir, name) }
func (f podDir) log() string               { return f.path("log") }
func (f podDir) manifest() string          { return f.path("pod.json") }
func (f podDir) process() string           { return f.path("process.json") }

// podFiles opens files below a Pod's directory. Neither names nor links, which the process may have created
// there, can lead outside.
type podFiles struct {
	*os.Root
	dir podDir
}

// create opens the directory, which it creates if necessary.
func (f podDir) create() (podFiles, error) {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return podFiles{}, err
	}
	return f.open()
}

func (f podDir) open() (podFiles, error) {
	root, err := os.OpenRoot(string(f))
	return podFiles{root, f}, err
}

// remove removes the directory with everything in it.
func (f podDir) remove() error {
	return confine.Remove(filepath.Dir(string(f)), filepath.Base(string(f)))
}

// makeVolume creates the directory of a volume and returns its path.
func (p podFiles) makeVolume(name string) (string, error) {
	if _, err := confine.Element(name); err != nil {
		return "", err
	}
	if err := p.MkdirAll(path.Join(volumesDir, name), 0o700); err != nil {
		return "", err
	}
	return p.dir.volume(name), nil
}

// writeTo writes a file into a volume.
func (p podFiles) writeTo(volume, file string, content []byte) error {
	name, err := confine.Name(file)
	if err != nil {
		return err
	}
	files, err := p.OpenRoot(path.Join(volumesDir, volume))
	if err != nil {
		return err
	}
	defer files.Close()
	return directory.WriteFileIn(files, name, content)
}

// ContainerPath returns the path on this machine of a path in a Pod's container, while the Pod exists. dir is
// the host's Config.Dir.
func ContainerPath(dir string, pod types.UID, path string) string {
	return filepath.Join(layout(dir).pod(string(pod)).root(), filepath.Clean("/"+path))
}

// lockDir locks the directory for this process. The kernel releases the lock when the process exits.
func lockDir(dir string) (*os.File, error) {
	lock, err := directory.LockWithRetry(layout(dir).lock())
	if errors.Is(err, directory.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the host's directory: %w", err)
	}
	return lock, nil
}

// readManifest returns the Pod as an earlier host runner saved it, or nil.
func readManifest(f podDir) *corev1.Pod {
	content, err := os.ReadFile(f.manifest())
	pod := &corev1.Pod{}
	if err != nil || json.Unmarshal(content, pod) != nil {
		return nil
	}
	return pod
}

// maxMessage limits a termination message, in bytes, as the kubelet does.
const maxMessage = 4096

// readMessage returns the container's termination message, or "" if there is none.
func readMessage(f podDir) string {
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
	return strings.TrimSpace(messages.ToPrintable(strings.ToValidUTF8(string(content), "?")))
}

// openRegular opens a file that a process may have replaced. A link is an error, and so is a pipe, for which an
// open would block.
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

// rotate moves the content of a log that exceeds the limit, in bytes, to PATH.1. The process continues to write
// to the same file, so the content is copied and then truncated; output in between is lost.
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

// copyTail copies the last bytes of a file to another file, which it replaces.
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
		return errors.Join(err, files.Remove(name)) // a partial copy would only use disk space
	}
	return nil
}
