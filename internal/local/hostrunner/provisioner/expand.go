package provisioner

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const reasonResizeFailed = "VolumeResizeFailed"

// expand records that a volume has the size that its claim requests: a directory has no size of its own. A
// device is enlarged.
func (w *worker) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	size := *claim.Spec.Resources.Requests.Storage()
	if ptr.Deref(claim.Spec.StorageClassName, "") != w.Class || claim.Status.Phase != corev1.ClaimBound || size.Cmp(*claim.Status.Capacity.Storage()) <= 0 {
		return nil
	}
	volume, err := w.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && !w.ours(volume) {
		return nil
	}
	if err != nil {
		return err
	}
	unsupported, err := w.unsupported(claim)
	if err != nil {
		return err
	}
	if unsupported != "" {
		w.events.Event(claim, corev1.EventTypeWarning, reasonResizeFailed, unsupported)
		return nil
	}
	if isBlock(volume.Spec.VolumeMode) {
		if err := w.growDevice(dirOf(volume), size.Value()); err != nil {
			return err
		}
	}
	if err := w.writeSize(ctx, claim, volume, size); err != nil {
		return err
	}
	w.Log.Info("enlarged a volume", "claim", claim.Namespace+"/"+claim.Name, "size", size.String())
	return nil
}

// writeSize writes a size into a volume and its claim.
func (w *worker) writeSize(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume, size resource.Quantity) error {
	capacity := corev1.ResourceList{corev1.ResourceStorage: size}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"capacity": capacity}})
	if err == nil {
		_, err = w.Client.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("enlarging volume %s: %w", volume.Name, err)
	}
	if patch, err = json.Marshal(map[string]any{"status": map[string]any{"capacity": capacity}}); err == nil {
		_, err = w.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("enlarging claim %s: %w", claim.Name, err)
	}
	return nil
}
