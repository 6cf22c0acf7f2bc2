package hostrunner

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/confine"
	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/internal/loop"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// prepareVolumes creates the volumes of the Pod and the links to them. It may be repeated until the process is
// started.
func (w *worker) prepareVolumes(ctx context.Context) error {
	files, err := w.dir.create()
	if err != nil {
		return err
	}
	defer files.Close()
	paths := map[string]string{}
	for i := range w.pod.Spec.Volumes {
		volume := &w.pod.Spec.Volumes[i]
		path, err := w.prepareVolume(ctx, files, volume)
		if err != nil {
			return fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		paths[volume.Name] = path
	}
	if err := w.issueTokens(ctx); err != nil {
		return err
	}
	return files.layOut(&w.pod.Spec.Containers[0], paths)
}

// prepareVolume returns the directory of a volume, or its device.
func (w *worker) prepareVolume(ctx context.Context, files podFiles, volume *corev1.Volume) (string, error) {
	if claim := volume.PersistentVolumeClaim; claim != nil {
		claimed, err := w.claimed(ctx, claim.ClaimName)
		if err != nil {
			return "", err
		}
		isDevice := slices.ContainsFunc(w.pod.Spec.Containers[0].VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume.Name })
		switch {
		case isDevice != isBlock(claimed):
			return "", fmt.Errorf("volume %s has volumeMode %s, which does not match the container", claimed.Name, ptr.Deref(claimed.Spec.VolumeMode, corev1.PersistentVolumeFilesystem))
		case isDevice:
			return deviceOf(claimed, w.VolumesDir)
		}
		return dirOf(claimed, w.VolumesDir)
	}
	path, err := files.makeVolume(volume.Name)
	if err != nil {
		return "", err
	}
	if volume.Secret != nil {
		return path, w.writeSecret(ctx, files, volume)
	}
	return path, nil
}

// isBlock reports whether a volume is for a block device.
func isBlock(volume *corev1.PersistentVolume) bool {
	return ptr.Deref(volume.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
}

// claimed returns the volume that is bound to a claim.
func (w *worker) claimed(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	claim, err := w.client.CoreV1().PersistentVolumeClaims(w.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return nil, fmt.Errorf("claim %s is not bound", name)
	}
	volume, err := w.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if ref := volume.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		return nil, fmt.Errorf("volume %s is not bound to claim %s", volume.Name, name)
	}
	return volume, nil
}

// dirOf returns the directory of a volume, without symbolic links. It must be below limit unless limit is
// empty.
func dirOf(volume *corev1.PersistentVolume, limit string) (string, error) {
	return realDir(openVolume(volume, limit, openDir))
}

// deviceOf returns the device of a volume: a block device, or a loop device to which the volume's file is
// attached.
func deviceOf(volume *corev1.PersistentVolume, limit string) (string, error) {
	file, err := openVolume(volume, limit, os.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", err
	case info.Mode().IsRegular():
		return loop.Attach(file)
	case info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0:
		return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	}
	return "", fmt.Errorf("volume %s is neither a file nor a block device", volume.Name)
}

// openVolume opens the file or directory of a volume on this machine.
func openVolume(volume *corev1.PersistentVolume, limit string, flags int) (*os.File, error) {
	var path string
	switch source := volume.Spec.PersistentVolumeSource; {
	case source.HostPath != nil:
		path = source.HostPath.Path
	case source.Local != nil:
		path = source.Local.Path
	default:
		return nil, fmt.Errorf("volume %s is not on this machine", volume.Name)
	}
	name, err := confine.Below(cmp.Or(limit, "/"), path)
	if err != nil {
		return nil, fmt.Errorf("volume %s is not below the directory for volumes", volume.Name)
	}
	if limit == "" {
		return os.OpenFile(path, flags, 0)
	}
	files, err := os.OpenRoot(limit)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	return files.OpenFile(name, flags, 0)
}

// openDir opens only directories.
const openDir = os.O_RDONLY | unix.O_DIRECTORY

// realDir returns the path of an open directory, without symbolic links, and closes it.
func realDir(opened *os.File, err error) (string, error) {
	if err != nil {
		return "", err
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", opened.Fd()))
	return path, errors.Join(err, opened.Close())
}

// writeSecret writes the keys that the volume names, or all keys, one file each.
func (w *worker) writeSecret(ctx context.Context, files podFiles, volume *corev1.Volume) error {
	source := volume.Secret
	optional := ptr.Deref(source.Optional, false)
	secret, err := w.client.CoreV1().Secrets(w.pod.Namespace).Get(ctx, source.SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	items := source.Items
	if len(items) == 0 {
		for key := range secret.Data {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		content, ok := secret.Data[item.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return fmt.Errorf("secret %s has no key %s", source.SecretName, item.Key)
		}
		if err := files.writeTo(volume.Name, item.Path, content); err != nil {
			return err
		}
	}
	return nil
}

// layOut creates the container's mount paths in its root directory, as links to the volumes, its device nodes,
// and the file for its termination message.
func (p podFiles) layOut(c *corev1.Container, volumes map[string]string) error {
	if err := p.MkdirAll(rootDir, 0o700); err != nil {
		return err
	}
	root, err := p.OpenRoot(rootDir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, mount := range c.VolumeMounts {
		target, ok := volumes[mount.Name]
		if !ok {
			return fmt.Errorf("no volume %s for mount %s", mount.Name, mount.MountPath)
		}
		if err := linkIn(root, mount.MountPath, target); err != nil {
			return fmt.Errorf("mount %s: %w", mount.MountPath, err)
		}
	}
	for _, device := range c.VolumeDevices {
		if err := makeNode(root, device.DevicePath, volumes[device.Name]); err != nil {
			return fmt.Errorf("device %s: %w", device.DevicePath, err)
		}
	}
	// Disk space for the message is reserved, so that a process that exits because the disk is full can report
	// it.
	return directory.WriteFileIn(root, strings.TrimPrefix(vmpb.TerminationMessagePath, "/"), bytes.Repeat([]byte(" "), maxMessage))
}

// linkIn creates a link to target.
func linkIn(root *os.Root, link, target string) error {
	name, err := clearPath(root, link)
	if err != nil {
		return err
	}
	return root.Symlink(target, name)
}

// makeNode creates a device node, as in a container: a separate one, so that a link cannot lead to another
// device.
func makeNode(root *os.Root, node, device string) error {
	name, err := clearPath(root, node)
	if err != nil {
		return err
	}
	var info unix.Stat_t
	if err := unix.Stat(device, &info); err != nil {
		return fmt.Errorf("inspecting %q: %w", device, err)
	}
	if info.Mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("%s is not a block device", device)
	}
	parent, err := root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer parent.Close()
	return os.NewSyscallError("mknod", unix.Mknodat(int(parent.Fd()), path.Base(name), unix.S_IFBLK|0o600, int(info.Rdev)))
}

// clearPath creates the parent directories of a path in the root, removes what is at the path, and returns its
// name.
func clearPath(root *os.Root, at string) (name string, err error) {
	if name, err = confine.Name(at); err != nil {
		return "", err
	}
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return "", err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // from an earlier attempt
		return "", err
	}
	return name, nil
}

// issueTokens writes new tokens into the Pod's projected volumes, and sets when they must be renewed: after
// four fifths of the shortest lifetime.
func (w *worker) issueTokens(ctx context.Context) error {
	files, err := w.dir.open()
	if err != nil {
		return err
	}
	defer files.Close()
	var renew time.Time
	for i := range w.pod.Spec.Volumes {
		volume := &w.pod.Spec.Volumes[i]
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			next, err := w.issueToken(ctx, files, volume.Name, source.ServiceAccountToken)
			if err != nil {
				return fmt.Errorf("volume %s: %w", volume.Name, err)
			}
			if renew.IsZero() || next.Before(renew) {
				renew = next
			}
		}
	}
	w.renew = renew
	return nil
}

func (w *worker) issueToken(ctx context.Context, files podFiles, volume string, source *corev1.ServiceAccountTokenProjection) (renew time.Time, err error) {
	pod := w.pod
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		// A token that is bound to the Pod becomes invalid with it.
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	now := w.Clock.Now()
	response, err := w.client.CoreV1().ServiceAccounts(pod.Namespace).
		CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("requesting a token of service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	lifetime := response.Status.ExpirationTimestamp.Sub(now)
	return now.Add(lifetime / 5 * 4), files.writeTo(volume, source.Path, []byte(response.Status.Token))
}
