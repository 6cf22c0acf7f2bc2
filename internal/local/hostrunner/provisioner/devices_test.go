package provisioner

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/loop"
)

func block(spec *corev1.PersistentVolumeClaimSpec) {
	spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
}

// attached returns the devices whose files are below a directory.
func attached(t *testing.T, dir string) (devices []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if content, _ := os.ReadFile(file); strings.HasPrefix(string(content), dir) {
			devices = append(devices, strings.Split(file, "/")[3])
		}
	}
	return devices
}

// TestProvisioner_BlockVolume checks that a claim with volumeMode Block gets a file that a host attaches to a device. Both
// grow with the claim, and both are removed with it.
func TestProvisioner_BlockVolume(t *testing.T) {
	if err := loop.Available(); err != nil {
		t.Skip(err)
	}
	b := newTestProvisioner(t)
	b.start()
	b.claim("disk", block)
	volume := b.awaitBound("disk")
	if *volume.Spec.VolumeMode != corev1.PersistentVolumeBlock || *volume.Spec.HostPath.Type != corev1.HostPathFile {
		t.Errorf("the volume is %+v", volume.Spec)
	}
	file, err := os.OpenFile(volume.Spec.HostPath.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	device, err := loop.Attach(file)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	size := func() (bool, any) {
		at, err := os.Open(device)
		if err != nil {
			return false, err
		}
		defer at.Close()
		end, err := at.Seek(0, io.SeekEnd)
		return err == nil && end == 2<<30, end
	}
	patch := []byte(`{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	if _, err := b.Client.CoreV1().PersistentVolumeClaims(b.Namespace).Patch(t.Context(), "disk", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("the size of the claim", func() (bool, any) {
		claim, err := b.Client.CoreV1().PersistentVolumeClaims(b.Namespace).Get(t.Context(), "disk", metav1.GetOptions{})
		return err == nil && claim.Status.Capacity.Storage().String() == "2Gi", claim
	})
	if grown, state := size(); !grown { // before the claim reports it
		t.Errorf("the device has %v", state)
	}
	b.delete("disk")
	b.awaitGone(volume)
	b.requireEmpty()
	if left := attached(t, b.Dir); len(left) > 0 {
		t.Errorf("%v are still attached", left)
	}
}

// TestProvisioner_CompletesRemovalOfBlockVolume checks that an interrupted removal is completed, including that of the device.
func TestProvisioner_CompletesRemovalOfBlockVolume(t *testing.T) {
	if err := loop.Available(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	files, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	w := &worker{Provisioner: Provisioner{Dir: dir}, files: files}
	if err := errors.Join(w.makeDir("old"+removedSuffix), w.makeDevice("old"+removedSuffix, 1<<20)); err != nil {
		t.Fatal(err)
	}
	file, err := w.openDevice("old" + removedSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := loop.Attach(file); errors.Join(err, file.Close()) != nil {
		t.Fatal(err)
	}
	if err := w.sweep(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 || len(attached(t, dir)) > 0 {
		t.Errorf("there are %v, attached to %v (%v)", entries, attached(t, dir), err)
	}
}
