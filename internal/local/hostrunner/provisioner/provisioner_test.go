package provisioner

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/test/support/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// timeout limits operations that take less than five seconds on an idle machine.
const timeout = env.WaitTimeout

// testProvisioner is a provisioner with its own StorageClass.
type testProvisioner struct {
	*env.Env
	Provisioner
	t *testing.T
}

func newTestProvisioner(t *testing.T) *testProvisioner {
	t.Helper()
	e := env.New(t, env.WithControllerManager())
	client, err := kubernetes.NewForConfig(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	// Tests share the cluster, so each has its own StorageClass.
	b := &testProvisioner{Env: e, t: t, Provisioner: Provisioner{Client: client, Dir: t.TempDir(), Class: "class-of-" + e.Namespace}}
	for range 2 { // it is idempotent
		if err := EnsureClass(t.Context(), client, b.Class); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		client.StorageV1().StorageClasses().Delete(context.Background(), b.Class, metav1.DeleteOptions{}) // best-effort cleanup
	})
	return b
}

func (b *testProvisioner) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("the provisioner ended with %v", err)
		}
	}
	b.t.Cleanup(stop)
	return stop
}

func (b *testProvisioner) claim(name string, change ...func(*corev1.PersistentVolumeClaimSpec)) *corev1.PersistentVolumeClaim {
	b.t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: b.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany},
			StorageClassName: &b.Class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi"),
			}},
		},
	}
	for _, c := range change {
		c(&claim.Spec)
	}
	created, err := b.Client.CoreV1().PersistentVolumeClaims(b.Namespace).Create(b.t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return created
}

// eventually polls until the condition holds. On failure, it prints the state.
func (b *testProvisioner) eventually(what string, condition func() (bool, any)) {
	b.t.Helper()
	gomega.NewWithT(b.t).Eventually(func(g gomega.Gomega) {
		holds, state := condition()
		g.Expect(holds).To(gomega.BeTrue(), "%s; the state is %+v", what, state)
	}).WithTimeout(timeout).WithPolling(10 * time.Millisecond).Should(gomega.Succeed())
}

func (b *testProvisioner) awaitBound(name string) *corev1.PersistentVolume {
	b.t.Helper()
	var claim *corev1.PersistentVolumeClaim
	b.eventually("the volume", func() (bool, any) {
		var err error
		claim, err = b.Client.CoreV1().PersistentVolumeClaims(b.Namespace).Get(b.t.Context(), name, metav1.GetOptions{})
		return err == nil && claim.Status.Phase == corev1.ClaimBound, claim
	})
	volume, err := b.Client.CoreV1().PersistentVolumes().Get(b.t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return volume
}

func (b *testProvisioner) delete(name string) {
	b.t.Helper()
	if err := b.Client.CoreV1().PersistentVolumeClaims(b.Namespace).Delete(b.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *testProvisioner) awaitGone(volume *corev1.PersistentVolume) {
	b.t.Helper()
	b.eventually("the volume's end", func() (bool, any) {
		have, err := b.Client.CoreV1().PersistentVolumes().Get(b.t.Context(), volume.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), have
	})
	b.eventually("the removal of the directory", func() (bool, any) {
		_, err := os.Stat(volume.Spec.HostPath.Path)
		return os.IsNotExist(err), err
	})
}

func TestProvisioner_Lifecycle(t *testing.T) {
	b := newTestProvisioner(t)
	b.start()
	claim := b.claim("disk")
	volume := b.awaitBound("disk")
	if want := filepath.Join(b.Dir, string(claim.UID)); volume.Spec.HostPath.Path != want {
		t.Errorf("the directory is %s, want %s", volume.Spec.HostPath.Path, want)
	}
	if info, err := os.Stat(volume.Spec.HostPath.Path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v (%v)", info, err)
	}
	if err := os.WriteFile(filepath.Join(volume.Spec.HostPath.Path, "disk.img"), []byte("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.delete("disk")
	b.awaitGone(volume)
	b.requireEmpty()
}

func (b *testProvisioner) requireEmpty() {
	b.t.Helper()
	b.eventually("no directory", func() (bool, any) { // a directory is renamed before it is removed
		entries, err := os.ReadDir(b.Dir)
		return err == nil && len(entries) == 0, entries
	})
}

func TestProvisioner_ClaimIsDeletedWhileStopped(t *testing.T) {
	b := newTestProvisioner(t)
	stop := b.start()
	b.claim("disk")
	volume := b.awaitBound("disk")
	stop()
	b.delete("disk")
	b.start()
	b.awaitGone(volume)
	b.requireEmpty()
}

func TestProvisioner_VolumeIsDeletedManually(t *testing.T) {
	b := newTestProvisioner(t)
	b.start()
	b.claim("disk")
	volume := b.awaitBound("disk")
	// The finalizer keeps the volume until the claim is gone.
	if err := b.Client.CoreV1().PersistentVolumes().Delete(t.Context(), volume.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.delete("disk")
	b.awaitGone(volume)
	b.requireEmpty()
}

func TestProvisioner_RejectsUnsupportedClaims(t *testing.T) {
	b := newTestProvisioner(t)
	b.start()
	cases := map[string]func(*corev1.PersistentVolumeClaimSpec){
		"huge": func(spec *corev1.PersistentVolumeClaimSpec) {
			spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1000Pi")
		},
		"selector": func(spec *corev1.PersistentVolumeClaimSpec) { spec.Selector = &metav1.LabelSelector{} },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			claim := b.claim(name, change)
			b.eventually("an event", func() (bool, any) {
				events, err := b.Client.CoreV1().Events(b.Namespace).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false, err
				}
				return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
					return e.Reason == reasonFailed && e.InvolvedObject.UID == claim.UID
				}), events.Items
			})
		})
	}
	b.requireEmpty()
}

func TestProvisioner_IgnoresOtherClaims(t *testing.T) {
	b := newTestProvisioner(t)
	b.start()
	b.claim("other", func(spec *corev1.PersistentVolumeClaimSpec) { spec.StorageClassName = ptr.To("") })
	b.claim("ours") // the other claim was handled before
	volume := b.awaitBound("ours")
	if entries, err := os.ReadDir(b.Dir); err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(volume.Spec.HostPath.Path) {
		t.Errorf("there are directories %v (%v), want that of one claim", entries, err)
	}
}

func TestProvisioner_RemovesOrphanedDirectories(t *testing.T) {
	b := newTestProvisioner(t)
	for _, name := range []string{"needsVolume/disk.img", "half.removed/disk.img", "empty/"} {
		path := filepath.Join(b.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if filepath.Base(path) == "disk.img" {
			if err := os.WriteFile(path, []byte("disk"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.start()
	b.claim("disk")
	volume := b.awaitBound("disk") // after the sweep
	var have []string
	entries, err := os.ReadDir(b.Dir)
	for _, entry := range entries {
		have = append(have, entry.Name())
	}
	want := []string{filepath.Base(volume.Spec.HostPath.Path), "needsVolume"}
	slices.Sort(want)
	if err != nil || !slices.Equal(have, want) {
		t.Errorf("there are %v (%v), want %v: the data of an unknown volume stay", have, err, want)
	}
}

// TestProvisioner_IgnoresSymlinks checks that a symlink in the directory of volumes, which a compromised hypervisor may
// have created, is neither used nor followed.
func TestProvisioner_IgnoresSymlinks(t *testing.T) {
	b := newTestProvisioner(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	claim := b.claim("planted")
	if err := os.Symlink(outside, filepath.Join(b.Dir, string(claim.UID))); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(b.Dir, "old"+removedSuffix)); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.claim("honest")
	volume := b.awaitBound("honest")
	// The directory of a volume may be replaced later.
	if err := os.Remove(volume.Spec.HostPath.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, volume.Spec.HostPath.Path); err != nil {
		t.Fatal(err)
	}
	b.delete("honest")
	b.awaitGone(volume)
	if _, err := b.Client.CoreV1().PersistentVolumes().Get(t.Context(), volumeName(claim.UID), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a link became a volume (%v)", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Error(err)
	}
}

// TestProvisioner_ExpandsVolume checks that a claim that requests more capacity gets it, unless the file system is too small.
func TestProvisioner_ExpandsVolume(t *testing.T) {
	b := newTestProvisioner(t)
	b.start()
	b.claim("a")
	volume := b.awaitBound("a")
	request := func(size string) {
		t.Helper()
		patch := []byte(`{"spec":{"resources":{"requests":{"storage":"` + size + `"}}}}`)
		_, err := b.Client.CoreV1().PersistentVolumeClaims(b.Namespace).Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	request("2Gi")
	b.eventually("the size", func() (bool, any) {
		claim, err := b.Client.CoreV1().PersistentVolumeClaims(b.Namespace).Get(t.Context(), "a", metav1.GetOptions{})
		volume, failed := b.Client.CoreV1().PersistentVolumes().Get(t.Context(), volume.Name, metav1.GetOptions{})
		has := err == nil && failed == nil && claim.Status.Capacity.Storage().String() == "2Gi" && volume.Spec.Capacity.Storage().String() == "2Gi"
		return has, claim
	})
	request("4Ei")
	b.eventually("a warning", func() (bool, any) {
		events, err := b.Client.CoreV1().Events(b.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reasonResizeFailed})
		return err == nil && len(events.Items) > 0, events
	})
}
