package hostrunner

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/internal/loop"
	"github.com/millwright-dev/millwright/test/support/blockdev"
)

func deviceNumber(t *testing.T, path string) uint64 {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Lstat(path, &info); err != nil || info.Mode&unix.S_IFMT != unix.S_IFBLK {
		t.Fatalf("%s is not a block device: %v", path, err)
	}
	return info.Rdev
}

// TestVolume_Devices checks that a volume is a device, or a file attached to one, in the directory of volumes.
// The container gets its own device node.
func TestVolume_Devices(t *testing.T) {
	file, node := blockdev.New(t, 1<<20)
	volumes, outside := filepath.Dir(file), t.TempDir()
	inside := filepath.Join(volumes, "device")
	if err := unix.Mknod(inside, unix.S_IFBLK|0o600, int(deviceNumber(t, node))); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(node, filepath.Join(volumes, "out")); err != nil {
		t.Fatal(err)
	}
	at := func(path string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			Local: &corev1.LocalVolumeSource{Path: path}}}}
	}
	for name, test := range map[string]struct {
		limit, path string
		ok          bool
	}{
		"a file":             {volumes, file, true},
		"a device":           {volumes, inside, true},
		"without a limit":    {"", node, true},
		"a device outside":   {volumes, node, false},
		"a link to a device": {volumes, filepath.Join(volumes, "out"), false},
		"a directory":        {"", outside, false},
		"nothing":            {volumes, filepath.Join(volumes, "other"), false},
		"no block device":    {"", "/dev/null", false},
	} {
		t.Run(name, func(t *testing.T) {
			device, err := deviceOf(at(test.path), test.limit)
			if (err == nil) != test.ok {
				t.Fatalf("device %q, %v", device, err)
			}
			if !test.ok {
				return
			}
			files, err := podDir(t.TempDir()).open()
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			container := &corev1.Container{VolumeDevices: []corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/millwright/root"}}}
			for range 2 { // the setup may be repeated
				if err := files.layOut(container, map[string]string{"disk": device}); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := deviceNumber(t, filepath.Join(files.dir.root(), "dev/millwright/root")), deviceNumber(t, node); got != want {
				t.Errorf("the node is of device %x, want %x", got, want)
			}
			if err := files.layOut(container, map[string]string{"disk": file}); err == nil {
				t.Error("a file became a device")
			}
		})
	}
}

// TestVolume_FileHasOneDevice checks that two hosts that run Pods with the same volume share one device, and so its
// lock.
func TestVolume_FileHasOneDevice(t *testing.T) {
	if err := loop.Available(); err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "device.img")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loop.Detach(file); file.Close() })
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	volume := &corev1.PersistentVolume{}
	volume.Spec.HostPath = &corev1.HostPathVolumeSource{Path: path}
	first, err := deviceOf(volume, "")
	second, again := deviceOf(volume, filepath.Dir(path))
	if err != nil || again != nil || first != second {
		t.Errorf("the devices are %q and %q (%v, %v)", first, second, err, again)
	}
}
