package drain

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// CSIHandle identifies the volumes of CSI drivers by their handles, as many drivers do. Other volumes
// have no ID.
func CSIHandle(_ types.NamespacedName, pv *corev1.PersistentVolume) (id string, pending bool) {
	if pv.Spec.CSI == nil {
		return "", false
	}
	return pv.Spec.CSI.VolumeHandle, false
}
