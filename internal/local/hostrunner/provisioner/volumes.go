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

	"github.com/millwright-dev/millwright/internal/confine"
	"github.com/millwright-dev/millwright/internal/loop"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
)

const (
	reasonFailed = "ProvisioningFailed"
	reasonDone   = "ProvisioningSucceeded"

	// removedSuffix marks the directory of a volume that is being removed, so that sweep completes an
	// interrupted removal.
	removedSuffix = ".removed"
)

// provision creates the volume of a claim without one, or enlarges it.
func (w *worker) provision(ctx context.Context, name item) error {
	claim, err := w.claims.PersistentVolumeClaims(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !w.needsVolume(claim) {
		return w.expand(ctx, claim)
	}
	unsupported, err := w.unsupported(claim)
	if err != nil {
		return err
	}
	if unsupported != "" {
		w.events.Event(claim, corev1.EventTypeWarning, reasonFailed, unsupported)
		return nil // a change of the claim causes an event
	}
	if err := w.makeDir(string(claim.UID)); err != nil {
		err = fmt.Errorf("creating the directory of the volume: %w", err)
		w.events.Event(claim, corev1.EventTypeWarning, reasonFailed, err.Error())
		return err
	}
	if isBlock(claim.Spec.VolumeMode) {
		if err := w.makeDevice(string(claim.UID), claim.Spec.Resources.Requests.Storage().Value()); err != nil {
			w.events.Event(claim, corev1.EventTypeWarning, reasonFailed, err.Error())
			return err
		}
	}
	volume := w.volume(claim, filepath.Join(w.Dir, string(claim.UID)))
	_, err = w.Client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if apierror.Taken(err) {
		return nil // by an earlier attempt
	}
	if err != nil {
		return fmt.Errorf("creating PersistentVolume %s: %w", volume.Name, err)
	}
	w.Log.Info("created a volume", "claim", name.String(), "volume", volume.Name)
	w.events.Event(claim, corev1.EventTypeNormal, reasonDone, "created volume "+volume.Name)
	return nil
}

// makeDir creates a directory in the directory of all volumes, unless it exists. A symbolic link is an error:
// it might lead to any directory of the machine.
func (w *worker) makeDir(name string) error {
	if _, err := confine.Element(name); err != nil {
		return err
	}
	err := w.files.Mkdir(name, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := w.files.Lstat(name)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s exists and is not a directory", name)
	}
	return err
}

// needsVolume reports whether the claim is of this class and needs a volume.
func (w *worker) needsVolume(claim *corev1.PersistentVolumeClaim) bool {
	return ptr.Deref(claim.Spec.StorageClassName, "") == w.Class &&
		claim.Spec.VolumeName == "" &&
		claim.Status.Phase != corev1.ClaimBound &&
		claim.DeletionTimestamp.IsZero()
}

// unsupported returns what is not supported in the claim, or "".
func (w *worker) unsupported(claim *corev1.PersistentVolumeClaim) (string, error) {
	switch {
	case isBlock(claim.Spec.VolumeMode) && loop.Available() != nil:
		return "volumeMode Block is not supported here: " + loop.Available().Error(), nil
	case claim.Spec.Selector != nil:
		return "a selector is not supported: volumes are created for their claim", nil
	case claim.Spec.DataSource != nil, claim.Spec.DataSourceRef != nil:
		return "a data source is not supported: volumes are created empty", nil
	}
	var files unix.Statfs_t
	if err := unix.Statfs(w.Dir, &files); err != nil {
		return "", fmt.Errorf("reading the size of the file system of %s: %w", w.Dir, err)
	}
	// Disks are sparse and share the file system, so the free space is not meaningful.
	size, total := claim.Spec.Resources.Requests[corev1.ResourceStorage], int64(files.Blocks)*files.Bsize
	if size.CmpInt64(total) > 0 {
		return fmt.Sprintf("the claim requests %s, but the file system has only %d bytes", size.String(), total), nil
	}
	return "", nil
}

func (w *worker) volume(claim *corev1.PersistentVolumeClaim, dir string) *corev1.PersistentVolume {
	mode, path, kind := corev1.PersistentVolumeFilesystem, dir, corev1.HostPathDirectory
	if isBlock(claim.Spec.VolumeMode) {
		mode, path, kind = corev1.PersistentVolumeBlock, filepath.Join(dir, deviceFile), corev1.HostPathFile
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        volumeName(claim.UID),
			Annotations: map[string]string{annotationProvisionedBy: Name},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              w.Class,
			VolumeMode:                    &mode,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind},
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
	if err != nil && !apierror.Gone(err) && !apierror.Conflict(err) {
		return fmt.Errorf("deleting PersistentVolume %s: %w", volume.Name, err)
	}
	w.Log.Info("removed a volume", "volume", volume.Name)
	return nil
}

// forget removes the directory of a volume that another client deleted after its claim.
func (w *worker) forget(ctx context.Context, object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	volume, ok := object.(*corev1.PersistentVolume)
	if !ok || !w.ours(volume) || volume.Status.Phase == corev1.VolumeBound && volume.DeletionTimestamp.IsZero() {
		return
	}
	claimed, err := w.claimed(ctx, volume.Spec.ClaimRef)
	if err == nil && !claimed {
		err = w.remove(volume)
	}
	if err != nil {
		w.Log.Error(err, "removing the directory of a deleted volume", "volume", volume.Name)
	}
}

// claimed reports whether a claim exists that needs the data. The cache of claims may be older than that of
// volumes, so it is trusted only for claims that are gone.
func (w *worker) claimed(ctx context.Context, ref *corev1.ObjectReference) (bool, error) {
	claim, err := w.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err == nil && claim.UID == ref.UID {
		claim, err = w.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && claim.UID == ref.UID, err
}

// ours reports whether the provisioner created the volume and deletes it with its claim.
func (w *worker) ours(volume *corev1.PersistentVolume) bool {
	_, err := confine.Element(dirOf(volume))
	return err == nil && volume.Annotations[annotationProvisionedBy] == Name &&
		volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		volume.Spec.HostPath != nil && volume.Spec.ClaimRef != nil &&
		// This must never be another path, which a user may have written into the volume.
		volume.Spec.HostPath.Path == w.path(volume) &&
		volume.Name == volumeName(volume.Spec.ClaimRef.UID)
}

// dirOf returns the name of the directory of a volume.
func dirOf(volume *corev1.PersistentVolume) string {
	return strings.TrimPrefix(volume.Name, "pvc-")
}

// path returns the path of a volume: its directory, or the file that backs its device.
func (w *worker) path(volume *corev1.PersistentVolume) string {
	path := filepath.Join(w.Dir, dirOf(volume))
	if isBlock(volume.Spec.VolumeMode) {
		path = filepath.Join(path, deviceFile)
	}
	return path
}

// remove removes the volume's directory in two steps; see removedSuffix.
func (w *worker) remove(volume *corev1.PersistentVolume) error {
	name := dirOf(volume)
	if err := w.files.Rename(name, name+removedSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the directory of %s: %w", volume.Name, err)
	}
	if err := w.destroy(name + removedSuffix); err != nil {
		return fmt.Errorf("removing the directory of %s: %w", volume.Name, err)
	}
	return nil
}

// sweep completes interrupted removals, and removes empty directories without a volume. Other directories
// without a volume are kept: if the API server lost its data, the disks must not be lost as well.
func (w *worker) sweep() error {
	entries, err := os.ReadDir(w.Dir)
	if err != nil {
		return fmt.Errorf("reading the directory of volumes: %w", err)
	}
	var problems []error
	for _, entry := range entries {
		name := entry.Name()
		if !entry.IsDir() {
			continue
		}
		if strings.HasSuffix(name, removedSuffix) {
			problems = append(problems, w.destroy(name))
			continue
		}
		_, err := w.volumes.Get(volumeName(types.UID(name)))
		if apierrors.IsNotFound(err) {
			w.files.Remove(name) // fails if it is not empty
		}
	}
	return errors.Join(problems...)
}
