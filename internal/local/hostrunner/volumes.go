package hostrunner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/local/folder"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// prepareVolumes creates the volumes of the Pod and the links to them. It may be repeated
// until the process is started.
func (w *worker) prepareVolumes(ctx context.Context) error {
	paths := map[string]string{}
	for i := range w.pod.Spec.Volumes {
		volume := &w.pod.Spec.Volumes[i]
		path, err := w.prepareVolume(ctx, volume)
		if err != nil {
			return fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		paths[volume.Name] = path
	}
	if err := w.issueTokens(ctx); err != nil {
		return err
	}
	return layOut(&w.pod.Spec.Containers[0], w.folder.root(), paths)
}

// prepareVolume returns the folder of a volume.
func (w *worker) prepareVolume(ctx context.Context, volume *corev1.Volume) (string, error) {
	if claim := volume.PersistentVolumeClaim; claim != nil {
		return w.claimed(ctx, claim.ClaimName)
	}
	path := w.folder.volume(volume.Name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", err
	}
	if secret := volume.Secret; secret != nil {
		return path, w.writeSecret(ctx, secret, path)
	}
	return path, nil
}

// claimed returns the folder of the volume that is bound to a claim.
func (w *worker) claimed(ctx context.Context, name string) (string, error) {
	claim, err := w.client.CoreV1().PersistentVolumeClaims(w.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return "", fmt.Errorf("claim %s is not bound", name)
	}
	volume, err := w.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if ref := volume.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		return "", fmt.Errorf("volume %s is bound to another claim than %s", volume.Name, name)
	}
	return folderOf(volume, w.VolumesDir)
}

// folderOf returns the folder of a volume, which must be below the limit, if there is one.
func folderOf(volume *corev1.PersistentVolume, limit string) (string, error) {
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
	if !filepath.IsAbs(path) || limit != "" && !within(path, limit) {
		return "", fmt.Errorf("the folder of volume %s is not below the folder for volumes", volume.Name)
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
func (w *worker) writeSecret(ctx context.Context, source *corev1.SecretVolumeSource, dir string) error {
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
		if err := folder.WriteFile(filepath.Join(dir, item.Path), content); err != nil {
			return err
		}
	}
	return nil
}

// layOut creates the container's mount paths below root, as links to the volumes, and the
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
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier attempt
			return err
		}
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	return folder.WriteFile(filepath.Join(root, vmpb.TerminationMessagePath), nil)
}

// issueTokens writes new tokens into the Pod's projected volumes, and sets when they are to
// be renewed: after four fifths of the shortest lifetime.
func (w *worker) issueTokens(ctx context.Context) error {
	var renew time.Time
	for i := range w.pod.Spec.Volumes {
		volume := &w.pod.Spec.Volumes[i]
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			next, err := w.issueToken(ctx, source.ServiceAccountToken, w.folder.volume(volume.Name))
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

func (w *worker) issueToken(ctx context.Context, source *corev1.ServiceAccountTokenProjection, dir string) (renew time.Time, err error) {
	pod := w.pod
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		// A token that is bound to the Pod ends with it.
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	now := w.Clock.Now()
	answer, err := w.client.CoreV1().ServiceAccounts(pod.Namespace).
		CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("requesting a token of service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	lifetime := answer.Status.ExpirationTimestamp.Sub(now)
	return now.Add(lifetime / 5 * 4), folder.WriteFile(filepath.Join(dir, source.Path), []byte(answer.Status.Token))
}
