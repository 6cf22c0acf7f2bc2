package vm_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm"
)

// TestGetVolumeIDs returns the handles of CSI volumes, leaves out others, and returns an error if the context is
// done.
func TestGetVolumeIDs(t *testing.T) {
	t.Parallel()
	csi := func(handle string) *corev1.PersistentVolumeSpec {
		source := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: handle}}
		return &corev1.PersistentVolumeSpec{PersistentVolumeSource: source}
	}
	local := &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a"}}}
	req := &driver.GetVolumeIDsRequest{PVSpecs: []*corev1.PersistentVolumeSpec{csi("b"), local, nil, csi(""), csi("a[0]")}}
	d := vm.New(vm.Options{})
	resp, err := d.GetVolumeIDs(t.Context(), req)
	if err != nil || !cmp.Equal(resp.VolumeIDs, []string{"b", "a[0]"}) {
		t.Errorf("got %+v, %v", resp, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if resp, err := d.GetVolumeIDs(ctx, req); resp != nil || !status.Is(err, codes.Canceled) {
		t.Errorf("with a canceled context: got %+v, %v", resp, err)
	}
}
