package hostrunner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/local/folder"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// volumes makes what a Pod's mounts lead to. All its work may be done again at any time
// before the process is started.
type volumes struct {
	client kubernetes.Interface
	clock  clock.PassiveClock
	// limit is the folder below which persistent volumes must lie, "" for anywhere.
	limit string
}

// notReadyError means that something a volume needs is not there, or not yet.
type notReadyError struct {
	volume string
	err    error
}

func (e *notReadyError) Error() string { return fmt.Sprintf("volume %s: %v", e.volume, e.err) }
func (e *notReadyError) Unwrap() error { return e.err }

// prepare makes all volumes of the Pod and lays out its root. It returns when the
// Pod's tokens have to be renewed, zero if it has none.
func (v volumes) prepare(ctx context.Context, pod *corev1.Pod, f podFolder) (time.Time, error) {
	paths := map[string]string{}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		path, err := v.make(ctx, pod, volume, f)
		if err != nil {
			return time.Time{}, &notReadyError{volume: volume.Name, err: err}
		}
		paths[volume.Name] = path
	}
	renew, err := v.renewTokens(ctx, pod, f)
	if err != nil {
		return time.Time{}, err
	}
	return renew, layOut(&pod.Spec.Containers[0], f.root(), paths)
}

// make returns the folder of one volume.
func (v volumes) make(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, f podFolder) (string, error) {
	if claim := volume.PersistentVolumeClaim; claim != nil {
		return v.claimed(ctx, pod.Namespace, claim.ClaimName)
	}
	path := f.volume(volume.Name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", err
	}
	if secret := volume.Secret; secret != nil {
		return path, v.writeSecret(ctx, pod.Namespace, secret, path)
	}
	return path, nil
}

// claimed returns the folder of the volume that is bound to a claim.
func (v volumes) claimed(ctx context.Context, namespace, name string) (string, error) {
	claim, err := v.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return "", fmt.Errorf("claim %s is not bound", name)
	}
	volume, err := v.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if ref := volume.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		return "", fmt.Errorf("volume %s is bound to another claim than %s", volume.Name, name)
	}
	return v.folderOf(volume)
}

func (v volumes) folderOf(volume *corev1.PersistentVolume) (string, error) {
	var path string
	switch source := volume.Spec.PersistentVolumeSource; {
	case ptr.Deref(volume.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) != corev1.PersistentVolumeFilesystem:
		return "", fmt.Errorf("volume %s is a block volume", volume.Name)
	case source.HostPath != nil:
		path = source.HostPath.Path
	case source.Local != nil:
		path = source.Local.Path
	default:
		return "", fmt.Errorf("volume %s is not a folder of this machine", volume.Name)
	}
	if !filepath.IsAbs(path) || v.limit != "" && !within(path, v.limit) {
		return "", fmt.Errorf("the folder of volume %s is not where volumes may lie", volume.Name)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("volume %s is not a folder", volume.Name)
	}
	return path, nil
}

// writeSecret writes the keys that the volume names, or all, one file each.
func (v volumes) writeSecret(ctx context.Context, namespace string, source *corev1.SecretVolumeSource, dir string) error {
	optional := ptr.Deref(source.Optional, false)
	secret, err := v.client.CoreV1().Secrets(namespace).Get(ctx, source.SecretName, metav1.GetOptions{})
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
		if err := folder.WriteFile(filepath.Join(dir, item.Path), content); err != nil {
			return err
		}
	}
	return nil
}

// layOut makes the container's mount paths below root, as links to the volumes, and the
// file for its termination message.
func layOut(c *corev1.Container, root string, volumes map[string]string) error {
	for _, mount := range c.VolumeMounts {
		target, ok := volumes[mount.Name]
		if !ok {
			return fmt.Errorf("there is no volume %s for mount %s", mount.Name, mount.MountPath)
		}
		link := filepath.Join(root, mount.MountPath)
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			return err
		}
		if err := os.Symlink(target, link); errors.Is(err, fs.ErrExist) {
			err = errors.Join(os.Remove(link), os.Symlink(target, link)) // an earlier attempt's
			if err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return folder.WriteFile(filepath.Join(root, vmpb.TerminationMessagePath), nil)
}
