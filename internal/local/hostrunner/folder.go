package hostrunner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/local/folder"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// layout has the paths in a host's folder.
type layout string

func (d layout) pods() string             { return filepath.Join(string(d), "pods") }
func (d layout) pod(uid string) podFolder { return podFolder(filepath.Join(d.pods(), uid)) }
func (d layout) lock() string             { return filepath.Join(string(d), "lock") }

// podFolder is the folder of one Pod.
type podFolder string

func (f podFolder) path(elements ...string) string {
	return filepath.Join(append([]string{string(f)}, elements...)...)
}
func (f podFolder) root() string              { return f.path("root") }
func (f podFolder) volume(name string) string { return f.path("volumes", name) }
func (f podFolder) log() string               { return f.path("log") }
func (f podFolder) manifest() string          { return f.path("pod.json") }
func (f podFolder) process() string           { return f.path("process.json") }

// ContainerPath returns the path on this machine of a path in a Pod's container, while the
// Pod exists. dir is that of the host's Config.
func ContainerPath(dir string, pod types.UID, path string) string {
	return filepath.Join(layout(dir).pod(string(pod)).root(), path)
}

// lockDir locks the folder for this process. The kernel releases the lock when the process
// ends.
func lockDir(dir string) (*os.File, error) {
	lock, err := folder.Lock(layout(dir).lock())
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
	file, err := os.Open(filepath.Join(f.root(), vmpb.TerminationMessagePath))
	if err != nil {
		return ""
	}
	defer file.Close()
	content, _ := io.ReadAll(io.LimitReader(file, maxMessage))
	return strings.ToValidUTF8(string(content), "?")
}

// rotate moves the content of a log over the limit, in bytes, to PATH.1. The process goes on
// writing to the same file, so the content is copied and truncated; what is written between
// the two is lost.
func rotate(path string, limit int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= limit {
		return nil
	}
	if err != nil {
		return err
	}
	if err := copyTail(path, path+".1", limit); err != nil {
		return err
	}
	return os.Truncate(path, 0)
}

// copyTail copies the last bytes of a file.
func copyTail(from, to string, limit int64) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if _, err := source.Seek(-limit, io.SeekEnd); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(target, source, limit) // the process may write faster
	return errors.Join(err, target.Close())
}
