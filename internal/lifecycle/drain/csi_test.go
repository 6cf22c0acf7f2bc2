package drain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// CSIHandle identifies the volumes of CSI drivers by their handles, as many drivers do. It returns no ID for
// other volumes.
func CSIHandle(_ context.Context, _ types.NamespacedName, pv *corev1.PersistentVolume) (id string, pending bool, err error) {
	if pv.Spec.CSI == nil {
		return "", false, nil
	}
	return pv.Spec.CSI.VolumeHandle, false, nil
}
