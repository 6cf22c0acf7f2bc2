package hostrunner

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

const patchType = types.StrategicMergePatchType

// statusPatch returns the patch that gives the Pod the status, nil if it has it. It does
// nothing to a later Pod of the same name.
func statusPatch(pod *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	// With the UID on one side only it becomes part of the patch.
	old := &corev1.Pod{Status: pod.Status}
	same, err := differences(old, &corev1.Pod{Status: status}, corev1.Pod{})
	if err != nil || same == nil {
		return nil, err
	}
	return differences(old, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: status}, corev1.Pod{})
}

// differences returns the strategic merge patch from one object to another of the given
// kind, nil if there is no difference.
func differences(from, to, kind any) ([]byte, error) {
	old, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	new, err := json.Marshal(to)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, new, kind)
	if err != nil {
		return nil, fmt.Errorf("comparing: %w", err)
	}
	if string(patch) == "{}" {
		return nil, nil
	}
	return patch, nil
}
