package provisioner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/test/support/absurd"
)

// FuzzVolumes checks that nothing is created or removed outside the directory of volumes, or in the directory of
// another claim, whatever claims and volumes contain.
func FuzzVolumes(f *testing.F) {
	for _, uid := range []string{"", ".", "..", "../..", "a/b", "/", "1f9e", "theirs", "theirs/disk.img", "1f9e" + removedSuffix, "\x00"} {
		f.Add(uid, "pvc-"+uid, "VOLUMES/"+uid, []byte(nil), []byte(nil))
		f.Add(uid, "pvc-theirs", "VOLUMES/theirs", []byte(nil), []byte(nil))
		f.Add(uid, "pvc-"+uid, "VOLUMES/../outside", []byte(nil), []byte(nil))
	}
	absurd.Seed(f, func(data []byte) { f.Add("1f9e", "pvc-1f9e", "VOLUMES/1f9e", data, data) })
	server := fake.NewClientset() // expensive to create
	f.Fuzz(func(t *testing.T, uid, name, path string, ofClaim, ofVolume []byte) {
		w, outside := newFuzzed(t)
		w.Client = server
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "vms", Name: "disk", UID: types.UID(uid)}}
		claim.Spec.StorageClassName = ptr.To(w.Class)
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
		volume := w.volume(claim, filepath.Join(w.Dir, uid))
		volume.Name, volume.Spec.HostPath.Path = name, inPlace(path, w.Dir)
		volume.Status.Phase = corev1.VolumeReleased
		absurd.Objects(ofClaim, claim)
		absurd.Objects(ofVolume, volume)
		claims, volumes := newIndexer(t, claim), newIndexer(t, volume)
		w.claims, w.volumes = listers.NewPersistentVolumeClaimLister(claims), listers.NewPersistentVolumeLister(volumes)
		absurd.Within("a pass", func() {
			_ = w.provision(t.Context(), cache.MetaObjectToName(claim)) // errors are expected
			_ = w.reclaim(t.Context(), cache.MetaObjectToName(volume))
			w.forget(t.Context(), volume)
		})
		_ = server.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", volumeName(claim.UID)) // it may not exist
		for _, file := range []string{outside, filepath.Join(w.Dir, "theirs", "disk.img")} {
			if content, err := os.ReadFile(file); err != nil || string(content) != "precious" {
				// A claim's owner is identified by its UID.
				if uid != "theirs" || file == outside {
					t.Errorf("%s holds %q, %v", file, content, err)
				}
			}
		}
		if entries, err := os.ReadDir(filepath.Dir(w.Dir)); err != nil || len(entries) != 2 {
			t.Errorf("next to the directory of volumes there are %v (%v)", entries, err)
		}
	})
}

// inPlace replaces the placeholder of the directory of volumes.
func inPlace(path, dir string) string {
	const stands = "VOLUMES/"
	if len(path) >= len(stands) && path[:len(stands)] == stands {
		return dir + "/" + path[len(stands):]
	}
	return path
}

// newFuzzed returns a worker whose directory contains the disk of another claim, with a file next to the
// directory.
func newFuzzed(t *testing.T) (w *worker, outside string) {
	t.Helper()
	above := t.TempDir()
	dir := filepath.Join(above, "volumes")
	outside = filepath.Join(above, "outside")
	if err := os.MkdirAll(filepath.Join(dir, "theirs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{outside, filepath.Join(dir, "theirs", "disk.img")} {
		if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files.Close() })
	return &worker{
		Provisioner: Provisioner{Dir: dir, Class: "local", Log: logr.Discard()},
		files:       files, events: record.NewFakeRecorder(10),
	}, outside
}

func newIndexer(t *testing.T, object any) cache.Indexer {
	t.Helper()
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := indexer.Add(object); err != nil {
		t.Fatal(err)
	}
	return indexer
}
