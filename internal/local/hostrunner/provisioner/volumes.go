package provisioner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

const (
	reasonFailed = "ProvisioningFailed"
	reasonDone   = "ProvisioningSucceeded"

	// removedSuffix marks the folder of a volume that is being removed, so that a removal
	// that was interrupted is finished later.
	removedSuffix = ".removed"
)

// provision makes the volume of a claim that waits for one.
func (w *worker) provision(ctx context.Context, name item) error {
	claim, err := w.claims.PersistentVolumeClaims(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !w.wanted(claim) {
		return err
	}
	problem, err := w.problem(claim)
	if err != nil {
		return err
	}
	if problem != "" {
		w.events.Event(claim, corev1.EventTypeWarning, reasonFailed, problem)
		return nil // only another claim, or an edit of this one, would help
	}
	dir := filepath.Join(w.Dir, string(claim.UID))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the folder of the volume: %w", err)
	}
	volume := w.volume(claim, dir)
	_, err = w.Client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // made by an earlier pass
	}
	if err != nil {
		return fmt.Errorf("creating PersistentVolume %s: %w", volume.Name, err)
	}
	w.Log.Info("made a volume", "claim", name.String(), "volume", volume.Name)
	w.events.Event(claim, corev1.EventTypeNormal, reasonDone, "made volume "+volume.Name)
	return nil
}

// wanted reports whether the claim is one of ours that has no volume.
func (w *worker) wanted(claim *corev1.PersistentVolumeClaim) bool {
	return ptr.Deref(claim.Spec.StorageClassName, "") == w.Class &&
		claim.Spec.VolumeName == "" &&
		claim.Status.Phase != corev1.ClaimBound &&
		claim.DeletionTimestamp.IsZero()
}

// problem says what of the claim cannot be had here, "" if all can.
func (w *worker) problem(claim *corev1.PersistentVolumeClaim) (string, error) {
	switch {
	case ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) != corev1.PersistentVolumeFilesystem:
		return "volumes are folders here: volumeMode Block is not supported", nil
	case claim.Spec.Selector != nil:
		return "volumes are made for their claim here: a selector is not supported", nil
	case claim.Spec.DataSource != nil, claim.Spec.DataSourceRef != nil:
		return "volumes begin empty here: a data source is not supported", nil
	}
	var files unix.Statfs_t
	if err := unix.Statfs(w.Dir, &files); err != nil {
		return "", fmt.Errorf("measuring the file system of %s: %w", w.Dir, err)
	}
	// Disks are sparse and share the file system, so that what is free now says little.
	size, total := claim.Spec.Resources.Requests[corev1.ResourceStorage], int64(files.Blocks)*files.Bsize
	if size.CmpInt64(total) > 0 {
		return fmt.Sprintf("the claim wants %s, the whole file system has %d bytes", size.String(), total), nil
	}
	return "", nil
}

func (w *worker) volume(claim *corev1.PersistentVolumeClaim, dir string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        volumeName(claim.UID),
			Annotations: map[string]string{annotationProvisionedBy: Name},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage],
			},
			AccessModes: claim.Spec.AccessModes,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              w.Class,
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: ptr.To(corev1.HostPathDirectory)},
			},
		},
	}
}

func volumeName(claim types.UID) string { return "pvc-" + string(claim) }

// reclaim removes a volume whose claim is gone.
func (w *worker) reclaim(ctx context.Context, name item) error {
	volume, err := w.volumes.Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !w.ours(volume) || volume.Status.Phase != corev1.VolumeReleased {
		return err
	}
	if err := w.remove(volume); err != nil {
		return err
	}
	precondition := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(volume.UID))}
	err = w.Client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, precondition)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting PersistentVolume %s: %w", volume.Name, err)
	}
	w.Log.Info("removed a volume", "volume", volume.Name)
	return nil
}

// forget removes the folder of a volume that somebody else deleted after its claim
// was gone.
func (w *worker) forget(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	volume, ok := object.(*corev1.PersistentVolume)
	if !ok || !w.ours(volume) || volume.Status.Phase == corev1.VolumeBound && volume.DeletionTimestamp.IsZero() {
		return
	}
	ref := volume.Spec.ClaimRef
	claim, err := w.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err == nil && claim.UID == ref.UID {
		return // whoever has the claim may want the data
	}
	if err := w.remove(volume); err != nil {
		w.Log.Error(err, "the folder of a deleted volume stays", "volume", volume.Name)
	}
}

// ours reports whether the volume was made here and is to be removed with its claim.
func (w *worker) ours(volume *corev1.PersistentVolume) bool {
	return volume.Annotations[annotationProvisionedBy] == Name &&
		volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		volume.Spec.HostPath != nil && volume.Spec.ClaimRef != nil &&
		// Never a folder that somebody wrote into a volume with our name on it.
		volume.Spec.HostPath.Path == filepath.Join(w.Dir, strings.TrimPrefix(volume.Name, "pvc-")) &&
		volume.Name == volumeName(volume.Spec.ClaimRef.UID)
}

// remove removes the volume's folder, in two steps: see removedSuffix.
func (w *worker) remove(volume *corev1.PersistentVolume) error {
	dir := volume.Spec.HostPath.Path
	if err := os.Rename(dir, dir+removedSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the folder of %s: %w", volume.Name, err)
	}
	if err := os.RemoveAll(dir + removedSuffix); err != nil {
		return fmt.Errorf("removing the folder of %s: %w", volume.Name, err)
	}
	return nil
}

// sweep finishes what was cut short: removals, and folders that were made for a claim
// that then went away. Any other folder stays even if no volume is known for it: an API
// server whose data was lost must not cost the disks too.
func (w *worker) sweep() error {
	entries, err := os.ReadDir(w.Dir)
	if err != nil {
		return fmt.Errorf("reading the folder of volumes: %w", err)
	}
	var problems []error
	for _, entry := range entries {
		path := filepath.Join(w.Dir, entry.Name())
		if !entry.IsDir() {
			continue
		}
		if strings.HasSuffix(path, removedSuffix) {
			problems = append(problems, os.RemoveAll(path))
			continue
		}
		_, err := w.volumes.Get(volumeName(types.UID(entry.Name())))
		if apierrors.IsNotFound(err) {
			os.Remove(path) // removes nothing that has a content
		}
	}
	return errors.Join(problems...)
}
