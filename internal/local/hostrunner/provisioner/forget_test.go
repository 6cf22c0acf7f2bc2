package provisioner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// TestProvisioner_VolumeDeletedByAnotherClient checks that when another client deletes a volume, its directory is kept only while the claim exists,
// even if the cache has not observed the deletion of the claim yet.
func TestProvisioner_VolumeDeletedByAnotherClient(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "vms", Name: "disk", UID: "1f9e"}}
	successor := claim.DeepCopy()
	successor.UID = "77aa"
	for name, tc := range map[string]struct {
		cached, stored *corev1.PersistentVolumeClaim
		stays          bool
	}{
		"the claim exists":           {claim, claim, true},
		"its deletion is not seen":   {claim, nil, false},
		"its successor is not seen":  {claim, successor, false},
		"it is gone":                 {nil, nil, false},
		"another one has taken over": {successor, successor, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			files, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { files.Close() })
			known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			if tc.cached != nil {
				if err := known.Add(tc.cached); err != nil {
					t.Fatal(err)
				}
			}
			var objects []runtime.Object
			if tc.stored != nil {
				objects = append(objects, tc.stored)
			}
			w := &worker{
				Provisioner: Provisioner{Client: fake.NewClientset(objects...), Dir: dir, Class: "local", Log: testr.New(t)},
				files:       files, claims: listers.NewPersistentVolumeClaimLister(known),
			}
			if err := w.makeDir(string(claim.UID)); err != nil {
				t.Fatal(err)
			}
			volume := w.volume(claim, filepath.Join(dir, string(claim.UID)))
			volume.Status.Phase = corev1.VolumeReleased
			w.forget(t.Context(), volume)
			if _, err := os.Stat(volume.Spec.HostPath.Path); errors.Is(err, fs.ErrNotExist) == tc.stays {
				t.Errorf("the directory is there: %v, want %v", err == nil, tc.stays)
			}
		})
	}
}
